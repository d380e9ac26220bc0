"""The contract of queues: a turn that waits starts once, in its place, or not at all."""

import asyncio

import pytest
from msgspec.structs import replace

from helix_agents.domain.commits import StartRun
from helix_agents.domain.errors import QueuedTurnGoneError, QueueFullError, SessionNotFoundError
from helix_agents.domain.queued import MOST_QUEUED
from helix_agents.domain.runs import RunUpdate
from helix_agents.domain.sessions import BranchPoint, CreateSession, SessionFilter
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.store_handles import StoreContract, StoreHandles
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.scenes import RUN, SESSION, commit, fence_of, queued, said, start


async def _waiting(store: SessionStateStore, session_id: str = SESSION) -> list[str]:
    return [turn.run_id for turn in await store.list_queued(session_id)]


def _begin(run_id: str) -> StartRun:
    return StartRun(session_id=SESSION, run_id=run_id, append_messages=(said("And then?"),), queued=True)


async def _over(store: SessionStateStore, run_id: str) -> None:
    await commit(store, fence=fence_of(run_id), run=RunUpdate(status="completed", completion_reason="completed"))


class QueuesContract(StoreContract):
    """Turns that wait: queued, started in order, removed."""

    @proves("queues.in-order", "queues.same-again", "records.round-trip")
    async def test_turns_wait_in_the_order_in_which_they_came(
        self, store: SessionStateStore, clock: ManualClock
    ) -> None:
        await start(store)
        assert await store.list_queued(SESSION) == ()
        first = await store.queue_turn(queued("r-9", "Später, bitte", state={"n": [1, None]}, expires_in_ms=5))
        assert first is not None
        assert first == replace(queued("r-9", "Später, bitte", state={"n": [1, None]}, expires_in_ms=5),
                                queued_at=clock.now_ms())  # fmt: skip
        clock.advance(1)
        second = await store.queue_turn(queued("r-2"))
        assert await store.queue_turn(queued("r-9", "Something else")) == first
        assert await store.list_queued(SESSION) == (first, second)
        assert await store.drop_queued(SESSION, "r-2")
        third = await store.queue_turn(queued("r-0"))
        assert await store.list_queued(SESSION) == (first, third)
        gone_on = await store.queue_turn(queued("r-9", "Something else", after_stop_of=RUN))
        assert gone_on == replace(first, after_stop_of=RUN)
        assert await store.list_queued(SESSION) == (gone_on, third)

    @proves("queues.behind-something")
    async def test_a_turn_waits_only_where_something_goes_on_or_others_wait(self, store: SessionStateStore) -> None:
        await start(store)
        assert await store.queue_turn(queued(RUN)) is None
        assert await store.queue_turn(queued("r-2")) is not None
        await _over(store, RUN)
        for name in (RUN, "r-2", "r-3"):
            assert (await store.queue_turn(queued(name)) is None) is (name == RUN)
        await store.start_run(_begin("r-2"))
        assert await store.queue_turn(queued("r-2")) is None
        assert await _waiting(store) == ["r-3"]
        await _over(store, "r-2")
        assert await store.drop_queued(SESSION, "r-3")
        assert await store.queue_turn(queued("r-3")) is None
        assert (await _waiting(store), await store.list_queues()) == ([], ())

    @proves("queues.behind-something")
    async def test_of_queueing_a_turn_and_beginning_it_one_happens(self, handles: StoreHandles) -> None:
        one, other = await handles.open(), await handles.open()
        await start(one)
        await _over(one, RUN)
        for number in range(2, 12):
            run_id = f"r-{number}"
            begin = StartRun(session_id=SESSION, run_id=run_id, append_messages=(said("And then?"),))
            _, stored = await asyncio.gather(one.start_run(begin), other.queue_turn(queued(run_id)))
            assert stored is None
            assert await _waiting(other) == []
            await _over(one, run_id)

    @proves("queues.in-order")
    async def test_what_several_processes_send_all_waits(self, handles: StoreHandles) -> None:
        stores = [await handles.open() for _ in range(3)]
        await start(stores[0])
        names = [f"r-{n}-{k}" for n in range(3) for k in range(4)]
        await asyncio.gather(*(stores[int(name[2])].queue_turn(queued(name)) for name in names))
        seen = [await _waiting(store) for store in stores]
        assert sorted(seen[0]) == names
        assert seen[0] == seen[1] == seen[2]

    @proves("queues.bounded")
    async def test_a_queue_has_an_end(self, store: SessionStateStore) -> None:
        await start(store)
        for number in range(MOST_QUEUED):
            await store.queue_turn(queued(f"r-{number}-q"))
        with pytest.raises(QueueFullError, match="100 turns are waiting"):
            await store.queue_turn(queued("r-more"))
        assert await store.queue_turn(queued("r-0-q"))
        assert len(await store.list_queued(SESSION)) == MOST_QUEUED

    @proves("queues.taken-by-its-start")
    async def test_a_start_takes_its_turn_from_the_queue_once(self, store: SessionStateStore) -> None:
        await start(store)
        for name in ("r-2", "r-3"):
            await store.queue_turn(queued(name))
        begun = await store.start_run(_begin("r-2"))
        assert begun.run.turn == 2
        assert await _waiting(store) == ["r-3"]
        assert (await store.start_run(_begin("r-2"))).new_version == begun.new_version
        before = await store.load_state(SESSION)
        with pytest.raises(QueuedTurnGoneError):
            await store.start_run(_begin("r-4"))
        assert await store.load_state(SESSION) == before
        assert await store.get_run("r-4") is None

    @proves("queues.begun-or-dropped")
    async def test_a_turn_is_begun_or_dropped_and_never_both(self, handles: StoreHandles) -> None:
        one, other = await handles.open(), await handles.open()
        await start(one)
        for number in range(2, 12):
            run_id = f"r-{number}"
            await one.queue_turn(queued(run_id))
            begun, dropped = await asyncio.gather(
                one.start_run(_begin(run_id)), other.drop_queued(SESSION, run_id), return_exceptions=True
            )
            assert isinstance(begun, QueuedTurnGoneError) is dropped
            assert (await other.get_run(run_id) is None) is dropped
            assert await _waiting(one) == []

    @proves("queues.not-the-records")
    async def test_a_run_that_goes_on_is_not_disturbed(self, store: SessionStateStore) -> None:
        await start(store)
        before = await store.load_state(SESSION)
        await store.queue_turn(queued("r-2"))
        assert await store.load_state(SESSION) == before
        await commit(store)
        await store.drop_queued(SESSION, "r-2")
        assert not await store.drop_queued(SESSION, "r-2")
        await commit(store, 2)

    @proves("queues.keep-alive", "queues.not-the-records")
    async def test_a_message_that_waits_keeps_its_session_alive(
        self, store: SessionStateStore, clock: ManualClock
    ) -> None:
        now = clock.now_ms()
        await start(store, create=CreateSession(expires_at=now + 100))
        version = (await store.load_state(SESSION)).version
        for run_id, expires_in_ms in (("r-2", 500), ("r-3", 20), ("r-4", None), ("r-2", 900)):
            await store.queue_turn(queued(run_id, expires_in_ms=expires_in_ms))
            found = await store.load_state(SESSION)
            assert (found.expires_at, found.version) == (now + 500, version), run_id
        ahead = SessionFilter(expires_before=now + 501)
        assert [each.session_id for each in (await store.list_sessions(ahead)).items] == [SESSION]
        assert (await store.list_sessions(SessionFilter(expires_before=now + 500))).items == ()
        await commit(store)
        assert (await store.load_state(SESSION)).expires_at == now + 500
        await start(store, "for ever", "r-9")
        await store.queue_turn(queued("r-10", session_id="for ever", expires_in_ms=5))
        assert (await store.load_state("for ever")).expires_at is None

    @proves("queues.go-with-their-session")
    async def test_what_waits_goes_with_its_session_and_does_not_branch(self, store: SessionStateStore) -> None:
        await start(store)
        await store.queue_turn(queued("r-2"))
        await store.clone_session(BranchPoint(from_session_id=SESSION), "branch")
        assert await store.list_queued("branch") == ()
        await store.delete_session(SESSION)
        with pytest.raises(SessionNotFoundError):
            await store.list_queued(SESSION)
        assert await store.list_queues() == ()
        await start(store)
        assert await store.list_queued(SESSION) == ()

    @proves("queues.found")
    async def test_sessions_in_which_something_waits_are_found(self, handles: StoreHandles) -> None:
        store, other = await handles.open(), await handles.open(namespace="elsewhere")
        for name in ("c", "a", "b"):
            await start(store, session_id=name, run_id=f"r-{name}")
            await store.queue_turn(queued(f"r-{name}-2", session_id=name))
        await store.queue_turn(queued("r-a-3", session_id="a"))
        assert await store.list_queues() == ("a", "b", "c")
        assert await store.list_queues(offset=1, limit=1) == ("b",)
        await store.drop_queued("b", "r-b-2")
        assert await store.list_queues() == ("a", "c")
        assert await other.list_queues() == ()
