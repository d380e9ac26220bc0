"""Agents that delegate without asking anybody: a line of three of whom one works at a time, so that a process that dies
between two effects has none in flight, and a fan of two beside tools. Every question to a model leaves a trace."""

from collections import Counter
from typing import Any

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.context import RunContext, ToolContext
from helix_agents.agent.hooks import Hooks
from helix_agents.agent.tools import tool
from helix_agents.domain.chunks import RunStarted
from helix_agents.domain.rendering import surviving
from helix_agents.domain.results import Completed
from helix_agents.ports.backend import Backend
from helix_agents.runtimes.in_process import Executor
from helix_agents.testing import ScriptedModel, call, reply
from helix_agents.testing.contracts.executor.family import assert_well_told
from tests.recovery.lives import Conversation
from tests.recovery.reference_conversation import Traces

SESSION = "s-1"


@tool
def look_up(ctx: ToolContext[Any, Traces], topic: str) -> str:
    """Look something up; twice does no harm, but costs."""
    ctx.deps.leave(topic)
    return f"a page about {topic}"


def _ask(ctx: RunContext[Any, Traces], event: object) -> None:
    ctx.deps.leave(f"{ctx.agent}:{ctx.step}")


def _look(*topics: str) -> list[Any]:
    return [call("look_up", {"topic": topic}, id=topic) for topic in topics]


def _delegate(*names: str) -> list[Any]:
    return [call(f"subagent__{name}", {"message": "Go"}, id=name) for name in names]


def _agent(name: str, *script: Any, below: tuple[AnyAgent, ...] = (), **fields: Any) -> Any:
    tools = [look_up, *(each.as_tool() for each in below)]
    model = ScriptedModel(list(script), chunk=5)
    return Agent(name=name, description=f"The {name}.", model=model, tools=tools, **fields)


class Delegation:
    """A question that the chief answers with the help of others."""

    def __init__(self, chief: AnyAgent, everything: set[str], *, recovers: bool = True) -> None:
        self._chief = chief
        self._everything = everything
        self._recovers = recovers
        self.conversation = Conversation(agents=[chief], go_on=self.go_on, check_end=self.check_end)

    async def go_on(self, helix: Executor) -> None:
        """Have the question answered by whoever is at it; a process that `recovers` takes over from those that died."""
        if self._recovers:
            await helix.recover()
        handle = await helix.get_handle(self._chief, SESSION) or await helix.execute(self._chief, "Begin.", SESSION)
        assert isinstance(result := await handle.result(), Completed), result

    async def check_end(self, backend: Backend, traces: Traces) -> set[str]:
        """Everything was asked and looked up, each agent has one session, and nothing is left."""
        done = traces.counted()
        assert set(done) == self._everything
        page = await backend.state.list_sessions()
        assert [each.status for each in page.items] == ["completed"] * 3
        assert await backend.state.list_orphans() == ()
        chunks = await backend.streams.get_all_chunks(SESSION)
        assert_well_told(chunks, SESSION)
        begun = {chunk.agent_type for chunk in surviving(chunks) if isinstance(chunk, RunStarted)}
        assert begun == {each.agent_type for each in page.items}
        return set()


# Children run the hooks of those above them.
_TRACED = Hooks(before_llm_call=_ask)

_HELPER = _agent("helper", reply("Deep. ", calls=_look("ebb")), reply("Deeper. ", calls=_look("flow")), "Found.")
_MIDDLE = _agent(
    "middle",
    reply("First I look. ", calls=_look("moon")),
    reply("Then you. ", calls=_delegate("helper")),
    reply("And again. ", calls=_look("sun")),
    "Looked.",
    below=(_HELPER,),
)
_HEAD = _agent(
    "head",
    reply("Go. ", calls=_delegate("middle")),
    reply("I look myself. ", calls=_look("tides")),
    "All told.",
    below=(_MIDDLE,),
    hooks=_TRACED,
)
_IN_LINE = {
    *("head:1", "head:2", "head:3", "tides"),
    *("middle:1", "middle:2", "middle:3", "middle:4", "moon", "sun"),
    *("helper:1", "helper:2", "helper:3", "ebb", "flow"),
}
IN_LINE_ONCE = Counter(_IN_LINE)

_LEFT = _agent("left", reply("Here. ", calls=_look("hill")), reply("There. ", calls=_look("dale")), "Left done.")
_RIGHT = _agent("right", reply("Both. ", calls=_look("oak", "elm")), "Right done.")
_HOST = _agent(
    "host",
    reply("All of you. ", calls=[*_look("tides"), *_delegate("left"), *_look("moon"), *_delegate("right")]),
    reply("Once more. ", calls=_look("sun")),
    "All told.",
    below=(_LEFT, _RIGHT),
    hooks=_TRACED,
)
_FANNED = {
    *("host:1", "host:2", "host:3", "tides", "moon", "sun"),
    *("left:1", "left:2", "left:3", "hill", "dale"),
    *("right:1", "right:2", "oak", "elm"),
}

LINE = Delegation(_HEAD, _IN_LINE).conversation
LINE_THAT_COMES_BACK = Delegation(_HEAD, _IN_LINE, recovers=False).conversation
FAN = Delegation(_HOST, _FANNED).conversation
FAN_THAT_COMES_BACK = Delegation(_HOST, _FANNED, recovers=False).conversation
