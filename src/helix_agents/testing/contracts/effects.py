"""The contract of the effect ledger: a tool that must not run twice runs once, or its outcome is openly unknown."""

import asyncio

import pytest
from msgspec.structs import replace

from helix_agents.domain.checkpoints import BEGINNING
from helix_agents.domain.effects import (
    Effect,
    EffectBegun,
    EffectBusy,
    EffectFinished,
    EffectLost,
    EffectRecorded,
    EffectUnknown,
)
from helix_agents.domain.errors import InvalidWriteError, SupersededError
from helix_agents.domain.pending import ApprovalAnswer, SubmitAnswer
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.store_handles import StoreContract, StoreHandles
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.scenes import (
    FENCE,
    SESSION,
    commit,
    effect,
    fence_of,
    staged,
    start,
    start_child,
    step_meta,
    waiting,
)


class EffectsContract(StoreContract):
    """Beginning, renewing, finishing and forgetting effects."""

    @proves("effects.intent-first", "effects.listed")
    async def test_a_begun_effect_is_an_intent_with_owner_and_lease(
        self, store: SessionStateStore, clock: ManualClock
    ) -> None:
        await start(store)
        begun = await store.begin_effect(effect("pay-1"))
        now = clock.now_ms()
        entry = Effect(
            session_id=SESSION,
            tool_call_id="pay-1",
            tool_name="pay",
            idempotency_key="key-pay-1",
            state="intent",
            owner="worker-1",
            lease_expires_at=now + 1_000,
            begun_at=now,
        )
        assert begun == EffectBegun(effect=entry)
        clock.advance(1)
        await store.begin_effect(effect("a-later-one"))
        assert [each.tool_call_id for each in await store.list_effects(SESSION)] == ["pay-1", "a-later-one"]
        assert (await store.list_effects(SESSION))[0] == entry

    @proves("effects.finished-result-reused", "records.round-trip")
    @pytest.mark.parametrize("result", [None, "", [], {"naïve": [1, 2**90, None]}], ids=repr)
    async def test_a_finished_effect_gives_its_result_to_everybody(
        self, store: SessionStateStore, clock: ManualClock, result: object
    ) -> None:
        await start(store)
        await store.begin_effect(effect("pay-1"))
        clock.advance(5)
        recorded = await store.finish_effect(SESSION, "pay-1", "worker-1", result)
        assert isinstance(recorded, EffectRecorded)
        assert (recorded.effect.state, recorded.effect.result) == ("done", result)
        assert recorded.effect.finished_at == clock.now_ms()
        clock.advance(10_000)
        for owner in ("worker-1", "worker-2"):
            assert await store.begin_effect(effect("pay-1", owner)) == EffectFinished(effect=recorded.effect)

    @proves("effects.busy-elsewhere")
    async def test_while_another_owner_lives_the_tool_may_not_run(
        self, store: SessionStateStore, clock: ManualClock
    ) -> None:
        await start(store)
        await store.begin_effect(effect("pay-1"))
        clock.advance(999)
        busy = await store.begin_effect(effect("pay-1", "worker-2"))
        assert isinstance(busy, EffectBusy)
        assert busy.effect.owner == "worker-1"

    @proves("effects.same-owner-continues")
    async def test_the_same_owner_may_begin_again(self, store: SessionStateStore, clock: ManualClock) -> None:
        await start(store)
        await store.begin_effect(effect("pay-1"))
        clock.advance(500)
        again = await store.begin_effect(effect("pay-1"))
        assert isinstance(again, EffectBegun)
        assert again.effect.lease_expires_at == clock.now_ms() + 1_000

    @proves("effects.unknown-after-a-death", "effects.rerun-on-decision")
    async def test_after_a_death_the_outcome_is_unknown_until_somebody_decides(
        self, store: SessionStateStore, clock: ManualClock
    ) -> None:
        await start(store)
        await store.begin_effect(effect("pay-1"))
        clock.advance(1_000)
        for owner in ("worker-2", "worker-3"):
            unknown = await store.begin_effect(effect("pay-1", owner))
            assert isinstance(unknown, EffectUnknown)
            assert unknown.effect.state == "unknown"
        rerun = await store.begin_effect(
            replace(effect("pay-1", "worker-2", rerun=True), idempotency_key="another-key")
        )
        assert isinstance(rerun, EffectBegun)
        assert (rerun.effect.owner, rerun.effect.idempotency_key) == ("worker-2", "key-pay-1")
        recorded = await store.finish_effect(SESSION, "pay-1", "worker-2", "paid")
        assert isinstance(recorded, EffectRecorded)

    @proves("effects.listed")
    async def test_an_effect_that_was_begun_again_is_younger_than_those_begun_meanwhile(
        self, store: SessionStateStore, clock: ManualClock
    ) -> None:
        await start(store)
        for call in ("pay-1", "pay-2"):
            await store.begin_effect(effect(call, lease_ms=0))
            clock.advance(1)
        await store.begin_effect(effect("pay-1", "worker-2", rerun=True))
        assert [each.tool_call_id for each in await store.list_effects(SESSION)] == ["pay-2", "pay-1"]

    @proves("effects.one-begin-wins")
    async def test_of_many_owners_one_may_run_the_tool(self, handles: StoreHandles) -> None:
        stores = [await handles.open() for _ in range(3)]
        await start(stores[0])
        outcomes = await asyncio.gather(
            *(store.begin_effect(effect("pay-1", f"worker-{n}")) for n, store in enumerate(stores * 3))
        )
        assert sum(isinstance(each, EffectBegun) for each in outcomes) == 1
        assert sum(isinstance(each, EffectBusy) for each in outcomes) == 8

    @proves("effects.result-recorded-once")
    async def test_the_first_result_stands(self, store: SessionStateStore) -> None:
        await start(store)
        await store.begin_effect(effect("pay-1"))
        first = await store.finish_effect(SESSION, "pay-1", "worker-1", "first")
        assert await store.finish_effect(SESSION, "pay-1", "worker-1", "second") == first
        assert isinstance(await store.finish_effect(SESSION, "pay-1", "worker-2", "third"), EffectLost)
        assert (await store.list_effects(SESSION))[0].result == "first"

    @proves("effects.late-result-kept")
    async def test_a_result_after_the_effect_was_given_up_is_kept_as_late(
        self, store: SessionStateStore, clock: ManualClock
    ) -> None:
        await start(store)
        await store.begin_effect(effect("pay-1"))
        clock.advance(2_000)
        await store.begin_effect(effect("pay-1", "worker-2"))
        lost = await store.finish_effect(SESSION, "pay-1", "worker-1", {"paid": True})
        assert isinstance(lost, EffectLost)
        (found,) = await store.list_effects(SESSION)
        assert (found.state, found.result, found.late_result) == ("unknown", None, {"paid": True})

    @proves("effects.renewed")
    async def test_a_lease_is_prolonged_by_its_owner_alone(self, store: SessionStateStore, clock: ManualClock) -> None:
        await start(store)
        await store.begin_effect(effect("pay-1"))
        clock.advance(900)
        renewed = await store.renew_effect(SESSION, "pay-1", "worker-1", 5_000)
        assert isinstance(renewed, EffectRecorded)
        assert renewed.effect.lease_expires_at == clock.now_ms() + 5_000
        assert isinstance(await store.renew_effect(SESSION, "pay-1", "worker-2", 5_000), EffectLost)
        clock.advance(4_999)
        assert isinstance(await store.begin_effect(effect("pay-1", "worker-2")), EffectBusy)
        clock.advance(1)
        assert isinstance(await store.begin_effect(effect("pay-1", "worker-2")), EffectUnknown)
        assert isinstance(await store.renew_effect(SESSION, "pay-1", "worker-1", 5_000), EffectLost)

    @proves("effects.left-behind")
    async def test_a_call_that_comes_again_after_a_rewind_begins_anew(self, store: SessionStateStore) -> None:
        await start(store)
        await store.begin_effect(effect("pay-1"))
        await store.finish_effect(SESSION, "pay-1", "worker-1", "paid")
        await store.begin_effect(effect("pay-2", lease_ms=0))
        run = (await start(store, run_id="r-2", rewind_to=BEGINNING)).run
        assert await store.list_effects(SESSION) == ()
        for call in ("pay-1", "pay-2"):
            again = effect(call, "worker-2", fence=run.fence)
            assert isinstance(await store.begin_effect(again), EffectBegun)

    @proves("effects.given-up")
    async def test_an_owner_who_leaves_keeps_nobody_waiting(self, store: SessionStateStore) -> None:
        await start(store)
        await store.begin_effect(effect("pay-1"))
        assert isinstance(await store.renew_effect(SESSION, "pay-1", "worker-2", 0), EffectLost)
        assert isinstance(await store.begin_effect(effect("pay-1", "worker-2")), EffectBusy)
        assert isinstance(await store.renew_effect(SESSION, "pay-1", "worker-1", 0), EffectRecorded)
        assert isinstance(await store.begin_effect(effect("pay-1", "worker-2")), EffectUnknown)
        assert [each.state for each in await store.list_effects(SESSION)] == ["unknown"]

    @proves("effects.unbegun-refused")
    async def test_what_never_began_cannot_be_finished_or_renewed(self, store: SessionStateStore) -> None:
        await start(store)
        with pytest.raises(InvalidWriteError):
            await store.finish_effect(SESSION, "pay-1", "worker-1", None)
        with pytest.raises(InvalidWriteError):
            await store.renew_effect(SESSION, "pay-1", "worker-1", 1_000)
        assert await store.list_effects(SESSION) == ()

    @proves("effects.stages-the-reply")
    async def test_the_reply_is_staged_whether_or_not_the_tool_may_run(self, store: SessionStateStore) -> None:
        await start(store)
        for call, owner in (("one", "worker-1"), ("two", "worker-2")):
            await store.begin_effect(effect("pay-1", owner, stage=(staged(call, data={"reply": call}),)))
        rows = await store.get_staged_changes(SESSION, step_meta().step_id)
        assert {row.tool_call_id: row.data for row in rows} == {"one": {"reply": "one"}, "two": {"reply": "two"}}

    @proves("effects.consumes-the-approval")
    async def test_the_approval_is_consumed_when_the_tool_may_run(
        self, store: SessionStateStore, clock: ManualClock
    ) -> None:
        await start(store)
        await commit(store, pending=(waiting(store, "pay-1", kind="approval"),))
        await store.submit_answer(
            SubmitAnswer(session_id=SESSION, tool_call_id="pay-1", answer=ApprovalAnswer(approved=True))
        )
        await store.begin_effect(effect("pay-1", consume_answer=True))
        call = await store.get_pending_call(SESSION, "pay-1")
        assert call is not None
        assert (call.state, call.consumed_at) == ("consumed", clock.now_ms())

    @proves("effects.consumes-the-approval")
    async def test_an_approval_of_another_session_is_left_alone(self, store: SessionStateStore) -> None:
        await start(store)
        await commit(store, pending=(waiting(store, "pay-1", kind="approval"),))
        await store.submit_answer(
            SubmitAnswer(session_id=SESSION, tool_call_id="pay-1", answer=ApprovalAnswer(approved=True))
        )
        run_id = await start_child(store)
        await store.begin_effect(effect("pay-1", session_id="child", fence=fence_of(run_id), consume_answer=True))
        call = await store.get_pending_call(SESSION, "pay-1")
        assert call is not None
        assert call.state == "answered"

    @proves("effects.forgotten-by-a-step")
    async def test_a_step_forgets_the_effects_it_names(self, store: SessionStateStore) -> None:
        await start(store)
        for call in ("pay-1", "pay-2"):
            await store.begin_effect(effect(call))
            await store.finish_effect(SESSION, call, "worker-1", call)
        await commit(store, forget_effects=("pay-1",))
        assert [each.tool_call_id for each in await store.list_effects(SESSION)] == ["pay-2"]
        assert isinstance(await store.begin_effect(effect("pay-1")), EffectBegun)

    @proves("fence.older-run-refused", "fence.older-attempt-refused", "fence.ended-run-refused")
    async def test_an_outdated_fence_begins_nothing(self, store: SessionStateStore) -> None:
        await start(store)
        await start(store, "ended", "r-ended")
        await store.update_run_status("r-ended", "interrupted")
        await store.claim_run(SESSION, FENCE, "worker-2")
        refused = (
            effect("pay-1"),
            effect("pay-1", fence=fence_of("never")),
            effect("pay-1", session_id="ended", fence=fence_of("r-ended")),
        )
        for request in refused:
            with pytest.raises(SupersededError):
                await store.begin_effect(replace(request, stage=(staged("reply"),)))
        assert await store.list_effects(SESSION) == await store.list_effects("ended") == ()
        assert not await store.has_staged_changes(SESSION)
