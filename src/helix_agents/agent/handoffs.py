"""Handoffs: an agent lets another one take over its conversation, with everything that was said."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from pydantic import BaseModel, Field

from helix_agents.agent.availability import AvailabilityPredicate
from helix_agents.agent.calling import is_async, is_generator, takes
from helix_agents.agent.client_tools import InputType
from helix_agents.agent.names import check_name
from helix_agents.agent.output import fits_output
from helix_agents.agent.tools import Tool
from helix_agents.domain.errors import DefinitionError
from helix_agents.domain.records import JSON
from helix_agents.domain.transcript import HANDOFF
from helix_agents.ports.llm import replays_turns

if TYPE_CHECKING:
    from helix_agents.agent.agent import AnyAgent

StateHandedOver: TypeAlias = Callable[[Any, Mapping[str, JSON]], Any]
"""Makes the next agent's state from this one's and from the input of the call."""

FindAgent: TypeAlias = Callable[[str], "AnyAgent | None"]


@dataclass(frozen=True)
class Handoff:
    """How an agent hands its conversation over: `Agent(handoffs=[Handoff(billing, state=…)])`.

    Args:
        to: The agent that takes over, or its name if it is defined later, as where two agents hand over to each other.
            An agent that is only named has to be one that the executor knows.
        description: When to hand over, for this agent's model. Defaults to the description of the other agent.
        input: A type whose fields this agent's model fills in. Defaults to a single optional `reason`. The agent that
            takes over reads it in the conversation.
        state: Makes the other agent's state from this one's and the input. Needed if both have state, of different
            types.
        available: Decides before each model call whether the model may hand over; see `tool`.
    """

    to: "AnyAgent | str"
    _: KW_ONLY
    description: str | None = None
    input: Any = None
    state: StateHandedOver | None = None
    available: AvailabilityPredicate | None = None

    @property
    def agent_name(self) -> str:
        """The name of the agent that takes over."""
        return self.to if isinstance(self.to, str) else self.to.name


class HandedOver(BaseModel):
    """Who takes over knows the whole conversation."""

    reason: str = Field(default="", description="Why, in one sentence, for the one who takes over.")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class HandoffTool(Tool[..., Any]):
    """The tool with which a model hands its conversation over. The commit of the step carries it out."""

    handoff: Handoff

    @property
    def waits(self) -> bool:
        """Never: the commit settles it."""
        return False


def handoff_tools(given: Any, subject: str) -> tuple[HandoffTool, ...]:
    """The tools with which an agent hands over.

    Raises:
        DefinitionError: one of them cannot work; says why and what to do.
    """
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise DefinitionError(subject, f"handoffs={given!r} is not a list; write handoffs=[…].")
    tools: list[HandoffTool] = []
    for each in cast("Sequence[Any]", given):
        tool = _tool_for(_handoff_of(each, subject), subject)
        if any(tool.name == other.name for other in tools):
            raise DefinitionError(subject, f"two of its handoffs are to {tool.handoff.agent_name!r}; give it once.")
        tools.append(tool)
    return tuple(tools)


def _handoff_of(given: Any, subject: str) -> Handoff:
    handoff = given if isinstance(given, Handoff) else Handoff(given)
    to: Any = handoff.to
    if isinstance(to, str):
        if not isinstance(given, Handoff):
            cure = f"write Handoff({to!r}, description=…), which says when to hand over"
            raise DefinitionError(subject, f"{given!r} in handoffs is only a name; {cure}.")
        check_name("Agent", to)
        return handoff
    if isinstance(to, Tool):
        tool = cast("Tool[..., Any]", to)
        cure = "give the agent itself"
        if hasattr(tool, "transport"):
            cure = "an agent behind another service has its own session there: delegate to it, with tools=[…]"
        raise DefinitionError(subject, f"{tool.name!r} in handoffs is a tool; {cure}.")
    if not hasattr(to, "handoff_tools"):
        raise DefinitionError(subject, f"{to!r} in handoffs is not an Agent, nor a Handoff to one.")
    return handoff


def _tool_for(handoff: Handoff, subject: str) -> HandoffTool:
    to = handoff.agent_name
    about = f"The handoff to {to!r} of {subject}"
    described = handoff.description or ("" if isinstance(handoff.to, str) else handoff.to.description)
    if not described:
        cure = "give the agent a description=…, or write Handoff(…, description=…)"
        raise DefinitionError(about, f"the model decides from the description when to hand over; {cure}.")
    _check_state_function(handoff.state, about)
    name = f"{HANDOFF}{to}"[:64]
    return HandoffTool(
        name=name,
        description=f"Hand this conversation over to {to}, who answers from now on. {described}",
        input=InputType(handoff.input or HandedOver, f"Tool {name!r}"),
        function=_carried_out_by_the_engine,
        kind="handoff",
        available=handoff.available,
        handoff=handoff,
    )


def _check_state_function(given: Any, about: str) -> None:
    if given is None:
        return
    if not callable(given) or inspect.isclass(given) or is_async(given) or is_generator(given) or not takes(given, 2):
        what = f"state={given!r} is not a plain function of the state so far and the input, (state, input)"
        raise DefinitionError(about, f"{what}, that returns the next agent's state.")


def check_handoffs(agent: "AnyAgent", find: FindAgent | None = None) -> None:
    """Reject handoffs that could not be carried out, or not be told from each other. Agents that are only named are
    looked at if `find` finds them.

    Raises:
        DefinitionError: says which, why, and what to do.
    """
    if not agent.handoff_tools:
        return
    subject = f"Agent {agent.name!r}"
    for tool in agent.handoff_tools:
        if tool.handoff.agent_name == agent.name:
            raise DefinitionError(subject, "it hands over to itself; leave that handoff out.")
    known = circle_of(agent, find)
    for one in known.values():
        for tool in one.handoff_tools:
            to = known.get(tool.handoff.agent_name)
            if to is not None:
                _check_pair(one, tool.handoff, to)
            elif find is not None:
                raise DefinitionError(
                    f"Agent {one.name!r}",
                    f"it hands over to {tool.handoff.agent_name!r}, which is not an agent that is known here; register "
                    "that agent, or give it to the Handoff.",
                )
    for one in known.values():
        _check_states(one, known)
    _check_files(list(known.values()), subject)


def circle_of(agent: "AnyAgent", find: FindAgent | None = None) -> dict[str, "AnyAgent"]:
    """The agent and all that its conversations may be handed over to, at any remove, by name. A name means one that
    the circle has; else, one that `find` finds.

    Raises:
        DefinitionError: two of them have the same name.
    """
    circle = {agent.name: agent}
    named: list[str] = []
    ahead = [agent]
    while ahead or named:
        if not ahead:
            # Only now is it certain that none of those that were given is meant.
            name = named.pop()
            found = None if find is None or name in circle else find(name)
            if found is not None:
                circle[name] = found
                ahead.append(found)
            continue
        for tool in ahead.pop().handoff_tools:
            to = tool.handoff.to
            if isinstance(to, str):
                named.append(to)
            elif to.name not in circle:
                circle[to.name] = to
                ahead.append(to)
            elif circle[to.name] is not to:
                raise DefinitionError(
                    f"Agent {agent.name!r}",
                    f"two different agents that its conversations may be handed over to are called {to.name!r}; "
                    "rename one.",
                )
    return circle


def _check_pair(agent: "AnyAgent", handoff: Handoff, to: "AnyAgent") -> None:
    about = f"The handoff to {to.name!r} of Agent {agent.name!r}"
    if replays_turns(to.model):
        raise DefinitionError(
            about,
            f"{to.name!r} is a flow, which works on a turn from its beginning; give it to the agent with as_tool().",
        )
    if not fits_output(to.output, agent.output):
        wanted, produced = _shown(agent.output), _shown(to.output)
        raise DefinitionError(
            about,
            f"who runs {agent.name!r} gets {wanted}, but {to.name!r} produces {produced}. Give both the same output, "
            f"or give {agent.name!r} a union of the two.",
        )


def _check_states(agent: "AnyAgent", known: Mapping[str, "AnyAgent"]) -> None:
    """Check that the agent's state is never taken for one of another type. An agent without state leaves it alone, so
    it may reach one further on."""
    if agent.state is None:
        return
    seen = {agent.name}
    ahead = [agent]
    while ahead:
        for handoff in _handoffs(ahead.pop()):
            to = known.get(handoff.agent_name)
            if handoff.state is not None or to is None or to.name in seen:
                continue
            seen.add(to.name)
            if to.state is None:
                ahead.append(to)
            elif to.state is not agent.state:
                types = f"its state is a {agent.state.__name__}, that of {to.name!r} a {to.state.__name__}"
                raise DefinitionError(
                    f"Agent {agent.name!r}",
                    f"{types}, and its conversations may get there. Give both the same state type, or say how the one "
                    f"becomes the other: Handoff({to.name}, state=lambda state, input: {to.state.__name__}(…)).",
                )


def _check_files(agents: Sequence["AnyAgent"], subject: str) -> None:
    """A session has one workspace, whichever agent works in it."""
    providers = {each.workspace.provider.provider_id: each for each in agents if each.workspace is not None}
    if len(providers) > 1:
        one, other, *_ = providers.values()
        raise DefinitionError(
            subject,
            f"{one.name!r} and {other.name!r} may work in the same conversation, but have workspaces of different "
            "providers; give them the same.",
        )


def _handoffs(agent: "AnyAgent") -> Iterator[Handoff]:
    return (tool.handoff for tool in agent.handoff_tools)


def _shown(output: Any) -> str:
    return "text" if output is None else getattr(output, "__name__", None) or str(output)


def _carried_out_by_the_engine(**_: Any) -> None:
    raise TypeError("a handoff is carried out by the engine, not called")
