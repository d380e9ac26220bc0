"""Every entry into every state a session can be in: what execute, resume and retry do with it, or why they refuse."""

from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeAlias

import pytest
from pydantic import BaseModel

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.client_tools import client_tool
from helix_agents.agent.tools import tool
from helix_agents.domain.chunks import TextDelta
from helix_agents.domain.errors import (
    AgentAlreadyRunningError,
    AgentMismatchError,
    HelixError,
    ModelRefusedError,
    NothingToResumeError,
    NothingToRetryError,
    SessionNotFoundError,
    StillWaitingError,
)
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.pending import ToolAnswer
from helix_agents.domain.sessions import BranchPoint
from helix_agents.llm.scripted import ScriptedModel, Step, call, reply
from helix_agents.ports.backend import Backend
from helix_agents.ports.llm import ModelRequest
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.runtimes.executor.handle import RunHandle
from helix_agents.testing.contracts.executor.stage import (
    SESSION,
    Gate,
    OpenExecutor,
    PieceGate,
    ScenarioContract,
    completed,
    failed,
    interrupted,
    lines,
    runs_of,
    spoken,
    suspended,
    transcript,
    within,
)

Entry: TypeAlias = Literal["execute", "resume", "with_message", "from_checkpoint", "retry"]
Cell: TypeAlias = type[HelixError] | tuple[str, ...]
"""What an entry does: it refuses, or the conversation ends in these lines."""

FIRST_TURN = ("user: Hello", "assistant: Fine.")
NEXT = ("user: Next", "assistant: Fine.")
REWOUND = (*FIRST_TURN, "user: Again", "assistant: Fine.")
SAID = "One two three fo"
STILL_OPEN = ("assistant: Asking.[locate#call_2_1, locate#call_2_2]",)


def _cut(by: str) -> tuple[str, ...]:
    return (*FIRST_TURN, "user: Count", f"assistant: {SAID} ({by})")


def _stopped(history: tuple[str, ...], go_on: tuple[str, ...]) -> dict[Entry, Cell]:
    return {
        "execute": (*history, *NEXT),
        "resume": (*history, *go_on, "assistant: Fine."),
        "with_message": (*history, *NEXT),
        "from_checkpoint": REWOUND,
        "retry": NothingToRetryError,
    }


def _refused(reason: type[HelixError]) -> dict[Entry, Cell]:
    return dict.fromkeys(("execute", "resume", "with_message", "from_checkpoint", "retry"), reason)


WORKED = (*FIRST_TURN, "user: Work", "assistant: [work#call_2_1]", "result work#call_2_1: worked")
ASKED = (*FIRST_TURN, "user: Ask", *STILL_OPEN)
ABANDONED = "error locate#call_2_{}: client_tool_abandoned"
ANSWERED = "result locate#call_2_1: here"

TABLE: dict[str, dict[Entry, Cell]] = {
    "none": {**_refused(SessionNotFoundError), "execute": NEXT},
    "running, lease alive": _refused(AgentAlreadyRunningError),
    "running, lease expired": _stopped(_cut("crash"), ("hidden: continue",)),
    "completed": {
        "execute": (*FIRST_TURN, *NEXT),
        "resume": NothingToResumeError,
        "with_message": NothingToResumeError,
        "from_checkpoint": REWOUND,
        "retry": NothingToRetryError,
    },
    "interrupted": _stopped(_cut("interrupt"), ("hidden: continue",)),
    "paused": _stopped(WORKED, ()),
    "failed": {
        "execute": (*FIRST_TURN, "user: Break", *NEXT),
        "resume": NothingToResumeError,
        "with_message": NothingToResumeError,
        "from_checkpoint": REWOUND,
        "retry": (*FIRST_TURN, "user: Break", "assistant: Fine."),
    },
    "aborted": {
        "execute": (*_cut("abort"), *NEXT),
        "resume": NothingToResumeError,
        "with_message": NothingToResumeError,
        "from_checkpoint": REWOUND,
        "retry": NothingToRetryError,
    },
    "suspended, something answered": {
        "execute": (*ASKED, ANSWERED, ABANDONED.format(2), *NEXT),
        # The answer is consumed; the other call is still open, so the run waits again.
        "resume": ASKED,
        "with_message": ASKED,
        "from_checkpoint": REWOUND,
        "retry": NothingToRetryError,
    },
    "suspended, nothing answered": {
        "execute": (*ASKED, ABANDONED.format(1), ABANDONED.format(2), *NEXT),
        "resume": StillWaitingError,
        "with_message": (*ASKED, ABANDONED.format(1), ABANDONED.format(2), *NEXT),
        "from_checkpoint": REWOUND,
        "retry": NothingToRetryError,
    },
}

CELLS = [pytest.param(row, entry, id=f"{row}-{entry}") for row, entries in TABLE.items() for entry in entries]


@client_tool
def locate(city: str) -> str:
    """Where the client is."""
    raise NotImplementedError


class Remark(BaseModel):
    """The state of an agent that the session does not belong to."""

    remark: str = "I was here"


def _agent(*, broken: bool = False, pace: Any = None, at_work: Gate | None = None) -> AnyAgent:
    @tool
    async def work() -> str:
        """Work."""
        if at_work is not None:
            await at_work.wait()
        return "worked"

    def answer(request: ModelRequest) -> Step:
        last = request.messages[-1]
        match last.content if isinstance(last, UserMessage) else None:
            case "Break" if broken:
                return ModelRefusedError("scripted", "no credit")
            case "Ask":
                return reply("Asking.", calls=[call("locate", {"city": city}) for city in ("Rome", "Pisa")])
            case "Work":
                return call("work")
            case "Count":
                return "One two three four."
            case _:
                return "Fine."

    return Agent(name="table", model=ScriptedModel(answer, pace=pace), tools=[locate, work])


class _Situation:
    """Brings the session into the state a row of the table names."""

    def __init__(self, open_executor: OpenExecutor, parts: Backend) -> None:
        self._open = open_executor
        self._parts = parts

    async def arrange(self, row: str, helix: Executor) -> None:
        if row == "none":
            return
        await completed(await helix.execute(_agent(), "Hello", SESSION))
        arrangements: dict[str, Callable[[Executor], Awaitable[object]]] = {
            "running, lease alive": self._run_on,
            "running, lease expired": self._crash,
            "interrupted": self._interrupt,
            "paused": self._pause,
            "failed": self._fail,
            "aborted": self._abort,
            "suspended, something answered": self._answer,
            "suspended, nothing answered": self._ask,
        }
        if row in arrangements:
            await arrangements[row](helix)

    async def _run_on(self, helix: Executor) -> RunHandle[Any]:
        gate = PieceGate(3)
        handle = await helix.execute(_agent(pace=gate), "Count", SESSION)
        await gate.until_reached()
        return handle

    async def _crash(self, _: Executor) -> None:
        async with self._open(grace=0) as dying:
            handle = await self._run_on(dying)

            async def read() -> None:
                seen = ""
                async for chunk in handle.stream():
                    seen += chunk.delta if isinstance(chunk, TextDelta) else ""
                    if seen == SAID:
                        return

            await within(read())

    async def _interrupt(self, helix: Executor) -> None:
        handle = await self._run_on(helix)
        await handle.interrupt()
        await interrupted(handle)

    async def _abort(self, helix: Executor) -> None:
        handle = await self._run_on(helix)
        await handle.abort()
        await failed(handle)

    async def _pause(self, helix: Executor) -> None:
        gate = Gate()
        handle = await helix.execute(_agent(at_work=gate), "Work", SESSION)
        await gate.until_reached()
        await self._parts.state.compare_and_set_status(SESSION, ["active"], "paused")
        gate.opened.set()
        await interrupted(handle)

    async def _fail(self, helix: Executor) -> None:
        await failed(await helix.execute(_agent(broken=True), "Break", SESSION))

    async def _ask(self, helix: Executor) -> None:
        await suspended(await helix.execute(_agent(), "Ask", SESSION))

    async def _answer(self, helix: Executor) -> None:
        await self._ask(helix)
        await helix.submit_tool_result(SESSION, "call_2_1", ToolAnswer(result="here"))


async def _enter(
    helix: Executor, entry: Entry, checkpoint: str | None, agent: AnyAgent | None = None
) -> RunHandle[Any]:
    agent = agent or _agent()
    match entry:
        case "execute":
            return await helix.execute(agent, "Next", SESSION)
        case "resume":
            return await helix.resume(agent, SESSION)
        case "with_message":
            return await helix.resume(agent, SESSION, mode="with_message", message="Next")
        case "from_checkpoint":
            return await helix.resume(agent, SESSION, mode="from_checkpoint", checkpoint_id=checkpoint, message="Again")
        case "retry":
            return await helix.retry(agent, SESSION)


class EntryTableContract(ScenarioContract):
    """Each cell of the table, entered by a process other than the one that left the session in this state."""

    @pytest.mark.parametrize(("row", "entry"), CELLS)
    async def test_an_entry_does_what_the_table_says(
        self, open_executor: OpenExecutor, parts: Backend, row: str, entry: Entry
    ) -> None:
        expected = TABLE[row][entry]
        async with open_executor(grace=0) as before:
            await _Situation(open_executor, parts).arrange(row, before)
            async with open_executor() as helix:
                if isinstance(expected, tuple):
                    await self._goes_on(helix, entry, expected)
                else:
                    await self._refuses(helix, entry, expected)

    async def _goes_on(self, helix: Executor, entry: Entry, expected: tuple[str, ...]) -> None:
        exists = (await helix.sessions.list()).total > 0
        runs = await runs_of(helix) if exists else []
        if exists:
            refusal = await helix.can_resume(_agent(), SESSION)
            assert entry != "resume" or refusal is None
        handle = await _enter(helix, entry, await self._first_checkpoint(helix) if exists else None)
        if expected[-1:] == STILL_OPEN:
            assert (await suspended(handle)).tool_call_ids == ("call_2_2",)
            assert lines(await transcript(helix)) == list(expected)
        else:
            assert await completed(handle) == "Fine."
            assert await spoken(helix) == list(expected)
            assert (await helix.list_pending()).items == ()
        after = await runs_of(helix)
        assert len(after) == len(runs) + 1
        assert (after[-1].turn, after[-1].run_id) == (len(after), handle.run_id)
        assert after[-1].previous_run_id == (runs[-1].run_id if runs else None)
        assert not [run for run in after if run.status == "running"]
        assert after[-1].step_count <= 2

    async def _refuses(self, helix: Executor, entry: Entry, expected: type[HelixError]) -> None:
        exists = (await helix.sessions.list()).total > 0
        before = (await helix.sessions.get(SESSION), await runs_of(helix)) if exists else None
        checkpoint = await self._first_checkpoint(helix) if exists else "nowhere"
        with pytest.raises(expected):
            await _enter(helix, entry, checkpoint)
        if entry == "resume":
            assert isinstance(await helix.can_resume(_agent(), SESSION), expected)
        if before is None:
            assert (await helix.sessions.list()).total == 0
        else:
            assert (await helix.sessions.get(SESSION), await runs_of(helix)) == before

    @pytest.mark.parametrize(
        ("row", "entry"),
        [
            ("completed", "execute"),
            ("completed", "from_checkpoint"),
            ("failed", "retry"),
            ("suspended, something answered", "resume"),
        ],
    )
    async def test_no_other_agent_goes_on_with_a_session(
        self, helix: Executor, open_executor: OpenExecutor, parts: Backend, row: str, entry: Entry
    ) -> None:
        await _Situation(open_executor, parts).arrange(row, helix)
        stranger = Agent(name="stranger", model=ScriptedModel(["I am the stranger."]), state=Remark)
        before = (await helix.sessions.get(SESSION), await runs_of(helix))
        with pytest.raises(AgentMismatchError, match="started by agent 'table', not by 'stranger'"):
            await _enter(helix, entry, await self._first_checkpoint(helix), stranger)
        assert (await helix.sessions.get(SESSION), await runs_of(helix)) == before

    async def test_no_other_agent_goes_on_with_a_branch(self, helix: Executor) -> None:
        await completed(await helix.execute(_agent(), "Hello", SESSION))
        stranger = Agent(name="stranger", model=ScriptedModel(["I am the stranger."]))
        point = BranchPoint(from_session_id=SESSION, checkpoint_id=await self._first_checkpoint(helix))
        with pytest.raises(AgentMismatchError, match="started by agent 'table', not by 'stranger'"):
            await helix.execute(stranger, "Next", "s-2", branch=point)
        assert (await helix.sessions.list()).total == 1

    async def _first_checkpoint(self, helix: Executor) -> str:
        return (await helix.sessions.checkpoints(SESSION)).items[-1].checkpoint_id

    async def test_a_message_that_came_with_a_resume_follows_the_calls_that_were_still_open(
        self, helix: Executor, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        await _Situation(open_executor, parts).arrange("suspended, something answered", helix)
        await suspended(await _enter(helix, "with_message", None))
        await helix.submit_tool_result(SESSION, "call_2_2", ToolAnswer(result="there"))
        async with open_executor() as other:
            assert await completed(await _enter(other, "resume", None)) == "Fine."
            assert await spoken(other) == [*ASKED, ANSWERED, "result locate#call_2_2: there", *NEXT]

    async def test_a_refusal_to_resume_a_failed_run_names_retry(
        self, helix: Executor, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        await _Situation(open_executor, parts).arrange("failed", helix)
        with pytest.raises(NothingToResumeError, match="retry"):
            await _enter(helix, "resume", None)

    async def test_the_run_whose_process_died_is_settled_by_the_entry_that_replaces_it(
        self, helix: Executor, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        await _Situation(open_executor, parts).arrange("running, lease expired", helix)
        await completed(await _enter(helix, "execute", None))
        assert [run.status for run in await runs_of(helix)] == ["completed", "interrupted", "completed"]
