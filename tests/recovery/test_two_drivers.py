"""Two living drivers of one session: whoever comes second, or wakes up too late, changes nothing."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from helix_agents.agent.agent import Agent
from helix_agents.agent.client_tools import client_tool
from helix_agents.agent.sub_agents import sub_agent_tool
from helix_agents.domain.messages import AssistantMessage, UserMessage
from helix_agents.domain.pending import AnswerAccepted, ApprovalAnswer, PendingFilter, ToolAnswer
from helix_agents.domain.results import Completed, Suspended
from helix_agents.ports.backend import open_backend
from helix_agents.runtimes.executor.handle import RunHandle
from helix_agents.runtimes.in_process import Executor
from helix_agents.testing import ScriptedModel, call, reply
from helix_agents.testing.seams import HoldingSeam
from helix_agents.testing.workers import Processes
from tests.recovery import rival_jobs
from tests.recovery.reference_conversation import Traces, check_end
from tests.recovery.rival_jobs import GATEKEEPER, Meeting, executor

RACES = 100
EXECUTE_RACES = 20
MOST_STATEMENTS = 250

# What the one who comes second may be told: the run is going, it was begun meanwhile, or it is over already.
REFUSALS = {
    "AgentAlreadyRunningError",
    "NothingToResumeError",
    "RunConflictError",
    "StaleStateError",
    "SupersededError",
}


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes(preload=[rival_jobs.MODULE, "helix_agents.backends.sqlite"]) as processes:
        yield processes


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder / 'helix.db'}?synchronous=normal"


async def race(processes: Processes, folder: Path, job: str, sessions: int) -> list[tuple[str, str]]:
    """What both processes met, race by race."""
    meeting = Meeting.prepare(folder / "meeting")
    both = {"url": url_of(folder), "traces": str(folder / "traces"), "meeting": str(meeting), "sessions": sessions}
    outcomes = await processes.run(f"{rival_jobs.MODULE}:{job}", [{**both, "who": who} for who in (0, 1)])
    assert [outcome.error for outcome in outcomes] == [None, None]
    return list(zip(*(outcome.value for outcome in outcomes), strict=True))


async def test_of_two_processes_that_resume_a_session_at_once_one_wins_and_the_tool_runs_once(
    tmp_path: Path, processes: Processes
):
    traces = tmp_path / "traces"
    async with executor(url_of(tmp_path), traces, GATEKEEPER) as helix:

        async def suspend_and_answer(session_id: str) -> None:
            assert isinstance(await (await helix.execute(GATEKEEPER, "Go.", session_id)).result(), Suspended)
            await helix.submit_tool_result(session_id, "publish", ApprovalAnswer(approved=True))

        await asyncio.gather(*(suspend_and_answer(f"s-{number}") for number in range(RACES)))
    for ends in await race(processes, tmp_path, "resume_each", RACES):
        assert sorted(ends)[1] == "completed"
        assert sorted(ends)[0] in REFUSALS
    assert Traces(traces).counted() == {f"s-{number}": 1 for number in range(RACES)}
    async with executor(url_of(tmp_path), traces, GATEKEEPER) as helix:
        for number in range(RACES):
            runs = (await helix.sessions.runs(f"s-{number}")).items
            assert [(run.turn, run.status) for run in runs] == [(2, "completed"), (1, "suspended_client_tool")]


async def test_of_two_processes_that_execute_a_session_at_once_one_runs_and_one_is_refused(
    tmp_path: Path, processes: Processes
):
    for ends in await race(processes, tmp_path, "execute_each", EXECUTE_RACES):
        assert sorted(ends) == ["AgentAlreadyRunningError", "completed"]
    async with executor(url_of(tmp_path), tmp_path / "traces") as helix:
        for number in range(EXECUTE_RACES):
            page = await helix.sessions.messages(f"x-{number}")
            kinds = [type(stored.message) for stored in reversed(page.items)]
            assert kinds == [UserMessage, AssistantMessage] * 2


async def test_a_process_that_was_frozen_and_replaced_writes_nothing_when_it_wakes(
    tmp_path: Path, processes: Processes
):
    moments: list[dict[str, Any]] = [
        # In the middle of the first reply, whose beginning readers have seen.
        {"piece": 2},
        *({"effect": number, "side": side} for number in (1, 2, 3, 4) for side in ("before", "after")),
    ]
    ends: list[dict[str, Any]] = []
    for number, moment in enumerate(moments):
        folder = tmp_path / str(number)
        folder.mkdir()
        both = {"folder": str(folder), "url": url_of(folder)}
        ends += [{**both, "who": "frozen", **moment}, {**both, "who": "replacing"}]
    outcomes = await processes.run(f"{rival_jobs.MODULE}:freeze_or_replace", ends)
    assert [outcome.error for outcome in outcomes] == [None] * len(ends)
    for number, (frozen, replacing) in enumerate(zip(outcomes[::2], outcomes[1::2], strict=True)):
        assert replacing.value == [], f"frozen at {moments[number]} it wrote to {replacing.value}"
        assert frozen.value == "suspended_step_partial"
        async with await open_backend(url_of(tmp_path / str(number))) as backend:
            await check_end(backend, Traces(tmp_path / str(number) / "traces"))


# -- an answer that comes while the run is about to wait for it


@client_tool
def ask(what: str) -> str:
    """Ask the client something."""
    raise NotImplementedError


CURIOUS = Agent(
    name="curious",
    description="Asks the client for name and age.",
    model=ScriptedModel(
        [
            reply(calls=[call("ask", {"what": "name"}, id="name"), call("ask", {"what": "age"}, id="age")]),
            "Thank you.",
        ]
    ),
    tools=[ask],
)
DELEGATING = Agent(
    name="delegating",
    model=ScriptedModel([call("subagent__curious", {"message": "Ask."}), "Thank you both."]),
    tools=[sub_agent_tool(CURIOUS)],
)


class HeldWrites:
    """
    Holds the n-th statement of the threads that write and read; what the event loop itself reads goes through.

    It counts from the first statement that begins with `since`. What comes before differs from run to run: a read may
    come sooner or later, two writes may share a transaction.
    """

    def __init__(self, since: str) -> None:
        self.held = HoldingSeam()
        self._since = since
        self._counting = False
        self._number = 0
        self._within_writes: list[bool] = []

    def __call__(self, statement: str, /) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._counting = self._counting or statement.startswith(self._since)
            if self._counting:
                writes = threading.current_thread().name.startswith("helix-write")
                self._within_writes.append(writes and statement != "COMMIT")
                self.held(statement)

    def arm(self, number: int) -> None:
        """Hold the n-th statement from here on."""
        self._counting = False
        self._within_writes.clear()
        self._number = number
        self.held.arm(after=number)

    def keeps_others_waiting(self) -> bool:
        """Whether that statement lies within a transaction that writes: nobody else can write while it is held."""
        return len(self._within_writes) < self._number or self._within_writes[self._number - 1]


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncGenerator[Executor]:
    async with await open_backend(url, **options) as backend:
        helix = Executor(
            state=backend.state,
            streams=backend.streams,
            usage=backend.usage,
            agents=[CURIOUS, DELEGATING],
            janitor_seconds=None,
            lease_ms=60_000,
        )
        async with helix:
            yield helix


async def answer(helix: Executor, session_id: str, most: int = 2) -> list[str]:
    """Answer what waits below a session; says what was needed next, each time."""
    waiting = await helix.list_pending(PendingFilter(root_session_id=session_id))
    told: list[str] = []
    for row in waiting.items[:most]:
        outcome = await helix.submit_tool_result(session_id, row.tool_call_id, ToolAnswer(result=row.input["what"]))
        assert isinstance(outcome, AnswerAccepted)
        told.append(outcome.next)
    return told


@pytest.mark.parametrize("suspends", ["the run itself", "its child and then the run"])
async def test_an_answer_that_lands_at_any_statement_of_a_suspending_run_is_not_lost(tmp_path: Path, suspends: str):
    own = suspends == "the run itself"
    agent = CURIOUS if own else DELEGATING
    # Before its child asks there is nothing to answer.
    since = "" if own else "INSERT INTO __agents_pending_calls"
    told: set[str] = set()
    async with opened(url_of(tmp_path)) as elsewhere:
        for number in range(1, MOST_STATEMENTS):
            session_id = f"s-{number}"
            if own:
                await (await elsewhere.execute(agent, "Go.", session_id)).result()
                await answer(elsewhere, session_id, most=1)
            seam = HeldWrites(since)
            async with opened(url_of(tmp_path), seam=seam) as helix:
                seam.arm(number)
                entry = helix.resume(agent, session_id) if own else helix.execute(agent, "Go.", session_id)
                ending = asyncio.create_task(_result_of(entry))
                held = asyncio.create_task(seam.held.wait_until_held())
                await asyncio.wait((held, ending), return_when=asyncio.FIRST_COMPLETED)
                answering = asyncio.create_task(answer(elsewhere, session_id))
                # Held in a transaction, the run keeps the answer waiting until it is released; else it is stored now.
                await asyncio.wait((answering,), timeout=0.02 if seam.keeps_others_waiting() else 10)
                seam.held.release()
                last_told = await answering
                result = await ending
                await held
            told |= set(last_told)
            if last_told[-1:] == ["nothing"]:
                unused = PendingFilter(root_session_id=session_id, states=("answered",))
                assert (await elsewhere.list_pending(unused)).items == (), f"lost at statement {number}"
            if isinstance(result, Suspended):
                await answer(elsewhere, session_id)
                result = await (await elsewhere.resume(agent, session_id)).result()
            assert isinstance(result, Completed)
            if not seam.held.has_held:
                break
        else:
            raise AssertionError(f"a run of more than {MOST_STATEMENTS} statements")
    assert {"nothing", "resume"} <= told


async def _result_of(entry: Awaitable[RunHandle[Any]]) -> Any:
    return await (await entry).result()
