"""The contract of staging: rows that are held between a call's result and its step's commit."""

import pytest

from helix_agents.domain.errors import SupersededError
from helix_agents.domain.messages import ToolMessage
from helix_agents.domain.runs import Fence
from helix_agents.domain.sessions import CreateSession, SuspensionContext
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.store_handles import StoreContract
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.scenes import (
    FENCE,
    SESSION,
    append_to,
    commit,
    set_key,
    staged,
    start,
    step_meta,
    suspend,
    waiting,
)

STEP_ONE, STEP_TWO = step_meta(1).step_id, step_meta(2).step_id


class StagingContract(StoreContract):
    """Staging, promoting and discarding."""

    @proves("staging.upsert", "records.round-trip")
    async def test_staging_the_same_call_again_replaces_it(self, store: SessionStateStore, clock: ManualClock) -> None:
        await start(store)
        await store.stage_changes(SESSION, staged("c-1", set_key("a", "old")))
        full = staged(
            "c-1",
            set_key("a", {"n": 10**30}, call="c-1"),
            index=3,
            message=ToolMessage(tool_call_id="c-1", tool_name="t", content=[None]),
            data={"any": ["thing\0", {}]},
            staged_at=clock.now_ms(),
        )
        await store.stage_changes(SESSION, full, fence=FENCE)
        assert await store.get_staged_changes(SESSION, STEP_ONE) == (full,)

    @proves("staging.call-order")
    async def test_staged_rows_come_in_call_order(self, store: SessionStateStore) -> None:
        await start(store)
        for call, index in (("z", 0), ("b", 2), ("a", 2), ("m", 1)):
            await store.stage_changes(SESSION, staged(call, append_to("order", call), index=index))
        rows = await store.get_staged_changes(SESSION, STEP_ONE)
        assert [row.tool_call_id for row in rows] == ["z", "m", "a", "b"]
        await store.promote_staging(SESSION, step_meta())
        assert (await store.load_state(SESSION)).custom_state == {"order": ["z", "m", "a", "b"]}

    @proves("staging.promoted-once")
    async def test_promoting_applies_a_steps_writes_once(self, store: SessionStateStore) -> None:
        await store.create_session(SESSION, CreateSession(custom_state={"list": [0]}))
        await store.stage_changes(SESSION, staged("c-1", append_to("list", 1)))
        first = await store.promote_staging(SESSION, step_meta())
        second = await store.promote_staging(SESSION, step_meta())
        assert (await store.load_state(SESSION)).custom_state == {"list": [0, 1]}
        assert not await store.has_staged_changes(SESSION)
        assert (first.new_version, second.new_version) == (2, 3)
        assert await store.load_checkpoint_state(SESSION, first.checkpoint_id) == {"list": [0, 1]}

    @proves("staging.steps-apart")
    async def test_steps_are_promoted_apart(self, store: SessionStateStore) -> None:
        await start(store)
        await store.stage_changes(SESSION, staged("c-1", append_to("list", 1), step=1))
        await store.stage_changes(SESSION, staged("c-1", append_to("list", 2), step=2))
        assert await store.has_staged_changes(SESSION, STEP_ONE)
        await commit(store, 2)
        assert (await store.load_state(SESSION)).custom_state == {"list": [2]}
        assert not await store.has_staged_changes(SESSION, STEP_TWO)
        assert await store.get_staged_changes(SESSION, STEP_TWO) == ()
        assert len(await store.get_staged_changes(SESSION, STEP_ONE)) == 1

    @proves("staging.discarded-whole")
    async def test_a_step_is_discarded_whole(self, store: SessionStateStore) -> None:
        await store.create_session(SESSION)
        await store.create_session("other")
        for session in (SESSION, "other"):
            for call, step in (("c-1", 1), ("c-2", 1), ("c-3", 2)):
                await store.stage_changes(session, staged(call, step=step))
        assert await store.discard_staging(SESSION, STEP_ONE) == 2
        assert await store.discard_staging(SESSION, STEP_ONE) == 0
        assert await store.has_staged_changes(SESSION, STEP_TWO)
        assert await store.discard_staging(SESSION) == 1
        assert not await store.has_staged_changes(SESSION)
        assert len(await store.get_staged_changes("other", STEP_ONE)) == 2

    @proves("staging.orphans-by-age")
    async def test_old_rows_of_idle_sessions_are_cleaned_up(self, store: SessionStateStore, clock: ManualClock) -> None:
        await store.create_session("idle")
        await start(store, "busy", "r-busy")
        for session in ("idle", "busy"):
            await store.stage_changes(session, staged("old"))
        clock.advance(1_000)
        await store.stage_changes("idle", staged("young"))
        assert await store.cleanup_orphaned_staging(1_001) == 0
        assert await store.cleanup_orphaned_staging(500) == 1
        assert [row.tool_call_id for row in await store.get_staged_changes("idle", STEP_ONE)] == ["young"]
        assert await store.has_staged_changes("busy")

    @proves("staging.orphans-by-age")
    @pytest.mark.parametrize("says", ["suspension_context", "suspended_step_id"])
    async def test_old_rows_of_a_step_that_waits_for_somebody_stay(
        self, store: SessionStateStore, clock: ManualClock, says: str
    ) -> None:
        context = SuspensionContext(kind="suspended_client_tool", run_id="r-1", step_id=STEP_ONE, step=1)
        await start(store)
        open_step = {says: context if says == "suspension_context" else STEP_ONE}
        await suspend(
            store, 1, waiting(store, "asked"), stage=(staged("held"),), state=open_step, promote_staging=False
        )
        clock.advance(1_000)
        assert await store.cleanup_orphaned_staging(500) == 0
        assert [row.tool_call_id for row in await store.get_staged_changes(SESSION, STEP_ONE)] == ["held"]

    @proves("fence.older-run-refused")
    async def test_a_replaced_run_stages_nothing(self, store: SessionStateStore) -> None:
        await start(store)
        await start(store, run_id="r-2")
        with pytest.raises(SupersededError):
            await store.stage_changes(SESSION, staged("c-1"), fence=FENCE)
        assert not await store.has_staged_changes(SESSION)

    @proves("fence.older-attempt-refused")
    async def test_a_replaced_attempt_stages_nothing(self, store: SessionStateStore) -> None:
        await start(store)
        await store.claim_run(SESSION, FENCE, "worker-2")
        with pytest.raises(SupersededError):
            await store.stage_changes(SESSION, staged("c-1"), fence=FENCE)
        await store.stage_changes(SESSION, staged("c-1"), fence=Fence(run_id="r-1", attempt=2))

    @proves("fence.ended-run-refused")
    async def test_an_ended_run_stages_nothing(self, store: SessionStateStore) -> None:
        await start(store)
        await store.update_run_status("r-1", "completed")
        with pytest.raises(SupersededError):
            await store.stage_changes(SESSION, staged("c-1"), fence=FENCE)
