"""Leaving an executor while its runs go on: steps get their grace, and another executor continues at once."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.tools import tool
from helix_agents.domain.chunks import TextDelta
from helix_agents.domain.errors import AgentAlreadyRunningError, ExecutorClosedError
from helix_agents.domain.messages import AssistantMessage, ToolMessage
from helix_agents.domain.results import Completed, Suspended
from helix_agents.ports.backend import open_backend
from helix_agents.ports.llm import ModelEvent, TextPiece
from helix_agents.ports.streams import FlushPolicy
from helix_agents.runtimes.executor import handle
from helix_agents.runtimes.executor.handle import RunHandle
from helix_agents.runtimes.in_process import Executor
from helix_agents.system import SystemClock
from helix_agents.testing import ScriptedModel, call, reply
from helix_agents.testing.recording import Recorder, RecordingExecutor, StopAt

SESSION = "s-1"
STEPS = 3
SECONDS = 10.0
"""How long any wait of these tests may take; none of them should come near."""


class Work:
    """A tool whose every run can be watched and held."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self.runs = 0
        self.cancelled = 0

    def agent(self, **settings: Any) -> Agent[Any, str, Any]:
        """An agent that works in three steps and then says that it is done."""

        @tool
        async def work(part: int) -> str:
            """Do a part of the work."""
            self.runs += 1
            self.begun.set()
            try:
                await self.may_end.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            return f"part {part}"

        script = [call("work", {"part": number}) for number in range(1, STEPS + 1)]
        return Agent(name="worker", model=ScriptedModel([*script, "All done."], **settings), tools=[work])


def opened(folder: Path, agent: AnyAgent, **settings: Any) -> Any:
    # The lease is long: whoever continues at once does so because it was given up.
    url = f"sqlite:///{folder / 'helix.db'}?synchronous=normal"
    return Executor.open(url, agents=[agent], janitor_seconds=None, lease_ms=3_600_000, **settings)


async def continued(folder: Path, agent: AnyAgent) -> None:
    """Another executor takes the run over at once and brings it to its end."""
    async with opened(folder, agent) as helix, asyncio.timeout(SECONDS):
        recovered = await helix.recover()
        assert len(recovered.run_ids) == 1
        run = await helix.get_handle(agent, SESSION)
        assert run is not None
        assert isinstance(await run.result(), Completed)
        page = await helix.sessions.messages(SESSION)
        results = [each.message.content for each in reversed(page.items) if isinstance(each.message, ToolMessage)]
        assert results == ["part 1", "part 2", "part 3"]
        [record] = (await helix.sessions.runs(SESSION)).items
        assert (record.status, record.attempt) == ("completed", 2)


async def when(condition: Callable[[], bool]) -> None:
    """Let the loop turn until something holds."""
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_a_step_in_hand_is_committed_and_the_rest_is_left_to_another_executor(tmp_path: Path):
    work = Work()
    agent = work.agent()
    async with asyncio.timeout(SECONDS):
        async with opened(tmp_path, agent, grace=SECONDS) as helix:
            run = await helix.execute(agent, "Work.", SESSION)
            await work.begun.wait()
            asyncio.get_running_loop().call_soon(work.may_end.set)
        with pytest.raises(ExecutorClosedError):
            await run.result()
        with pytest.raises(ExecutorClosedError):
            await helix.execute(agent, "More.", "s-2")
    assert (work.runs, work.cancelled) == (1, 0)
    await continued(tmp_path, agent)
    # The step that had its grace was not done again.
    assert work.runs == STEPS


async def test_what_a_run_had_opened_is_closed_before_the_executor_is_gone(tmp_path: Path):
    work = Work()
    agent = work.agent()
    closed: list[str] = []

    @asynccontextmanager
    async def deps(session_id: str, user_id: str | None) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            # As a client does that takes its leave of a server.
            await asyncio.sleep(0.1)
            closed.append(session_id)

    async with asyncio.timeout(SECONDS), opened(tmp_path, agent, grace=0.0, deps=deps) as helix:
        await helix.execute(agent, "Work.", SESSION)
        await work.begun.wait()
    assert closed == [SESSION]


async def test_an_executor_that_was_not_entered_begins_nothing():
    """Nobody renews its lease, so others would take its runs for a dead process'."""
    async with await open_backend("memory://") as backend:
        helix = Executor(state=backend.state, streams=backend.streams, usage=backend.usage)
        with pytest.raises(ExecutorClosedError, match="use it inside `async with"):
            await helix.execute(Work().agent(), "Work.", SESSION)
        assert not await backend.state.session_exists(SESSION)


async def test_an_executor_that_is_open_already_is_entered_as_it_is_and_left_for_good(tmp_path: Path):
    work = Work()
    agent = work.agent()
    before = set(threading.enumerate())
    async with asyncio.timeout(SECONDS):
        helix = await opened(tmp_path, agent, grace=0.0)
        async with helix:
            await helix.execute(agent, "Work.", SESSION)
            await work.begun.wait()
        with pytest.raises(ExecutorClosedError):
            await helix.__aenter__()
    # Nobody is left who would renew its lease.
    assert not [each.name for each in set(threading.enumerate()) - before if each.name.startswith("helix-lease")]
    work.may_end.set()
    await continued(tmp_path, agent)


async def test_a_step_that_outlasts_the_grace_is_done_again_elsewhere(tmp_path: Path):
    work = Work()
    agent = work.agent()
    async with asyncio.timeout(SECONDS), opened(tmp_path, agent, grace=0.05) as helix:
        await helix.execute(agent, "Work.", SESSION)
        await work.begun.wait()
    assert (work.runs, work.cancelled) == (1, 1)
    work.may_end.set()
    await continued(tmp_path, agent)
    assert work.runs == STEPS + 1


@pytest.mark.parametrize("grace", [0.0, 0.05])
async def test_nobody_waits_for_a_call_that_must_not_run_twice_and_that_was_let_go_of(tmp_path: Path, grace: float):
    begun, runs = asyncio.Event(), 0

    @tool(effect="once")
    async def pay() -> str:
        """Pay."""
        nonlocal runs
        runs += 1
        begun.set()
        await asyncio.Event().wait()
        return "paid"

    agent = Agent(name="payer", model=ScriptedModel([call("pay", {}, id="pay")]), tools=[pay])
    async with asyncio.timeout(SECONDS), opened(tmp_path, agent, grace=grace) as helix:
        await helix.execute(agent, "Pay.", SESSION)
        await begun.wait()
    # The ledger's lease lasts longer than this may take.
    async with opened(tmp_path, agent) as helix, asyncio.timeout(SECONDS):
        await helix.recover()
        run = await helix.get_handle(agent, SESSION)
        assert isinstance(await run.result(), Suspended)
        [asked] = (await helix.list_pending()).items
        assert (asked.tool_call_id, asked.reason) == ("pay", "unknown_outcome")
    assert runs == 1


async def test_a_call_that_goes_on_by_itself_stays_taken(tmp_path: Path):
    begun, may_end = threading.Event(), threading.Event()

    @tool(effect="once")
    def pay() -> str:
        """Pay, on a thread that nobody can call back."""
        begun.set()
        may_end.wait(SECONDS)
        return "paid"

    agent = Agent(name="payer", model=ScriptedModel([call("pay", {}, id="pay")]), tools=[pay])
    async with asyncio.timeout(SECONDS), await open_backend(f"sqlite:///{tmp_path / 'helix.db'}") as parts:
        parts_of: dict[str, Any] = {"state": parts.state, "streams": parts.streams, "usage": parts.usage}
        async with Executor(**parts_of, janitor_seconds=None, grace=0.0) as helix:
            await helix.execute(agent, "Pay.", SESSION)
            await asyncio.to_thread(begun.wait)
        [effect] = await parts.state.list_effects(SESSION)
        may_end.set()
    assert effect.state == "intent"
    assert effect.lease_expires_at > SystemClock().now_ms()


async def test_who_does_not_wait_for_the_grace_loses_nothing_either(tmp_path: Path):
    work = Work()
    agent = work.agent()

    async def stay() -> None:
        async with opened(tmp_path, agent, grace=SECONDS) as helix:
            await helix.execute(agent, "Work.", SESSION)
            await work.begun.wait()
            await asyncio.Event().wait()

    staying = asyncio.create_task(stay())
    await work.begun.wait()
    # The first asks it to leave, the second to leave now.
    for _ in range(2):
        await asyncio.sleep(0)
        staying.cancel()
        await asyncio.wait((staying,), timeout=0.05)
    with pytest.raises(asyncio.CancelledError):
        await staying
    work.may_end.set()
    await continued(tmp_path, agent)


async def test_nobody_else_continues_a_run_while_its_executor_is_in_its_grace(tmp_path: Path):
    work = Work()
    agent = work.agent()
    async with opened(tmp_path, agent, grace=SECONDS) as other, asyncio.timeout(SECONDS):
        helix = await opened(tmp_path, agent, grace=SECONDS).__aenter__()
        await helix.execute(agent, "Work.", SESSION)
        await work.begun.wait()
        leaving = asyncio.create_task(helix.close())
        await asyncio.sleep(0)
        assert (await other.recover()).run_ids == ()
        with pytest.raises(AgentAlreadyRunningError):
            await other.execute(agent, "More.", SESSION)
        work.may_end.set()
        await leaving
        assert len((await other.recover()).run_ids) == 1


async def test_cancelling_the_caller_does_not_stop_its_run(tmp_path: Path):
    work = Work()
    agent = work.agent()
    async with opened(tmp_path, agent) as helix, asyncio.timeout(SECONDS):

        async def call_and_wait() -> None:
            run = await helix.execute(agent, "Work.", SESSION)
            await run.result()

        caller = asyncio.create_task(call_and_wait())
        await work.begun.wait()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        work.may_end.set()
        run = await helix.get_handle(agent, SESSION)
        assert isinstance(await run.result(), Completed)
    assert (work.runs, work.cancelled) == (STEPS, 0)


async def test_cancelling_a_reader_does_not_stop_its_run(tmp_path: Path):
    work = Work()
    agent = work.agent()
    work.may_end.set()
    may_speak = asyncio.Event()

    async def held(event: ModelEvent) -> None:
        await may_speak.wait()

    agent = work.agent(pace=held)
    async with opened(tmp_path, agent) as helix, asyncio.timeout(SECONDS):
        run = await helix.execute(agent, "Work.", SESSION)

        async def read() -> None:
            async for _ in run.stream():
                pass

        reader = asyncio.create_task(read())
        await asyncio.sleep(0)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        may_speak.set()
        assert isinstance(await run.result(), Completed)


async def test_a_reader_does_not_wait_for_the_end_that_a_dead_process_owes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(handle, "LOOK_FOR_END", 0.01)
    work = Work()
    work.may_end.set()
    may_speak = asyncio.Event()

    async def held(event: ModelEvent) -> None:
        await may_speak.wait()

    agent = work.agent(pace=held)
    url = f"sqlite:///{tmp_path / 'helix.db'}?synchronous=normal"
    # Each of the three parts takes three effects, then the last reply and its commit.
    last_commit = 1 + 3 * STEPS + 2
    recorder = Recorder(StopAt(effect=last_commit, side="after"))
    settings: dict[str, Any] = {"agents": [agent], "janitor_seconds": None}
    async with asyncio.timeout(SECONDS):
        async with Executor.open(url, **settings) as elsewhere:
            recorded: dict[str, Any] = {"recorder": recorder, **settings}
            async with RecordingExecutor.open(url, **recorded) as dying:
                await dying.execute(agent, "Work.", SESSION)
                run: RunHandle[str] | None = await elsewhere.get_handle(agent, SESSION)
                assert run is not None
                reading = asyncio.create_task(_text_of(run))
                may_speak.set()
                await when(lambda: recorder.has_stopped)
            assert recorder.kinds[-1] == "commit"
            assert await reading == "All done."
            page = await elsewhere.sessions.messages(SESSION, limit=1)
            assert isinstance(page.items[0].message, AssistantMessage)


async def _text_of(run: RunHandle[Any]) -> str:
    return "".join([piece async for piece in run.text()])


async def test_what_a_cancelled_run_had_said_is_stored_before_the_executor_is_gone(tmp_path: Path):
    said = asyncio.Event()

    async def pace(event: ModelEvent) -> None:
        if isinstance(event, TextPiece) and event.delta == "its f":
            said.set()
            await asyncio.Event().wait()

    agent = Agent(name="speaker", model=ScriptedModel(["It waits for ever."], chunk=5, pace=pace))
    never = FlushPolicy(interval_ms=3_600_000)
    url = f"sqlite:///{tmp_path / 'helix.db'}?synchronous=normal"
    async with await open_backend(url, flush=never) as parts:
        streams = parts.streams
        helix = Executor(state=parts.state, streams=streams, usage=parts.usage, janitor_seconds=None, grace=0.0)
        async with asyncio.timeout(SECONDS), helix:
            await helix.execute(agent, "Speak.", SESSION)
            await said.wait()
            assert [chunk for chunk in await streams.get_all_chunks(SESSION) if isinstance(chunk, TextDelta)] == []
        spoken = [chunk.delta for chunk in await streams.get_all_chunks(SESSION) if isinstance(chunk, TextDelta)]
        assert spoken == ["It wa"]


async def test_of_a_reply_that_was_cut_off_the_words_are_kept_and_the_thoughts_are_not(tmp_path: Path):
    """No provider takes a thought back that is not whole."""
    said = asyncio.Event()

    async def pace(event: ModelEvent) -> None:
        if isinstance(event, TextPiece) and event.delta == "its f":
            said.set()
            await asyncio.Event().wait()

    script = [reply("It waits for ever.", thinking="How long?"), *["Well."] * 2]
    agent = Agent(name="speaker", model=ScriptedModel(script, chunk=5, pace=pace))
    async with opened(tmp_path, agent, grace=0.0) as helix, asyncio.timeout(SECONDS):
        await helix.execute(agent, "Speak.", SESSION)
        await said.wait()
    async with opened(tmp_path, agent) as helix, asyncio.timeout(SECONDS):
        run = await helix.execute(agent, "And?", SESSION)
        assert isinstance(await run.result(), Completed)
        kept = (await helix.sessions.messages(SESSION)).items[-2].message
    assert isinstance(kept, AssistantMessage)
    assert (kept.text, kept.thinking, kept.interrupted) == ("It wa", (), "crash")
