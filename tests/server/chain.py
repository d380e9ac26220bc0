"""Agents that delegate to other services: a boss whose model does what the user says, and workers elsewhere."""

import os
from typing import Any

from helix_agents import (
    Agent,
    AgentServer,
    AnyAgent,
    Executor,
    HttpRemoteAgentTransport,
    ScriptedModel,
    a2a_agent_tool,
    remote_agent_tool,
)
from helix_agents.llm.scripted import Step, call, reply
from helix_agents.ports.llm import ModelRequest
from helix_agents.server.auth import bearer_tokens
from tests.server.agents import (
    Notes,
    follow_orders,
    gate,
    glance,
    locate,
    order_of,
    publish,
    results_since_the_user,
    search,
)
from tests.server.live import ANN, TOKENS


def pass_on(request: ModelRequest) -> Step:
    """`remote <order>` goes to the worker as `<order>`; everything else is done here."""
    order = order_of(request)
    if order.startswith("remote ") and not results_since_the_user(request):
        orders = order.removeprefix("remote ").split(" & ")
        return reply("Let me ask. ", calls=[call("subagent__worker", {"message": each}) for each in orders])
    return follow_orders(request)


def worker(name: str = "worker") -> AnyAgent:
    model = ScriptedModel(follow_orders, pace=gate.pass_)
    return Agent(name=name, model=model, tools=[search, publish, locate, glance], state=Notes)


def boss(url: Any, name: str = "boss", **settings: Any) -> AnyAgent:
    settings = {"token": ANN, **settings}
    tool = remote_agent_tool(url, "worker", description="Works elsewhere.", **settings)
    return Agent(name=name, model=ScriptedModel(pass_on), tools=[search, publish, tool], state=Notes)


def a2a_boss(url: Any, name: str = "boss", **settings: Any) -> AnyAgent:
    """The same over A2A; the address is that of one agent."""
    tool = a2a_agent_tool(url, "worker", description="Works elsewhere.", **settings)
    return Agent(name=name, model=ScriptedModel(pass_on), tools=[search, publish, tool], state=Notes)


def service(*agents: AnyAgent, url: str = "memory://", **settings: Any) -> AgentServer:
    """An agent server for these agents."""
    settings.setdefault("authenticate", bearer_tokens(TOKENS))
    return AgentServer(Executor.open(url, agents=agents), **settings)


def transport(url: str, **settings: Any) -> HttpRemoteAgentTransport:
    return HttpRemoteAgentTransport(url, **{"token": ANN, **settings})


# What a process serves: with the address of another service the one who delegates, else the one who works.
_below = os.environ.get("HELIX_TEST_BELOW")
_card = os.environ.get("HELIX_TEST_CARD")
_name = os.environ.get("HELIX_TEST_AGENT", "worker")
if _card is not None:
    agents = [a2a_boss(_card, _name, token=ANN)]
else:
    agents = [worker(_name) if _below is None else boss(_below, _name)]
