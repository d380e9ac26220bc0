"""The contract of queues: a turn that waits starts once, in its place, or not at all."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from helix_agents.domain.budgets import Budget
from helix_agents.domain.commits import StartRun
from helix_agents.domain.errors import (
    InvalidInputError,
    QueuedTurnGoneError,
    QueueFullError,
    SessionNotFoundError,
    StateSizeExceededError,
    SupersededError,
)
from helix_agents.domain.queued import MOST_QUEUED, STEERED, QueueChange, QueuedTurn, TakenTurn
from helix_agents.domain.runs import RunUpdate
from helix_agents.domain.session_changes import held_by
from helix_agents.domain.sessions import BranchPoint, CreateSession, Holder, SessionFilter
from helix_agents.ports.state_store import SessionStateStore, StoreLimits
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.store_handles import StoreContract, StoreHandles
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.scenes import RUN, SESSION, commit, fence_of, queued, said, set_key, start


async def _waiting(store: SessionStateStore, session_id: str = SESSION) -> list[str]:
    return [turn.run_id for turn in await store.list_queued(session_id)]


def _begin(run_id: str) -> StartRun:
    return StartRun(session_id=SESSION, run_id=run_id, append_messages=(said("And then?"),), queued=True)


def _steering(run_id: str, text: str = "By the way") -> QueuedTurn:
    return queued(run_id, text, steers=True)


def _taken(run_id: str, by: str) -> TakenTurn:
    return TakenTurn(session_id=SESSION, run_id=run_id, taken_by=by)


async def _transcript(store: SessionStateStore) -> list[str]:
    return [str(each.message.content) for each in await store.load_transcript(SESSION)]  # type: ignore[union-attr]


async def _over(store: SessionStateStore, run_id: str) -> None:
    await commit(store, fence=fence_of(run_id), run=RunUpdate(status="completed", completion_reason="completed"))


async def _over_after(store: SessionStateStore, step: int) -> None:
    await commit(store, step, run=RunUpdate(status="completed", completion_reason="completed"))


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
        # What only a turn of its own can have keeps it from steering.
        assert await store.queue_turn(replace(_steering("r-9"), after_stop_of=RUN)) == gone_on
        steering = await store.queue_turn(_steering("r-0", "Something else"))
        assert third is not None
        assert steering == replace(third, steers=True, revision=1)
        assert await store.queue_turn(queued("r-0")) == steering
        assert await store.list_queued(SESSION) == (steering, gone_on)
        await commit(store, takes_messages=True)
        assert await store.list_queued(SESSION) == (gone_on,)

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

    @proves("queues.steering-first", "queues.in-order", "records.round-trip")
    async def test_messages_that_steer_stand_before_turns(self, store: SessionStateStore) -> None:
        await start(store)
        for turn in (queued("r-2"), _steering("r-9"), queued("r-3"), _steering("r-8")):
            await store.queue_turn(turn)
        assert await _waiting(store) == ["r-9", "r-8", "r-2", "r-3"]
        found = await store.find_queued(SESSION, "r-9")
        assert found == (await store.list_queued(SESSION))[0]
        assert isinstance(found, QueuedTurn)
        assert found.steers
        assert await store.find_queued(SESSION, RUN) is None

    @proves("queues.taken-in", "queues.taken-in-once")
    async def test_a_step_takes_in_the_messages_that_steer_its_run(self, store: SessionStateStore) -> None:
        await start(store)
        for turn in (queued("r-2"), _steering("r-3", "First"), _steering("r-4", "Second")):
            await store.queue_turn(turn)
        await commit(store, messages=[said("Step one")])
        assert await _transcript(store) == ["Step one"]
        taken = await commit(store, 2, messages=[said("Step two")], takes_messages=True)
        assert await _transcript(store) == ["Step one", "Step two", "First", "Second"]
        assert (taken.message_count, (await store.load_state(SESSION)).message_count) == (4, 4)
        assert [
            each.message.metadata.get("helix")  # type: ignore[union-attr]
            for each in await store.load_transcript(SESSION)
        ] == [None, None, STEERED, STEERED]
        # The same commit, sent again because its answer was lost, takes nothing more and answers the same.
        await store.queue_turn(_steering("r-5", "Third"))
        again = await commit(store, 2, messages=[said("Step two")], takes_messages=True)
        assert (again.message_count, again.checkpoint_id) == (4, taken.checkpoint_id)
        assert await _waiting(store) == ["r-5", "r-2"]
        for run_id in ("r-3", "r-4"):
            assert await store.find_queued(SESSION, run_id) == _taken(run_id, RUN)
            assert await store.queue_turn(_steering(run_id)) is None
        checkpoint = await store.get_checkpoint(SESSION, taken.checkpoint_id)
        assert checkpoint is not None
        assert checkpoint.message_count == 4
        await commit(store, 3, takes_messages=True, metadata={"a": "b"})
        assert (await _transcript(store))[-1] == "Third"
        await commit(store, 4, takes_messages=True)
        await _over_after(store, 5)
        assert await store.queue_turn(_steering("r-3")) is None
        assert await _waiting(store) == ["r-2"]
        assert await store.find_queued(SESSION, "r-3") == _taken("r-3", RUN)

    @proves("queues.taken-in-once")
    async def test_a_message_that_no_step_took_in_starts_a_turn(self, store: SessionStateStore) -> None:
        await start(store)
        for turn in (queued("r-2"), _steering("r-3"), _steering("r-4")):
            await store.queue_turn(turn)
        await _over(store, RUN)
        await store.start_run(_begin("r-3"))
        assert await _transcript(store) == ["And then?"]
        assert await _waiting(store) == ["r-4", "r-2"]
        assert await store.find_queued(SESSION, "r-3") is None
        # The run that started takes in what still steers.
        await commit(store, fence=fence_of("r-3"), takes_messages=True)
        assert await store.find_queued(SESSION, "r-4") == _taken("r-4", "r-3")
        with pytest.raises(QueuedTurnGoneError):
            await store.start_run(_begin("r-4"))
        assert await _waiting(store) == ["r-2"]

    @proves("queues.taken-in")
    async def test_a_start_takes_in_what_waits_for_its_run(self, store: SessionStateStore) -> None:
        await start(store)
        for turn in (queued("r-2"), _steering("r-3", "First"), _steering("r-4", "Second"), _steering("r-5", "Third")):
            await store.queue_turn(turn)
        await _over(store, RUN)
        begun = await store.start_run(replace(_begin("r-3"), takes_messages=True))
        assert (await _transcript(store), begun.message_count) == (["And then?", "Second", "Third"], 3)
        assert await _waiting(store) == ["r-2"]
        assert await store.find_queued(SESSION, "r-3") is None
        assert await store.find_queued(SESSION, "r-4") == _taken("r-4", "r-3")
        again = await store.start_run(replace(_begin("r-3"), takes_messages=True))
        assert (again.message_count, again.new_version) == (3, begun.new_version)
        await store.queue_turn(_steering("r-6", "Fourth"))
        await _over(store, "r-3")
        plain = StartRun(session_id=SESSION, run_id="r-7", append_messages=(said("Go on"),), takes_messages=True)
        assert (await store.start_run(plain)).message_count == 5
        assert (await _transcript(store))[3:] == ["Go on", "Fourth"]
        assert (await store.load_state(SESSION)).message_count == 5

    @proves("queues.taken-in")
    async def test_an_attempt_that_was_replaced_takes_nothing_in(self, store: SessionStateStore) -> None:
        await start(store)
        await store.queue_turn(_steering("r-2"))
        with pytest.raises(SupersededError):
            await commit(store, fence=fence_of(RUN, 2), takes_messages=True)
        assert await _waiting(store) == ["r-2"]
        assert await _transcript(store) == []

    @proves("queues.taken-in-once", "queues.begun-or-dropped", "queues.changed")
    async def test_of_a_step_and_a_change_one_is_first(self, handles: StoreHandles) -> None:
        one, other = await handles.open(), await handles.open()
        await start(one)
        for number in range(1, 13):
            run_id, text = f"r-{number}-q", f"Message {number}"
            await one.queue_turn(_steering(run_id, text))
            dropped: object = None
            change = QueueChange(messages=(said("Changed"),))
            asked = other.drop_queued(SESSION, run_id) if number % 2 else other.change_queued(SESSION, run_id, change)
            before = len(await _transcript(one))
            _, dropped = await asyncio.gather(commit(one, number, takes_messages=True), asked)
            seen = (await _transcript(one))[before:]
            taken = await other.find_queued(SESSION, run_id)
            assert await _waiting(one) == []
            if number % 2:
                assert seen == ([] if dropped else [text])
                assert taken == (None if dropped else _taken(run_id, RUN))
            else:
                assert seen == ["Changed" if dropped else text]
                assert taken == _taken(run_id, RUN)

    @proves("queues.taken-in")
    async def test_what_is_sent_while_steps_are_committed_is_taken_in_once(self, handles: StoreHandles) -> None:
        one, *others = [await handles.open() for _ in range(3)]
        await start(one)
        names = [f"r-{number}-{n}" for number in range(1, 7) for n in range(2)]
        for step in range(1, 7):
            mine = [name for name in names if name.startswith(f"r-{step}-")]
            sending = (store.queue_turn(_steering(name, name)) for store, name in zip(others, mine, strict=True))
            await asyncio.gather(commit(one, step, messages=[said("Step")], takes_messages=True), *sending)
        await commit(one, 7, takes_messages=True)
        assert sorted(text for text in await _transcript(one) if text != "Step") == names
        assert await _waiting(one) == []

    @proves("queues.changed", "records.round-trip")
    async def test_a_turn_that_waits_can_be_changed(self, store: SessionStateStore) -> None:
        await start(store)
        for name in ("r-2", "r-3", "r-4"):
            await store.queue_turn(queued(name))
        words = (said("Rather this"),)
        edited = await store.change_queued(SESSION, "r-4", QueueChange(messages=words))
        assert edited is not None
        assert (edited.messages, edited.revision) == (words, 1)
        assert await store.find_queued(SESSION, "r-4") == edited
        assert await _waiting(store) == ["r-2", "r-3", "r-4"]
        await store.change_queued(SESSION, "r-4", QueueChange(first=True))
        await store.change_queued(SESSION, "r-3", QueueChange(first=True))
        assert await _waiting(store) == ["r-3", "r-4", "r-2"]
        await store.change_queued(SESSION, "r-2", QueueChange(steers=True))
        assert await _waiting(store) == ["r-2", "r-3", "r-4"]
        await store.change_queued(SESSION, "r-2", QueueChange(steers=False))
        assert await _waiting(store) == ["r-3", "r-4", "r-2"]
        await store.change_queued(SESSION, "r-4", QueueChange(steers=True))
        await commit(store, takes_messages=True)
        assert await _transcript(store) == ["Rather this"]
        for gone in ("r-4", "r-9"):
            assert await store.change_queued(SESSION, gone, QueueChange(first=True)) is None
        assert await store.drop_queued(SESSION, "r-3")
        assert await store.change_queued(SESSION, "r-3", QueueChange(steers=True)) is None

    @proves("queues.changed")
    async def test_a_turn_that_was_changed_is_not_started_as_it_was(self, store: SessionStateStore) -> None:
        await start(store)
        await store.queue_turn(queued("r-2"))
        changed = await store.change_queued(SESSION, "r-2", QueueChange(messages=(said("Rather this"),)))
        await _over(store, RUN)
        before = await store.load_state(SESSION)
        with pytest.raises(QueuedTurnGoneError):
            await store.start_run(_begin("r-2"))
        assert (await store.load_state(SESSION), await _waiting(store)) == (before, ["r-2"])
        assert changed is not None
        await store.start_run(replace(_begin("r-2"), queued_revision=changed.revision))
        assert await _waiting(store) == []

    @proves("queues.changed")
    async def test_a_run_in_progress_takes_in_messages_only(self, store: SessionStateStore) -> None:
        await start(store)
        extra: dict[str, Any]
        for extra in ({"state": {"a": 1}}, {"budget": Budget(model_calls=1)}):
            with pytest.raises(InvalidInputError, match="takes in messages only"):
                await store.queue_turn(queued("r-2", steers=True, **extra))
        await store.queue_turn(queued("r-2", state={"a": 1}))
        with pytest.raises(InvalidInputError, match="takes in messages only"):
            await store.change_queued(SESSION, "r-2", QueueChange(steers=True))
        assert [turn.steers for turn in await store.list_queued(SESSION)] == [False]

    @proves("queues.fits")
    async def test_a_message_that_no_run_could_take_in_does_not_wait(self, handles: StoreHandles) -> None:
        store = await handles.open(limits=StoreLimits(message_bytes=300))
        await start(store)
        with pytest.raises(StateSizeExceededError):
            await store.queue_turn(_steering("r-2", "x" * 300))
        await store.queue_turn(_steering("r-2", "x"))
        with pytest.raises(StateSizeExceededError):
            await store.change_queued(SESSION, "r-2", QueueChange(messages=(said("x" * 300),)))
        await commit(store, takes_messages=True)
        assert await _transcript(store) == ["x"]

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
        await store.queue_turn(_steering("r-3"))
        await commit(store, takes_messages=True)
        await store.clone_session(BranchPoint(from_session_id=SESSION), "branch")
        assert await store.list_queued("branch") == ()
        assert await store.find_queued("branch", "r-3") is None
        await store.delete_session(SESSION)
        with pytest.raises(SessionNotFoundError):
            await store.list_queued(SESSION)
        assert await store.list_queues() == ()
        await start(store)
        assert await store.list_queued(SESSION) == ()
        assert await store.find_queued(SESSION, "r-3") is None

    @proves("lineage.branch-at-message", "lineage.of-its-holder")
    async def test_a_branch_without_the_messages_that_a_step_took_in_has_all_that_the_step_did(
        self, store: SessionStateStore
    ) -> None:
        await start(store)
        await commit(store, messages=[said("One")], writes=set_key("at", 1))
        for run_id in ("r-2", "r-3"):
            await store.queue_turn(_steering(run_id))
        before = await store.load_state(SESSION)
        handed = held_by(before, Holder("checker", 7), until=before.version)
        fields = {name: getattr(handed, name) for name in ("held_by", "agent_version", "earlier_versions")}
        did: dict[str, Any] = {"messages": [said("Two"), said("Too")], "writes": set_key("at", 2), "state": fields}
        assert (await commit(store, 2, takes_messages=True, **did)).message_count == 5
        await commit(store, 3, messages=[said("Three")], writes=set_key("at", 3))
        found = [
            await store.clone_session(BranchPoint(from_session_id=SESSION, message_count=count), f"b-{count}")
            for count in range(7)
        ]
        assert [each.custom_state.get("at") for each in found] == [None, 1, 1, 2, 2, 2, 3]
        assert [each.held_by for each in found] == [None, None, None, *["checker"] * 4]
        await store.clone_session(BranchPoint(from_session_id="b-5", message_count=4), "branch")
        assert (await store.load_state("branch")).custom_state == {"at": 2}

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
