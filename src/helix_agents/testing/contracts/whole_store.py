"""The contract of a store as a whole: complete, durable, bounded, and with the same cost at any size."""

from collections.abc import Awaitable

import pytest
from msgspec.structs import replace

from helix_agents.domain.commits import StepCommit
from helix_agents.domain.errors import StateSizeExceededError, StoreClosedError
from helix_agents.domain.messages import ToolMessage
from helix_agents.domain.records import encode
from helix_agents.domain.sessions import CreateSession
from helix_agents.ports.state_store import SessionStateStore, StoreLimits, check_complete
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.operations import record
from helix_agents.testing.contracts.store_handles import StoreContract, StoreHandles
from helix_agents.testing.observation import observe
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.scenes import (
    FENCE,
    SESSION,
    answer,
    append_to,
    commit,
    effect,
    fence_of,
    said,
    set_key,
    staged,
    start,
    step_meta,
    suspend,
    waiting,
)
from helix_agents.testing.seams import CountingSeam

FEW, MANY = 10, 1_000


class WholeStoreContract(StoreContract):
    """Opening, closing, limits and costs."""

    @proves("store.complete")
    async def test_the_store_has_every_operation(self, store: SessionStateStore) -> None:
        check_complete(store)
        assert store.now_ms() > 0

    @proves("store.durable")
    async def test_what_was_answered_is_there_for_a_later_handle(self, handles: StoreHandles) -> None:
        first = await handles.open()
        await start(first, append_messages=(said("hi"),))
        await commit(first, writes=set_key("a", 1), pending=(waiting(first, "call-1"),))
        await first.stage_changes(SESSION, staged("c-1", step=2))
        await first.set_interrupt_flag(SESSION, "stop")
        before = await observe(first, SESSION)
        await first.close()
        assert await observe(await handles.open(), SESSION) == before

    @proves("store.schema-version")
    async def test_every_handle_tells_the_same_schema_version(self, handles: StoreHandles) -> None:
        versions = [await (await handles.open(namespace=name)).migration_version() for name in ("", "", "north")]
        assert versions[0] >= 1
        assert len(set(versions)) == 1

    @proves("store.closed")
    async def test_a_closed_store_refuses_work_by_name(self, store: SessionStateStore) -> None:
        await store.create_session(SESSION)
        await store.close()
        await store.close()
        for work in (
            lambda: store.load_state(SESSION),
            lambda: store.create_session("s-2"),
            store.list_sessions,
            lambda: store.append_messages(SESSION, [said("x")]),
        ):
            with pytest.raises(StoreClosedError):
                await work()

    @proves("store.vacuum-loses-nothing")
    async def test_vacuum_changes_nothing_that_can_be_read(self, store: SessionStateStore) -> None:
        await start(store, append_messages=(said("kept"),))
        await commit(store, messages=[said("gone")], writes=set_key("a", 1))
        await store.truncate_messages(SESSION, 1)
        await start(store, "deleted", "r-deleted")
        await store.delete_session("deleted")
        before = await observe(store, SESSION)
        await store.vacuum()
        assert await observe(store, SESSION) == before
        await store.append_messages(SESSION, [said("more")])

    @proves("limits.declared")
    async def test_a_store_tells_its_limits(self, handles: StoreHandles) -> None:
        limits = StoreLimits(state_bytes=100, staged_write_bytes=200, message_bytes=300)
        assert (await handles.open(limits=limits)).limits == limits

    @proves("limits.message", "versions.failed-write-changes-nothing")
    async def test_a_message_over_the_limit_is_refused_everywhere(self, handles: StoreHandles) -> None:
        fits = said("é" * 50)
        size = len(encode(fits))
        store = await handles.open(limits=StoreLimits(message_bytes=size))
        await start(store, append_messages=(fits,))
        before = await observe(store, SESSION)
        large = said("é" * 50 + "x")
        for write in (
            lambda: store.append_messages(SESSION, [said("small"), large]),
            lambda: commit(store, messages=[large], writes=set_key("a", 1)),
            lambda: start(store, run_id="r-2", append_messages=(large,)),
            lambda: store.save_state_and_promote_staging(SESSION, record(SESSION), [large], step_meta()),
        ):
            with pytest.raises(StateSizeExceededError) as refusal:
                await write()
            assert (refusal.value.operation, refusal.value.session_id) == ("message", SESSION)
            assert (refusal.value.size_bytes, refusal.value.limit_bytes) == (size + 1, size)
        assert await observe(store, SESSION) == before

    @proves("limits.staged-write", "versions.failed-write-changes-nothing")
    async def test_a_staged_change_over_the_limit_is_refused_everywhere(self, handles: StoreHandles) -> None:
        store = await handles.open(limits=StoreLimits(staged_write_bytes=300))
        await start(store)
        await store.stage_changes(SESSION, staged("fits"))
        before = await observe(store, SESSION)
        message = ToolMessage(tool_call_id="c-1", tool_name="t", content="x" * 300)
        large = staged("c-1", message=message)
        for write in (
            lambda: store.stage_changes(SESSION, large),
            lambda: commit(store, stage=(large,), promote_staging=False),
            lambda: store.begin_effect(effect("pay-1", stage=(large,))),
        ):
            with pytest.raises(StateSizeExceededError) as refusal:
                await write()
            assert (refusal.value.operation, refusal.value.limit_bytes) == ("stage", 300)
        assert await observe(store, SESSION) == before

    @proves("limits.state", "versions.failed-write-changes-nothing")
    async def test_a_state_over_the_limit_is_refused_everywhere(self, handles: StoreHandles) -> None:
        store = await handles.open(limits=StoreLimits(state_bytes=200))
        await start(store, create=CreateSession(custom_state={"list": ["x" * 100]}))
        await store.stage_changes(SESSION, staged("c-1", append_to("list", "x" * 100)))
        before = await observe(store, SESSION)
        loaded = await store.load_state(SESSION)
        large = {"a": "x" * 200}
        for write in (
            lambda: store.merge_custom_state(SESSION, append_to("list", "x" * 100)),
            lambda: store.save_state(SESSION, replace(loaded, custom_state=large)),
            lambda: store.promote_staging(SESSION, step_meta()),
            lambda: commit(store, messages=[said("x")]),
            lambda: start(store, run_id="r-2", writes=set_key("b", "x" * 100)),
            lambda: store.create_session("s-2", CreateSession(custom_state=large)),
        ):
            with pytest.raises(StateSizeExceededError) as refusal:
                await write()
            assert (refusal.value.operation, refusal.value.limit_bytes) == ("state", 200)
            assert refusal.value.size_bytes > 200
        assert await observe(store, SESSION) == before
        assert not await store.session_exists("s-2")
        await store.merge_custom_state(SESSION, set_key("list", []))

    @proves("pending.one-query")
    async def test_what_waits_is_found_at_the_same_cost_at_any_size(
        self, handles: StoreHandles, clock: ManualClock
    ) -> None:
        seam = CountingSeam()
        store = await handles.open(seam=seam)
        await start(store)
        costs: list[list[int]] = []
        for size, step in ((FEW, 1), (MANY, 2)):
            calls = tuple(waiting(store, f"call-{step}-{n}", deadline=clock.now_ms()) for n in range(size))
            await commit(store, step, pending=calls)
            costs.append(
                [
                    await _cost(seam, store.list_pending(limit=FEW)),
                    await _cost(seam, store.find_expired_pending(limit=FEW)),
                    await _cost(seam, store.find_expired_pending(session_id=SESSION, limit=FEW)),
                    await _cost(seam, store.expire_pending(limit=FEW)),
                    await _cost(seam, store.list_unresumed(0, limit=FEW)),
                ]
            )
        assert costs[0] == costs[1]

    @proves("recovery.one-query")
    async def test_orphans_are_found_at_the_same_cost_at_any_size(self, handles: StoreHandles) -> None:
        seam = CountingSeam()
        store = await handles.open(seam=seam)
        costs: list[int] = []
        for first, last in ((0, 5), (5, 60)):
            for n in range(first, last):
                await start(store, f"s-{n}", f"r-{n}")
            costs.append(await _cost(seam, store.list_orphans(limit=5)))
        assert costs[0] == costs[1]

    @proves("commits.flat")
    async def test_a_commit_costs_the_same_at_any_length(self, handles: StoreHandles) -> None:
        seam = CountingSeam()
        store = await handles.open(seam=seam)
        await start(store)
        loaded = await store.load_state(SESSION)
        costs: list[int] = []
        for step, length in ((1, FEW), (2, MANY)):
            await store.append_messages(SESSION, [said("x")] * length)
            await store.merge_custom_state(SESSION, append_to("list", *range(length)))
            costs.append(
                await _cost(
                    seam,
                    store.save_state_and_promote_staging(
                        SESSION,
                        loaded,
                        [said("y")],
                        step_meta(step),
                        commit=StepCommit(fence=FENCE, step=step, writes=append_to("list", step)),
                    ),
                )
            )
        assert costs[0] == costs[1] > 0

    @proves("store.durable")
    async def test_two_handles_see_each_others_commits_at_once(self, handles: StoreHandles) -> None:
        one, two = await handles.open(), await handles.open()
        await start(one)
        await suspend(one, 1, waiting(one, "call-1"))
        await two.submit_answer(answer("call-1"))
        await start(one, run_id="r-2", append_messages=(said("on"),))
        await commit(two, fence=fence_of("r-2"), consume=("call-1",), writes=set_key("a", 1))
        assert await observe(one, SESSION) == await observe(two, SESSION)


async def _cost(seam: CountingSeam, work: Awaitable[object]) -> int:
    """How many statements a piece of work takes."""
    seam.reset()
    await work
    return seam.count
