"""Messages that wait outlive the process that sent them, and of many that look one begins each."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from helix_agents import Agent, Executor, ScriptedModel, tool
from helix_agents.agent.agent import AnyAgent
from helix_agents.domain.commits import RunStartCommitted, StartRun
from helix_agents.domain.errors import QueuedTurnDroppedError, StateSchemaChangedError, StoreUnavailableError
from helix_agents.domain.queued import QueuedTurn
from helix_agents.domain.sessions import InterruptSet, NothingRunning
from helix_agents.ports.backend import open_backend
from helix_agents.runtimes.executor import starting
from helix_agents.runtimes.executor.handle import RunHandle
from helix_agents.testing import call
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.stage import Gate, PieceGate, completed, interrupted, lines, within
from helix_agents.testing.workers import Processes
from tests.recovery import queue_jobs
from tests.recovery.deaths import settings_on
from tests.recovery.queue_jobs import MESSAGES, SESSION


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes(preload=[queue_jobs.MODULE, "helix_agents.backends.sqlite"]) as processes:
        yield processes


async def test_what_waits_behind_a_turn_whose_process_is_killed_is_answered_by_others_once_and_in_order(
    tmp_path: Path, processes: Processes
):
    url = f"sqlite:///{tmp_path / 'helix.db'}?synchronous=normal"
    [killed] = await processes.run(f"{queue_jobs.MODULE}:leave", [{"url": url}])
    assert killed.was_killed, killed.error
    went_on = await processes.run(f"{queue_jobs.MODULE}:take_up", [{"url": url}] * 4)
    assert [each.error for each in went_on] == [None] * 4
    async with await open_backend(url) as parts:
        runs = (await parts.state.list_runs(SESSION)).items[::-1]
        assert [run.attempt for run in runs] == [2, 1, 1, 1]
        said = lines(stored.message for stored in await parts.state.load_transcript(SESSION))
        assert [line for line in said if line.startswith("user")] == [f"user: {text}" for text in MESSAGES]
        assert [line for line in said if line == "assistant: Yes."] == ["assistant: Yes."] * 4
        assert await parts.state.list_queues() == ()


def clerk(gate: PieceGate) -> AnyAgent:
    return Agent(name="clerk", model=ScriptedModel(lambda request: f"{len(request.messages)}", pace=gate))


async def test_the_same_message_sent_twice_never_waits_for_the_turn_that_it_began(monkeypatch: pytest.MonkeyPatch):
    """One caller saw the turn before it going and was slow to queue; the other found the session free."""
    words, slow = PieceGate(1), Gate()
    agent = clerk(words)
    async with await open_backend("memory://sent-twice") as parts, Executor(**settings_on(parts, agent)) as helix:
        queue_turn = parts.state.queue_turn

        async def held(turn: QueuedTurn) -> QueuedTurn | None:
            await slow.wait()
            return await queue_turn(turn)

        monkeypatch.setattr(parts.state, "queue_turn", held)

        def send() -> Coroutine[Any, Any, RunHandle[str]]:
            return helix.execute(agent, "Two", SESSION, idempotency_key="two", if_running="enqueue")

        first = await helix.execute(agent, "One", SESSION)
        await words.until_reached()
        late = asyncio.create_task(send())
        await slow.until_reached()
        words.opened.set()
        await completed(first)
        begun = await send()
        slow.opened.set()
        again = await within(late)
        assert (again.run_id, again.was_queued, begun.was_queued) == (begun.run_id, False, False)
        assert await completed(again) == await completed(begun) == "3"
        assert await helix.sessions.queued(SESSION) == ()
        assert await completed(await helix.execute(agent, "Three", SESSION, if_running="enqueue")) == "5"


async def test_a_turn_that_comes_while_its_queue_is_found_empty_begins(monkeypatch: pytest.MonkeyPatch):
    words, look = PieceGate(1), Gate()
    agent = clerk(words)
    async with await open_backend("memory://found-empty") as parts, Executor(**settings_on(parts, agent)) as helix:
        list_queued = parts.state.list_queued

        async def held(session_id: str) -> tuple[QueuedTurn, ...]:
            found = await list_queued(session_id)
            if not found:
                await look.wait()
            return found

        monkeypatch.setattr(parts.state, "list_queued", held)
        await helix.execute(agent, "One", SESSION)
        await words.until_reached()
        await helix.execute(agent, "Two", SESSION, if_running="enqueue")
        words.opened.set()
        await look.until_reached()
        slow = PieceGate(1)
        helix.agents.replace(agent := clerk(slow))
        await helix.execute(agent, "Three", SESSION)
        await slow.until_reached()
        fourth = await helix.execute(agent, "Four", SESSION, if_running="enqueue")
        look.opened.set()
        slow.opened.set()
        assert await completed(fourth) == "7"


async def test_a_message_goes_on_with_what_a_stop_held_though_its_process_could_not_look(
    monkeypatch: pytest.MonkeyPatch,
):
    """That somebody went on is in the store with the message, so that any process begins what waits."""
    words = PieceGate(1)
    agent = clerk(words)
    async with await open_backend("memory://could-not-look") as parts:
        async with Executor(**settings_on(parts, agent)) as helix:
            first = await helix.execute(agent, "One", SESSION)
            await words.until_reached()
            await helix.execute(agent, "Two", SESSION, if_running="enqueue")
            await helix.interrupt(SESSION)
            await interrupted(first)
            await helix.idle()
            queue_turn = parts.state.queue_turn

            async def away(session_id: str) -> tuple[QueuedTurn, ...]:
                raise StoreUnavailableError("memory", "it is away")

            async def queue_and_leave(turn: QueuedTurn) -> QueuedTurn | None:
                stored = await queue_turn(turn)
                monkeypatch.setattr(parts.state, "list_queued", away)
                return stored

            monkeypatch.setattr(parts.state, "queue_turn", queue_and_leave)
            third = await helix.execute(agent, "Three", SESSION, if_running="enqueue")
            assert third.was_queued
        monkeypatch.undo()
        async with Executor(**settings_on(parts, clerk(PieceGate(9)))) as other:
            assert (await other.sweep()).dequeued == 1
            await other.idle()
            assert await other.sessions.queued(SESSION) == ()
            said = lines(stored.message for stored in await parts.state.load_transcript(SESSION))
            assert [line for line in said if line.startswith("user")] == ["user: One", "user: Two", "user: Three"]


@pytest.mark.parametrize("how", ["execute", "resume"])
async def test_what_a_stop_held_begins_though_whoever_went_on_left_at_that_moment(
    how: str, monkeypatch: pytest.MonkeyPatch
):
    words, starts = PieceGate(1), Gate()
    agent = clerk(words)
    async with (
        await open_backend("memory://left-at-that-moment") as parts,
        Executor(**settings_on(parts, agent)) as helix,
    ):
        first = await helix.execute(agent, "One", SESSION)
        await words.until_reached()
        second = await helix.execute(agent, "Two", SESSION, if_running="enqueue")
        await helix.interrupt(SESSION)
        await interrupted(first)
        await helix.idle()
        start_run = parts.state.start_run

        async def slow(start: StartRun) -> RunStartCommitted:
            started = await start_run(start)
            await starts.wait()
            return started

        monkeypatch.setattr(parts.state, "start_run", slow)
        words.opened.set()
        goes_on = helix.execute(agent, "Three", SESSION) if how == "execute" else helix.resume(agent, SESSION)
        leaves = asyncio.create_task(goes_on)
        await starts.until_reached()
        leaves.cancel()
        await asyncio.wait((leaves,))
        starts.opened.set()
        assert await completed(second)
        assert await helix.sessions.queued(SESSION) == ()


async def test_a_turn_begins_whose_sender_left_while_it_was_queued(monkeypatch: pytest.MonkeyPatch):
    words, slow = PieceGate(1), Gate()
    agent = clerk(words)
    async with await open_backend("memory://sender-left") as parts, Executor(**settings_on(parts, agent)) as helix:
        await helix.execute(agent, "One", SESSION)
        await words.until_reached()
        queue_turn = parts.state.queue_turn

        async def slowly(turn: QueuedTurn) -> QueuedTurn | None:
            stored = await queue_turn(turn)
            await slow.wait()
            return stored

        monkeypatch.setattr(parts.state, "queue_turn", slowly)
        leaves = asyncio.create_task(helix.execute(agent, "Two", SESSION, if_running="enqueue"))
        await slow.until_reached()
        [waits] = await helix.sessions.queued(SESSION)
        leaves.cancel()
        await asyncio.wait((leaves,))
        slow.opened.set()
        words.opened.set()
        second = await helix.get_handle(agent, SESSION, waits.run_id)
        assert second is not None
        assert await completed(second)


async def test_a_turn_begins_whose_sender_did_not_hear_that_it_was_queued(monkeypatch: pytest.MonkeyPatch):
    words = PieceGate(1)
    agent = clerk(words)
    async with await open_backend("memory://did-not-hear") as parts, Executor(**settings_on(parts, agent)) as helix:
        await helix.execute(agent, "One", SESSION)
        await words.until_reached()
        queue_turn = parts.state.queue_turn

        async def unheard(turn: QueuedTurn) -> QueuedTurn | None:
            await queue_turn(turn)
            raise StoreUnavailableError("memory", "the answer was lost")

        monkeypatch.setattr(parts.state, "queue_turn", unheard)
        with pytest.raises(StoreUnavailableError):
            await helix.execute(agent, "Two", SESSION, if_running="enqueue")
        [waits] = await helix.sessions.queued(SESSION)
        words.opened.set()
        second = await helix.get_handle(agent, SESSION, waits.run_id)
        assert second is not None
        assert await completed(second)


async def test_what_a_stop_held_begins_though_nobody_heard_that_somebody_went_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(starting, "backoff", lambda: repeat(0.002))
    words = PieceGate(1)
    agent = clerk(words)
    async with await open_backend("memory://nobody-heard") as parts, Executor(**settings_on(parts, agent)) as helix:
        first = await helix.execute(agent, "One", SESSION)
        await words.until_reached()
        second = await helix.execute(agent, "Two", SESSION, if_running="enqueue")
        await helix.interrupt(SESSION)
        await interrupted(first)
        await helix.idle()
        start_run = parts.state.start_run

        async def unheard(start: StartRun) -> RunStartCommitted:
            await start_run(start)
            monkeypatch.setattr(parts.state, "start_run", start_run)
            raise StoreUnavailableError("memory", "the answer was lost")

        monkeypatch.setattr(parts.state, "start_run", unheard)
        slow = PieceGate(1)
        helix.agents.replace(agent := clerk(slow))
        with pytest.raises(StoreUnavailableError):
            await helix.resume(agent, SESSION)
        await slow.until_reached()
        slow.opened.set()
        assert await completed(second)


async def test_a_message_that_waits_and_is_sent_again_to_begin_now_is_answered_once():
    words = PieceGate(1)
    agent = clerk(words)
    async with await open_backend("memory://sent-now") as parts, Executor(**settings_on(parts, agent)) as helix:
        first = await helix.execute(agent, "One", SESSION)
        await words.until_reached()
        waits = await helix.execute(agent, "Two", SESSION, idempotency_key="two", if_running="enqueue")
        now = await within(helix.execute(agent, "Two", SESSION, idempotency_key="two", if_running="interrupt"))
        words.opened.set()
        assert (now.run_id, (await within(first.result())).status) == (waits.run_id, "interrupted")
        assert await completed(now) == await completed(waits)
        assert await helix.sessions.queued(SESSION) == ()
        said = lines(stored.message for stored in await parts.state.load_transcript(SESSION))
        assert [line for line in said if line.startswith("user")] == ["user: One", "user: Two"]
        # A run that others followed is over: who stops it stops nobody else.
        assert await first.interrupt() == NothingRunning()


async def test_what_waited_in_a_session_that_expired_never_begins_and_others_after_it_do():
    words = PieceGate(1)
    agent = clerk(words)
    clock = ManualClock()
    opening = open_backend("memory://expired", clock=clock)
    async with await opening as parts, Executor(**settings_on(parts, agent)) as helix:
        first = await helix.execute(agent, "One", SESSION, expires_in=60)
        await words.until_reached()
        waits = await helix.execute(agent, "Two", SESSION, if_running="enqueue")
        await helix.interrupt(SESSION)
        await within(first.result())
        words.opened.set()
        clock.advance(61_000)
        assert (await helix.sweep()).expired_sessions == 1
        with pytest.raises(QueuedTurnDroppedError):
            await within(waits.result())
        assert await completed(await helix.execute(agent, "Three", SESSION, if_running="enqueue")) == "2"


async def test_a_turn_that_cannot_begin_is_told_of_until_it_is_gone_and_keeps_no_other_session_waiting(
    monkeypatch: pytest.MonkeyPatch,
):
    words = PieceGate(1)
    agent = clerk(words)
    async with await open_backend("memory://cannot-begin") as parts, Executor(**settings_on(parts, agent)) as helix:
        for session_id in ("a", "b"):
            await helix.execute(agent, "One", session_id)
            await helix.interrupt(session_id)
            await helix.idle()
        words.opened.set()
        start_run = parts.state.start_run
        refusals: dict[str, Exception] = {}

        async def refused(start: StartRun) -> RunStartCommitted:
            if start.session_id in refusals:
                raise refusals[start.session_id]
            return await start_run(start)

        monkeypatch.setattr(parts.state, "start_run", refused)
        later: dict[str, RunHandle[str]] = {}
        for session_id in ("a", "b"):
            slow = PieceGate(1)
            helix.agents.replace(agent := clerk(slow))
            await helix.execute(agent, "Two", session_id)
            await slow.until_reached()
            later[session_id] = await helix.execute(agent, "Three", session_id, if_running="enqueue")
            refusals[session_id] = StateSchemaChangedError(session_id, 1, 2, "no such field")
            slow.opened.set()
            with pytest.raises(StateSchemaChangedError):
                await within(later[session_id].result())
        # Whatever goes wrong in one session, a janitor comes to the others.
        refusals.pop("b")
        refusals["a"] = ValueError("a fault of our own")
        assert (await helix.sweep()).dequeued == 1
        assert await completed(later["b"]) == "5"
        assert await later["a"].interrupt() == InterruptSet(run_id=later["a"].run_id)
        refusals.clear()
        slow = PieceGate(1)
        helix.agents.replace(agent := clerk(slow))
        await helix.execute(agent, "Four", "a")
        await slow.until_reached()
        fifth = await helix.execute(agent, "Five", "a", if_running="enqueue")
        waiting = asyncio.create_task(fifth.result())
        await asyncio.sleep(0)
        slow.opened.set()
        assert (await within(waiting)).status == "completed"


async def test_a_turn_begins_that_waited_behind_one_that_another_event_loop_drives(monkeypatch: pytest.MonkeyPatch):
    """A loop in debug mode says no to whoever would wake it from another thread; others may sleep on instead."""
    asyncio.get_running_loop().set_debug(True)
    going, may_end, waits = threading.Event(), threading.Event(), asyncio.Event()

    @tool
    def work() -> str:
        """Work."""
        going.set()
        assert may_end.wait(10)
        return "done"

    agent = Agent(name="worker", model=ScriptedModel([call("work"), "One.", "Two."]), tools=[work])
    async with await open_backend("memory://two-loops") as parts, Executor(**settings_on(parts, agent)) as helix:

        async def elsewhere() -> str:
            return await (await helix.execute(agent, "One", SESSION)).output()

        until_over = helix._queue._until_over

        async def noticed(session_id: str, *, begun_here: bool) -> None:
            asyncio.get_running_loop().call_later(0.1, waits.set)
            await until_over(session_id, begun_here=begun_here)

        monkeypatch.setattr(helix._queue, "_until_over", noticed)
        other = asyncio.create_task(asyncio.to_thread(asyncio.run, elsewhere()))
        assert await asyncio.to_thread(going.wait, 10)
        second = await helix.execute(agent, "Two", SESSION, if_running="enqueue")
        await within(waits.wait())
        may_end.set()
        assert await within(other) == "One."
        assert await completed(second) == "Two."
