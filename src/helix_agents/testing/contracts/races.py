"""The contract of races: one side is held after each of its statements in turn while the other runs."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest
from msgspec.structs import replace

from helix_agents.domain.commits import Committed, RunStartCommitted, StartRun, StepCommit
from helix_agents.domain.errors import (
    ConflictError,
    SessionAlreadyExistsError,
    SessionNotFoundError,
    StaleStateError,
    SupersededError,
)
from helix_agents.domain.pending import AnswerAccepted
from helix_agents.domain.queued import QueueChange, QueuedTurn, TakenTurn
from helix_agents.domain.runs import RunRecord, RunUpdate
from helix_agents.domain.sessions import ChildWait, CreateSession, InterruptSet, NothingRunning, SessionState
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.operations import record
from helix_agents.testing.contracts.store_handles import StoreContract, StoreHandles
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.scenes import answer, append_to, fence_of, queued, said, step_meta, waiting
from helix_agents.testing.seams import HoldingSeam

MOST_STATEMENTS = 200

BLOCKED_AFTER = 0.02
"""Seconds after which a side that has not ended counts as blocked by the held one. It affects only the pace."""

PATIENCE = 20.0

Side: TypeAlias = Callable[[SessionStateStore, str], Awaitable[Any]]


@dataclass(frozen=True)
class Race:
    """How one race ended: the session it was about, and the results, or refusals, of both sides."""

    session: str
    held: Any
    other: Any

    def only(self, *kind: type[Any]) -> Any:
        """The only result of this kind."""
        (found,) = [each for each in (self.held, self.other) if isinstance(each, kind)]
        return found


async def races(
    handles: StoreHandles, held: Side, other: Side, arrange: Side | None = None
) -> AsyncIterator[tuple[SessionStateStore, Race]]:
    """Run the race once per statement of the held side, each on its own session, until it needs no more."""
    watching, passing = await handles.open(), await handles.open()
    for statement in range(1, MOST_STATEMENTS):
        session = f"race-{statement}"
        if arrange is not None:
            await arrange(watching, session)
        seam = HoldingSeam()
        holding = await handles.open(seam=seam)
        seam.arm(after=statement)
        first = asyncio.ensure_future(held(holding, session))
        await _first_of(first, seam)
        second = asyncio.ensure_future(other(passing, session))
        await asyncio.wait({second}, timeout=BLOCKED_AFTER)
        seam.release()
        async with asyncio.timeout(PATIENCE):
            answers = await asyncio.gather(first, second, return_exceptions=True)
        await holding.close()
        yield watching, Race(session, *answers)
        if not seam.has_held:
            return
    pytest.fail(f"the held side did not end within {MOST_STATEMENTS} statements")


async def _first_of(side: asyncio.Future[Any], seam: HoldingSeam) -> None:
    """Wait until the side is held, or ended without being held."""
    held = asyncio.ensure_future(seam.wait_until_held())
    async with asyncio.timeout(PATIENCE):
        await asyncio.wait({side, held}, return_when=asyncio.FIRST_COMPLETED)
        if side.done():
            seam.release()
        await held


def _run(session: str) -> str:
    return f"{session}-run"


def _child(session: str) -> str:
    return f"{session}-child"


async def _running(store: SessionStateStore, session: str) -> None:
    await store.start_run(StartRun(session_id=session, run_id=_run(session), create=CreateSession()))


async def _running_with_a_call(store: SessionStateStore, session: str) -> None:
    await _running(store, session)
    call = waiting(store, "call-1", session, run_id=_run(session), deadline=store.now_ms() + 5)
    await _commit(1, pending=(call,))(store, session)


def _commit(
    step: int, expected_version: int | None = None, *, waits: dict[str, ChildWait] | None = None, **fields: Any
) -> Side:
    def send(store: SessionStateStore, session: str) -> Awaitable[Committed]:
        return store.save_state_and_promote_staging(
            session,
            replace(record(session), suspended_awaiting_children=waits or {}),
            (said("committed"),),
            step_meta(step, _run(session)),
            expected_version=expected_version,
            commit=StepCommit(fence=fence_of(_run(session)), step=step, writes=append_to("list", step), **fields),
        )

    return send


def _start(number: int, **fields: Any) -> Side:
    return lambda store, session: store.start_run(
        StartRun(session_id=session, run_id=f"{session}-run-{number}", append_messages=(said("start"),), **fields)
    )


def _suspend(store: SessionStateStore, session: str) -> Awaitable[Any]:
    return _commit(2, run=RunUpdate(status="suspended_client_tool"), suspend=True)(store, session)


async def _running_with_a_child_that_waits(store: SessionStateStore, session: str) -> None:
    await _running(store, session)
    child = CreateSession(parent_session_id=session, root_session_id=session)
    await store.start_run(StartRun(session_id=_child(session), run_id=_run(_child(session)), create=child))
    await store.update_run_status(_run(_child(session)), "suspended_client_tool")


def _wait_for_child(store: SessionStateStore, session: str) -> Awaitable[Any]:
    wait = ChildWait(tool_call_id="call-1", child_session_id=_child(session), agent_type="helper")
    run = RunUpdate(status="suspended_awaiting_children")
    return _commit(2, run=run, suspend=True, waits={"call-1": wait})(store, session)


async def _child_goes_on(store: SessionStateStore, session: str) -> RunRecord | None:
    """Start the child's next run; returns its parent's state after that."""
    await store.start_run(StartRun(session_id=_child(session), run_id=f"{session}-again"))
    return await store.get_current_run(session)


def _answer(store: SessionStateStore, session: str) -> Awaitable[Any]:
    return store.submit_answer(answer("call-1", session))


def _interrupt(store: SessionStateStore, session: str) -> Awaitable[Any]:
    return store.set_interrupt_flag(session, "stop")


def _claim(store: SessionStateStore, session: str) -> Awaitable[Any]:
    return store.claim_run(session, fence_of(_run(session)), "worker-2")


def _expire(store: SessionStateStore, session: str) -> Awaitable[Any]:
    return store.expire_pending(session_id=session)


def _delete(store: SessionStateStore, session: str) -> Awaitable[Any]:
    return store.delete_session(session)


def _steer(store: SessionStateStore, session: str) -> Awaitable[Any]:
    return store.queue_turn(queued(f"{session}-steer", "steer", session_id=session, steers=True))


async def _steered(store: SessionStateStore, session: str) -> None:
    await _running(store, session)
    await _steer(store, session)


def _take_in(store: SessionStateStore, session: str) -> Awaitable[Any]:
    return _commit(1, takes_messages=True)(store, session)


def _edit(store: SessionStateStore, session: str) -> Awaitable[Any]:
    return store.change_queued(session, f"{session}-steer", QueueChange(messages=(said("edited"),)))


def _drop(store: SessionStateStore, session: str) -> Awaitable[Any]:
    return store.drop_queued(session, f"{session}-steer")


async def _texts(store: SessionStateStore, session: str) -> list[Any]:
    return [getattr(each.message, "content", None) for each in await store.load_transcript(session)]


EITHER_HELD = pytest.mark.parametrize("swapped", [False, True], ids=["first held", "second held"])


def _sides(first: Side, second: Side, swapped: bool) -> tuple[Side, Side]:
    return (second, first) if swapped else (first, second)


class RacesContract(StoreContract):
    """Two writers, one of them held after each of its statements."""

    @proves("races.commit-and-commit")
    async def test_of_two_steps_that_expect_one_version_one_wins(self, handles: StoreHandles) -> None:
        async for store, race in races(handles, _commit(1, 1), _commit(2, 1), _running):
            assert race.only(Committed).new_version == 2
            refusal = race.only(ConflictError)
            # The loser is stale; an earlier step may also learn that a later one was made.
            if not isinstance(refusal, SupersededError):
                assert isinstance(refusal, StaleStateError)
                assert (refusal.expected, refusal.found) == (1, 2)
            assert await store.get_message_count(race.session) == 1
            assert (await store.list_checkpoints(race.session)).total == 1

    @proves("races.same-commit-twice")
    async def test_the_same_step_sent_twice_is_applied_once(self, handles: StoreHandles) -> None:
        async for store, race in races(handles, _commit(1), _commit(1), _running):
            assert isinstance(race.held, Committed)
            assert race.held == race.other
            found = await store.load_state(race.session)
            assert (found.version, found.message_count, found.custom_state) == (2, 1, {"list": [1]})

    @proves("races.start-and-start")
    @pytest.mark.parametrize("new", [False, True], ids=["existing session", "new session"])
    async def test_of_two_starts_one_wins(self, handles: StoreHandles, new: bool) -> None:
        fields: dict[str, Any] = {"create": CreateSession()} if new else {"expected_version": 1}
        arrange: Side | None = None if new else lambda store, session: store.create_session(session)
        async for store, race in races(handles, _start(1, **fields), _start(2, **fields), arrange):
            won = race.only(RunStartCommitted)
            race.only(SessionAlreadyExistsError if new else ConflictError)
            assert await store.get_current_run(race.session) == won.run
            assert (await store.list_runs(race.session)).total == await store.get_message_count(race.session) == 1

    @proves("races.create-and-create")
    async def test_of_two_creators_one_wins(self, handles: StoreHandles) -> None:
        def create(user: str) -> Side:
            return lambda store, session: store.create_session(
                session, CreateSession(user_id=user, tags=(user,), custom_state={"by": user})
            )

        async for store, race in races(handles, create("ann"), create("bob")):
            won = race.only(SessionState)
            race.only(SessionAlreadyExistsError)
            found = await store.load_state(race.session)
            assert found == won
            assert (found.tags, found.custom_state) == ((won.user_id,), {"by": won.user_id})

    @proves("races.answer-and-suspension")
    @EITHER_HELD
    async def test_an_answer_that_meets_a_suspension_is_never_left_lying(
        self, handles: StoreHandles, swapped: bool
    ) -> None:
        async for store, race in races(handles, *_sides(_suspend, _answer, swapped), _running_with_a_call):
            goes_on, needed = race.only(Committed).again, race.only(AnswerAccepted).next
            assert (goes_on, needed) in ((True, "nothing"), (False, "resume"))
            run = await store.get_run(_run(race.session))
            assert run is not None
            assert run.status == ("running" if goes_on else "suspended_client_tool")

    @proves("races.stop-and-suspension")
    @EITHER_HELD
    async def test_a_stop_that_meets_a_suspension_is_never_left_lying(
        self, handles: StoreHandles, swapped: bool
    ) -> None:
        async for store, race in races(handles, *_sides(_suspend, _interrupt, swapped), _running_with_a_call):
            goes_on, told = race.only(Committed).again, race.only(InterruptSet, NothingRunning)
            assert goes_on == isinstance(told, InterruptSet)
            run = await store.get_run(_run(race.session))
            assert run is not None
            assert run.status == ("running" if goes_on else "suspended_client_tool")

    @proves("races.child-and-suspension")
    async def test_a_child_that_goes_on_as_its_parent_comes_to_wait_is_seen_or_sees_it_wait(
        self, handles: StoreHandles
    ) -> None:
        async for _, race in races(handles, _wait_for_child, _child_goes_on, _running_with_a_child_that_waits):
            goes_on, seen = race.only(Committed).again, race.only(RunRecord).status
            assert goes_on or seen == "suspended_awaiting_children"

    @proves("races.claim-and-commit")
    @EITHER_HELD
    async def test_a_commit_that_meets_a_takeover_is_before_it_or_refused(
        self, handles: StoreHandles, swapped: bool
    ) -> None:
        async for store, race in races(handles, *_sides(_commit(1), _claim, swapped), _running):
            assert race.only(RunRecord).attempt == 2
            whole = isinstance(race.held, Committed) or isinstance(race.other, Committed)
            if not whole:
                race.only(SupersededError)
            assert await store.get_message_count(race.session) == int(whole)
            assert (await store.list_checkpoints(race.session)).total == int(whole)

    @proves("races.delete-and-commit")
    @EITHER_HELD
    async def test_a_commit_that_meets_a_deletion_leaves_nothing(self, handles: StoreHandles, swapped: bool) -> None:
        async for store, race in races(handles, *_sides(_commit(2), _delete, swapped), _running_with_a_call):
            committed = race.other if swapped else race.held
            assert isinstance(committed, Committed | SessionNotFoundError | SupersededError)
            assert not await store.session_exists(race.session)
            assert await store.get_run(_run(race.session)) is None
            assert await store.get_pending_call(race.session, "call-1") is None
            fresh = await store.create_session(race.session)
            assert (fresh.version, await store.load_transcript(race.session)) == (1, ())

    @proves("queues.taken-in-once")
    @EITHER_HELD
    async def test_a_message_that_meets_a_step_is_taken_in_or_waits(self, handles: StoreHandles, swapped: bool) -> None:
        async for store, race in races(handles, *_sides(_take_in, _steer, swapped), _running):
            steered = race.only(QueuedTurn)
            said = await _texts(store, race.session)
            waits = await store.list_queued(race.session)
            found = await store.find_queued(race.session, steered.run_id)
            if waits:
                assert (said, waits, found) == (["committed"], (steered,), steered)
            else:
                assert said == ["committed", "steer"]
                assert isinstance(found, TakenTurn)
                assert found.taken_by == _run(race.session)
            assert race.only(Committed).message_count == len(said)

    @proves("queues.taken-in-once", "queues.behind-something")
    @EITHER_HELD
    async def test_a_message_that_meets_the_end_of_a_run_waits_or_is_told_that_nothing_goes_on(
        self, handles: StoreHandles, swapped: bool
    ) -> None:
        end = _commit(1, run=RunUpdate(status="completed"))
        async for store, race in races(handles, *_sides(end, _steer, swapped), _running):
            stored = race.held if swapped else race.other
            assert await _texts(store, race.session) == ["committed"]
            assert await store.list_queued(race.session) == (() if stored is None else (stored,))

    @proves("queues.taken-in-once", "queues.changed")
    @EITHER_HELD
    async def test_a_change_that_meets_a_step_is_taken_in_or_too_late(
        self, handles: StoreHandles, swapped: bool
    ) -> None:
        async for store, race in races(handles, *_sides(_take_in, _edit, swapped), _steered):
            changed = race.held if swapped else race.other
            assert await _texts(store, race.session) == ["committed", "steer" if changed is None else "edited"]
            assert await store.list_queued(race.session) == ()

    @proves("queues.taken-in-once", "queues.begun-or-dropped")
    @EITHER_HELD
    async def test_a_removal_that_meets_a_step_is_done_or_too_late(self, handles: StoreHandles, swapped: bool) -> None:
        async for store, race in races(handles, *_sides(_take_in, _drop, swapped), _steered):
            dropped = race.held if swapped else race.other
            assert await _texts(store, race.session) == (["committed"] if dropped else ["committed", "steer"])
            found = await store.find_queued(race.session, f"{race.session}-steer")
            assert isinstance(found, TakenTurn) is not dropped

    @proves("races.expiry-and-answer")
    @EITHER_HELD
    async def test_an_answer_that_meets_its_deadline_is_accepted(
        self, handles: StoreHandles, clock: ManualClock, swapped: bool
    ) -> None:
        async def arrange(store: SessionStateStore, session: str) -> None:
            await _running_with_a_call(store, session)
            clock.advance(10)

        async for store, race in races(handles, *_sides(_expire, _answer, swapped), arrange):
            accepted = race.only(AnswerAccepted)
            expired = race.only(tuple)
            call = await store.get_pending_call(race.session, "call-1")
            assert call is not None
            assert (call.state, call.answer) == ("answered", accepted.call.answer)
            assert (call.expired_at is not None) == (len(expired) == 1)
