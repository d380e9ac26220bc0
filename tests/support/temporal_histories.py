"""Histories of turns as Temporal keeps them, and the files that hold them.

    uv run python -m tests.support.temporal_histories

writes those that are missing for the present effect sequence. An existing one is never written again: a turn that a
release started may have it.
"""

import asyncio
import json
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from helix_agents import (
    Agent,
    AnyAgent,
    ScriptedModel,
    Suspended,
    TemporalAgentExecutor,
    client_tool,
    sub_agent_tool,
    tool,
)
from helix_agents.agent.companions import PersistentAgent
from helix_agents.domain.errors import ModelRefusedError, StoreUnavailableError
from helix_agents.domain.pending import ApprovalAnswer, ToolAnswer
from helix_agents.engine.plain import EFFECT_SEQUENCE
from helix_agents.runtimes.executor.workflow_names import workflow_of
from helix_agents.runtimes.temporal import TemporalOptions
from helix_agents.testing import call, reply
from helix_agents.testing.temporal_service import TemporalService

FOLDER = Path(__file__).parents[1] / "fixtures" / "histories" / str(EFFECT_SEQUENCE)

Story = Callable[[TemporalAgentExecutor], Awaitable[Any]]


@tool
async def look(what: str) -> str:
    """Look something up."""
    return f"seen {what}"


@tool(effect="once")
async def send(to: str) -> str:
    """Send something."""
    return f"sent to {to}"


@tool(require_approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool(timeout=0.2, retries=0)
async def linger() -> str:
    """Take too long."""
    await asyncio.sleep(60)
    return "late"


@client_tool
def locate(city: str) -> str:
    """Where the client is."""
    raise NotImplementedError


def _agent(name: str, *script: Any, **settings: Any) -> AnyAgent:
    settings = {"tools": [look, send, pay, linger, locate], "description": "Works.", **settings}
    return Agent(name=name, model=ScriptedModel(list(script)), **settings)


async def _talk(helix: TemporalAgentExecutor, agent: AnyAgent) -> None:
    """One turn, in which everything it asks is answered."""
    result = await (await helix.execute(agent, "Go", "s-1")).result()
    while isinstance(result, Suspended):
        for waiting in result.pending:
            answer = ApprovalAnswer(approved=True) if waiting.kind == "approval" else ToolAnswer(result="here")
            await helix.submit_tool_result("s-1", waiting.tool_call_id, answer)
        result = await (await helix.resume(agent, "s-1")).result()


async def _tools(helix: TemporalAgentExecutor) -> None:
    side_by_side = reply(
        "Well. ", calls=[call("look", {"what": "tides"}), call("send", {"to": "ann"}), call("nothing")]
    )
    await _talk(helix, _agent("worker", side_by_side, call("look", {"what": "moon"}), "Done."))


async def _somebody(helix: TemporalAgentExecutor) -> None:
    asks = reply(calls=[call("locate", {"city": "Rome"}), call("look", {"what": "tides"}), call("pay", {"amount": 1})])
    await _talk(helix, _agent("asker", asks, "Thanks."))


async def _children(helix: TemporalAgentExecutor) -> None:
    child = _agent("helper", call("look", {"what": "sun"}), call("pay", {"amount": 2}), "Helped.")
    other = _agent("clerk", "Clerked.")
    both = reply(calls=[call("subagent__helper", {"message": "Help"}), call("subagent__clerk", {"message": "Clerk"})])
    await _talk(helix, _agent("boss", both, "All done.", tools=[sub_agent_tool(child), sub_agent_tool(other)]))


async def _companions(helix: TemporalAgentExecutor) -> None:
    keeps = [PersistentAgent(_agent("steady", call("look", {"what": "sun"}), "Stood."), mode="blocking")]
    spawns = call("companion__spawnAgent", {"agent": "steady", "initialMessage": "Stand."})
    await _talk(helix, _agent("boss", spawns, "All done.", tools=[], persistent_agents=keeps))


async def _long(helix: TemporalAgentExecutor) -> None:
    many = [call("look", {"what": str(number)}) for number in range(6)]
    await _talk(helix, _agent("talker", *many, "Done."))


async def _late(helix: TemporalAgentExecutor) -> None:
    await _talk(helix, _agent("waiter", call("linger"), "Never mind."))


async def _refused(helix: TemporalAgentExecutor) -> None:
    await _talk(helix, _agent("poet", call("look", {"what": "tides"}), ModelRefusedError("scripted", "no")))


async def _stopped(helix: TemporalAgentExecutor) -> None:
    held = asyncio.Event()

    @tool
    async def work() -> str:
        """Work."""
        held.set()
        await asyncio.sleep(60)
        return "worked"

    handle = await helix.execute(_agent("worker", call("work"), "Done.", tools=[work]), "Go", "s-1")
    await held.wait()
    await helix.interrupt("s-1", "enough")
    await handle.result()


class _Troubled:
    """Effects that fail the first time."""

    def __init__(self, effects: Any) -> None:
        self._effects = effects
        self._tried: set[str] = set()

    async def perform(self, effect: str, *given: Any) -> Any:
        if effect not in self._tried:
            self._tried.add(effect)
            raise StoreUnavailableError("The store", "away")
        return await self._effects.perform(effect, *given)


async def _troubled(helix: TemporalAgentExecutor) -> None:
    bodies: Any = vars(helix._runtime)["_bodies"]
    bodies._effects = _Troubled(bodies._effects)
    await _tools(helix)


STORIES: dict[str, Story] = {
    "tools": _tools,
    "somebody": _somebody,
    "children": _children,
    "companions": _companions,
    "long": _long,
    "late": _late,
    "refused": _refused,
    "stopped": _stopped,
    "troubled": _troubled,
}


def names_of(story: str) -> list[str]:
    """The recorded histories of a story; some stories have several turns or continue in a fresh workflow."""
    return sorted(path.stem for path in FOLDER.glob(f"{story}-*.json"))


@asynccontextmanager
async def _opened(address: str, queue: str) -> AsyncGenerator[TemporalAgentExecutor]:
    with tempfile.TemporaryDirectory() as folder:
        own: dict[str, Any] = {"address": address, "task_queue": queue, "prefix": queue, "janitor_seconds": None}
        options = TemporalOptions(history_events=40 if queue == "long" else 2_000, heartbeat_seconds=0.5)
        quiet = {"identity": "somebody"}
        async with TemporalAgentExecutor.open(
            f"sqlite:///{folder}/helix.db", **own, temporal=options, client_settings=quiet
        ) as helix:
            yield helix


async def _record(address: str, story: str) -> None:
    async with _opened(address, story) as helix:
        await STORIES[story](helix)
        client = vars(helix._runtime)["_client"]
        number = 0
        for run in reversed((await helix.sessions.runs("s-1")).items):
            last = await client.get_workflow_handle(workflow_of(run)).describe()
            following = last.raw_description.workflow_execution_info.first_run_id
            while following:
                history = await client.get_workflow_handle(workflow_of(run), run_id=following).fetch_history()
                number += 1
                told = json.dumps(_without_places(history.to_json_dict()), sort_keys=True, separators=(",", ":"))
                (FOLDER / f"{story}-{number}.json").write_text(f"{told}\n")
                following = history.events[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id


def _without_places(told: Any) -> Any:
    """The history without stack traces, which name folders of the machine that recorded it."""
    match told:
        case dict():
            return {name: _without_places(value) for name, value in told.items() if name != "stackTrace"}
        case list():
            return [_without_places(each) for each in told]
        case _:
            return told


async def _write() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with TemporalService() as temporal:
        for story in STORIES:
            if not names_of(story):
                await _record(temporal.address, story)
                print(*names_of(story))


if __name__ == "__main__":
    asyncio.run(_write())
