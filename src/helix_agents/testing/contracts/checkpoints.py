"""The contract of checkpoints: boundaries that hold counts and writes, and a pointer to the one written last."""

import pytest

from helix_agents.domain.checkpoints import Checkpoint, CheckpointMeta
from helix_agents.domain.errors import CheckpointNotFoundError
from helix_agents.domain.sessions import CreateSession
from helix_agents.domain.writes import Append, Delete, Replace, StepWrites
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.store_handles import StoreContract
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.scenes import SESSION, append_to, commit, said, set_key, staged, start, step_meta


class CheckpointsContract(StoreContract):
    """Writing, finding and rebuilding checkpoints."""

    @proves("checkpoints.latest-is-last-written")
    async def test_the_latest_checkpoint_is_the_one_written_last(self, store: SessionStateStore) -> None:
        await store.create_session(SESSION)
        for count in (5, 9, 1):
            written = await store.create_checkpoint(SESSION, CheckpointMeta(step_id=f"step-{count}", step_count=count))
            assert await _latest(store) == written
        assert (await _latest(store)).step_count == 1

    @proves("checkpoints.pointer-moves")
    async def test_every_writer_of_checkpoints_moves_the_pointer(
        self, store: SessionStateStore, clock: ManualClock
    ) -> None:
        await start(store)
        writers = (
            ("save", lambda: store.create_checkpoint(SESSION, step_meta(1))),
            ("save", lambda: _save(store)),
            ("staging", lambda: store.promote_staging(SESSION, step_meta(2))),
            ("staging", lambda: commit(store, 3)),
        )
        for source, write in writers:
            clock.advance(5)
            written = await write()
            latest, state = await _latest(store), await store.load_state(SESSION)
            assert written.checkpoint_id == latest.checkpoint_id == state.checkpoint_id
            assert source == latest.source == state.checkpoint_source
            assert clock.now_ms() == latest.created_at == state.checkpointed_at
            assert latest.version == state.version
            assert await store.get_checkpoint(SESSION, latest.checkpoint_id) == latest

    @proves("checkpoints.pointer-moves")
    async def test_other_commits_leave_the_pointer_alone(self, store: SessionStateStore) -> None:
        await start(store)
        await commit(store)
        before = await _latest(store)
        await store.append_messages(SESSION, [said("x")])
        await store.merge_custom_state(SESSION, set_key("a", 1))
        await store.update_status(SESSION, "paused")
        await start(store, run_id="r-2")
        assert await _latest(store) == before

    @proves("checkpoints.describe-the-moment")
    async def test_a_checkpoint_tells_where_the_session_stood(
        self, store: SessionStateStore, clock: ManualClock
    ) -> None:
        await start(store, append_messages=(said("hi"),))
        meta = CheckpointMeta(step_id="step-1", step_count=4, stream_sequence=99)
        written = await store.create_checkpoint(SESSION, meta)
        assert written == Checkpoint(
            checkpoint_id=written.checkpoint_id,
            session_id=SESSION,
            run_id="r-1",
            step_id="step-1",
            step_count=4,
            status="active",
            message_count=1,
            stream_sequence=99,
            source="save",
            version=2,
            created_at=clock.now_ms(),
        )
        answered = await commit(store, 2, messages=[said("a"), said("b")], state={"status": "paused"})
        latest = await _latest(store)
        assert (latest.step_id, latest.step_count, latest.stream_sequence) == ("r-1-step-2", 2, 20)
        assert (latest.status, latest.message_count) == ("paused", 3)
        assert answered.message_count == 3

    @proves("checkpoints.hold-their-writes")
    async def test_a_checkpoint_holds_the_writes_of_its_own_commit(self, store: SessionStateStore) -> None:
        await start(store, create=CreateSession(custom_state={"a": 1}))
        await store.merge_custom_state(SESSION, set_key("between", 1))
        await store.stage_changes(SESSION, staged("c-2", append_to("list", 2, call="c-2"), index=2))
        await store.stage_changes(SESSION, staged("c-1", append_to("list", 1, call="c-1"), index=1))
        own = StepWrites(ops=(Replace(key="a", value=2), Delete(key="gone")))
        await commit(store, writes=own)
        assert (await _latest(store)).writes.ops == (
            Append(key="list", items=[1], tool_call_id="c-1"),
            Append(key="list", items=[2], tool_call_id="c-2"),
            *own.ops,
        )
        assert not (await store.create_checkpoint(SESSION, step_meta())).writes

    @proves("checkpoints.state-rebuilt")
    async def test_the_state_at_every_checkpoint_is_what_it_was(self, store: SessionStateStore) -> None:
        await start(store, create=CreateSession(custom_state={"initial": {"n": 1}}))
        expected: dict[str, object] = {}
        for step in range(1, 31):
            match step % 5:
                case 0:
                    writes = StepWrites(ops=(Delete(key="list"), Replace(key="big", value="x" * 400)))
                case 1:
                    writes = set_key(f"key-{step}", {"step": step})
                case _:
                    writes = append_to("list", {"step": step})
            if step % 7 == 0:
                await store.merge_custom_state(SESSION, append_to("between", step))
            answered = await commit(store, step, writes=writes)
            expected[answered.checkpoint_id] = (await store.load_state(SESSION)).custom_state
        for checkpoint_id, state in expected.items():
            assert await store.load_checkpoint_state(SESSION, checkpoint_id) == state

    @proves("checkpoints.foreign-id-unknown")
    async def test_a_strangers_checkpoint_is_as_unknown_as_any(self, store: SessionStateStore) -> None:
        await store.create_session(SESSION)
        await store.create_session("other")
        stranger = await store.create_checkpoint("other", step_meta())
        for unknown in (stranger.checkpoint_id, "made-up", ""):
            assert await store.get_checkpoint(SESSION, unknown) is None
            with pytest.raises(CheckpointNotFoundError):
                await store.load_checkpoint_state(SESSION, unknown)

    @proves("checkpoints.newest-first")
    async def test_checkpoints_are_listed_newest_first(self, store: SessionStateStore) -> None:
        await start(store)
        made = [(await commit(store, step)).checkpoint_id for step in (1, 2, 3)]
        listed = await store.list_checkpoints(SESSION)
        assert [each.checkpoint_id for each in listed.items] == made[::-1]
        assert [each.version for each in listed.items] == [4, 3, 2]


async def _save(store: SessionStateStore):
    return await store.save_state(SESSION, await store.load_state(SESSION))


async def _latest(store: SessionStateStore) -> Checkpoint:
    """The latest checkpoint of the usual session, which has one."""
    found = await store.get_latest_checkpoint(SESSION)
    assert found is not None
    return found
