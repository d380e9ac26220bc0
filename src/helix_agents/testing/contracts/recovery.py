"""The contract of recovery: runs whose process died are found, and only those."""

from helix_agents.domain.runs import Lease
from helix_agents.domain.sessions import CreateSession
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.store_handles import StoreContract
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.scenes import SESSION, start


class RecoveryContract(StoreContract):
    """Leases and orphans."""

    @proves("recovery.orphans-found", "recovery.owned-runs-left-alone")
    async def test_runs_without_a_live_owner_are_orphans(self, store: SessionStateStore, clock: ManualClock) -> None:
        assert await store.renew_lease("alive", 5_000) == Lease(owner="alive", expires_at=clock.now_ms() + 5_000)
        await store.renew_lease("dying", 1_000)
        for run, owner in (("nobody's", None), ("unheard-of", "stranger"), ("dead", "dying"), ("cared-for", "alive")):
            await start(store, f"s-{run}", run, owner=owner)
        await start(store, "s-ended", "ended")
        await store.update_run_status("ended", "completed")
        assert sorted(await _orphans(store)) == ["nobody's", "unheard-of"]
        clock.advance(1_000)
        assert sorted(await _orphans(store)) == ["dead", "nobody's", "unheard-of"]
        await store.renew_lease("dying", 1_000)
        assert sorted(await _orphans(store)) == ["nobody's", "unheard-of"]

    @proves("recovery.lease-found-while-alive")
    async def test_a_lease_is_found_while_it_is_alive(self, store: SessionStateStore, clock: ManualClock) -> None:
        assert await store.find_lease("worker-1") is None
        lease = await store.renew_lease("worker-1", 1_000)
        clock.advance(999)
        assert await store.find_lease("worker-1") == lease
        assert await store.find_lease("worker-2") is None
        clock.advance(1)
        assert await store.find_lease("worker-1") is None
        lease = await store.renew_lease("worker-1", 10)
        assert await store.find_lease("worker-1") == lease == Lease(owner="worker-1", expires_at=clock.now_ms() + 10)
        await store.release_lease("worker-1")
        assert await store.find_lease("worker-1") is None

    @proves("recovery.released-at-once")
    async def test_a_released_lease_makes_orphans_at_once(self, store: SessionStateStore) -> None:
        await store.renew_lease("worker-1", 5_000)
        await start(store, owner="worker-1")
        assert await _orphans(store) == []
        await store.release_lease("worker-1")
        await store.release_lease("worker-1")
        assert await _orphans(store) == ["r-1"]

    @proves("recovery.children-left-to-their-parent")
    async def test_a_child_is_left_to_the_driver_of_its_parent(self, store: SessionStateStore) -> None:
        await start(store)
        child = CreateSession(parent_session_id=SESSION, root_session_id=SESSION)
        await start(store, "child", "r-child", create=child, parent_run_id="r-1")
        assert await _orphans(store) == ["r-1"]
        await store.update_run_status("r-1", "failed")
        assert await _orphans(store) == ["r-child"]

    @proves("recovery.oldest-first")
    async def test_the_oldest_orphan_comes_first(self, store: SessionStateStore, clock: ManualClock) -> None:
        for run in ("c", "a", "b"):
            await start(store, f"s-{run}", run)
            clock.advance(1)
        assert await _orphans(store) == ["c", "a", "b"]
        assert await _orphans(store, limit=2) == ["c", "a"]
        pages = [await store.list_orphans(limit=2)]
        pages.append(await store.list_orphans(limit=2, after=pages[0][-1]))
        assert [[run.run_id for run in page] for page in pages] == [["c", "a"], ["b"]]
        assert await store.list_orphans(after=pages[1][-1]) == ()
        claimed = await store.claim_run("s-c", (await store.list_orphans())[0].fence, "worker-1")
        await store.renew_lease("worker-1", 100)
        assert claimed.started_at < clock.now_ms()
        assert await _orphans(store) == ["a", "b"]

    @proves("recovery.oldest-first")
    async def test_no_page_hides_an_orphan_that_began_in_the_same_moment(self, store: SessionStateStore) -> None:
        for run in ("c", "a", "b"):
            await start(store, f"s-{run}", run)
        pages = [await store.list_orphans(limit=2)]
        pages.append(await store.list_orphans(limit=2, after=pages[0][-1]))
        assert [[run.run_id for run in page] for page in pages] == [["a", "b"], ["c"]]


async def _orphans(store: SessionStateStore, limit: int = 100) -> list[str]:
    """The ids of the runs that no process drives."""
    return [run.run_id for run in await store.list_orphans(limit=limit)]
