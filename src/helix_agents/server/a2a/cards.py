"""The cards by which others find an agent: its name, what it does, and the address to talk to it."""

from starlette.responses import Response

from helix_agents.agent.agent import AnyAgent
from helix_agents.server.a2a.protocol import AgentCapabilities, AgentInterface, AgentSkill, Wire
from helix_agents.server.calls import Call, json_response
from helix_agents.server.errors import RefusedError
from helix_agents.server.executor_routes import entry_agent

MODES = ("text/plain", "application/json")


class AgentCard(Wire, frozen=True, kw_only=True):
    """What a client needs to know about an agent before talking to it."""

    name: str
    description: str
    version: str
    supported_interfaces: tuple[AgentInterface, ...]
    capabilities: AgentCapabilities = AgentCapabilities(
        streaming=True, push_notifications=False, extended_agent_card=False
    )
    default_input_modes: tuple[str, ...] = MODES
    default_output_modes: tuple[str, ...] = MODES
    skills: tuple[AgentSkill, ...]


async def agent_card(call: Call) -> Response:
    """The card of an agent."""
    return json_response(_card(call, entry_agent(call, call.request.path_params["agent"])))


async def server_card(call: Call) -> Response:
    """The card of the only agent of the server. If there are several, each has its own card below `/a2a`."""
    names = sorted(call.entry_agents)
    if len(names) != 1:
        cards = ", ".join(f"/a2a/{name}/.well-known/agent-card.json" for name in names[:20])
        raise RefusedError(404, "not_found", f"This server has {len(names)} agents, each with its own card: {cards}.")
    return json_response(_card(call, entry_agent(call, names[0])))


def _card(call: Call, agent: AnyAgent) -> AgentCard:
    does = agent.description or f"The agent {agent.name}."
    return AgentCard(
        name=agent.name,
        description=does,
        version=str(agent.version),
        supported_interfaces=(AgentInterface(url=f"{call.request.base_url}a2a/{agent.name}"),),
        skills=(AgentSkill(id=agent.name, name=agent.name, description=does, tags=(agent.name,)),),
    )
