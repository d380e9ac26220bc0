"""The contract of references to children: added once, updated field by field, never lost."""

import asyncio

from helix_agents.domain.checkpoints import BEGINNING
from helix_agents.domain.sub_sessions import RemoteChild, SubSessionRef, SubSessionRefUpdate
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.store_handles import StoreContract, StoreHandles
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.scenes import SESSION, child_ref, commit, start

REMOTE = RemoteChild(url="https://example.org", agent="far", session_id="x", details={"a": [1, None]})


class SubSessionsContract(StoreContract):
    """References from a session to its children."""

    @proves("refs.kept", "records.round-trip")
    async def test_references_keep_every_field_oldest_first(self, store: SessionStateStore, clock: ManualClock) -> None:
        await store.create_session(SESSION)
        full = child_ref(
            "child-2",
            "d-2",
            mode="persistent",
            name="Zoë",
            status="suspended",
            location="remote",
            remote=REMOTE,
            parent_run_id="r-1",
            result={"a": 10**30},
            error="e",
            created_at=5,
            updated_at=6,
        )
        await store.add_sub_session_refs(SESSION, [child_ref("child-9", created_at=4, updated_at=4), full])
        clock.advance(1)
        await store.add_sub_session_refs(SESSION, [child_ref("child-1", created_at=5)])
        found = await store.get_sub_session_refs(SESSION)
        assert [ref.sub_session_id for ref in found] == ["child-9", "child-2", "child-1"]
        assert found[1] == full
        assert (found[2].created_at, found[2].updated_at) == (5, clock.now_ms())

    @proves("refs.added-once")
    async def test_a_reference_that_is_there_is_left_as_it_is(self, store: SessionStateStore) -> None:
        await start(store)
        await store.add_sub_session_refs(SESSION, [child_ref("child", "d-1")])
        before = await _refs(store)
        await store.add_sub_session_refs(SESSION, [child_ref("child", "d-2", status="failed")])
        await commit(store, refs=(child_ref("child", "d-3"), child_ref("other")))
        after = await _refs(store)
        assert after["child"] == before["child"]
        assert after.keys() == {"child", "other"}

    @proves("refs.updated")
    async def test_an_update_changes_what_it_names(self, store: SessionStateStore, clock: ManualClock) -> None:
        await start(store)
        await store.add_sub_session_refs(SESSION, [child_ref("child", location="remote", remote=REMOTE)])
        before = (await _refs(store))["child"]
        clock.advance(3)
        update = SubSessionRefUpdate(sub_session_id="child", status="completed", result=[1])
        updated = await store.update_sub_session_ref(SESSION, update)
        assert updated == (await _refs(store))["child"]
        assert updated is not None
        assert (updated.status, updated.result, updated.error) == ("completed", [1], None)
        assert (updated.remote, updated.created_at, updated.delegation) == (REMOTE, before.created_at, "help")
        assert updated.updated_at == clock.now_ms()
        again = SubSessionRefUpdate(sub_session_id="child", status="running", tool_call_id="d-2", delegation="more")
        await commit(store, ref_updates=(again,))
        found = (await _refs(store))["child"]
        assert (found.status, found.tool_call_id, found.delegation) == ("running", "d-2", "more")
        assert found.result == [1]
        ended = SubSessionRefUpdate(sub_session_id="child", status="failed")
        await start(store, run_id="r-2", ref_updates=(ended,))
        assert (await _refs(store))["child"].status == "failed"
        back = SubSessionRefUpdate(sub_session_id="child", status="running")
        await start(store, run_id="r-3", rewind_to=BEGINNING, ref_updates=(back,))
        assert (await _refs(store))["child"].status == "running"

    @proves("refs.update-unknown")
    async def test_an_unknown_child_is_not_updated(self, store: SessionStateStore) -> None:
        await store.create_session(SESSION)
        assert await store.update_sub_session_ref(SESSION, SubSessionRefUpdate(sub_session_id="nobody")) is None
        assert await store.get_sub_session_refs(SESSION) == ()

    @proves("refs.concurrent-adds")
    async def test_references_added_concurrently_all_arrive(self, handles: StoreHandles) -> None:
        stores = [await handles.open() for _ in range(2)]
        await stores[0].create_session(SESSION)
        await asyncio.gather(
            *(stores[n % 2].add_sub_session_refs(SESSION, [child_ref(f"child-{n}")]) for n in range(10))
        )
        assert (await _refs(stores[0])).keys() == {f"child-{n}" for n in range(10)}


async def _refs(store: SessionStateStore) -> dict[str, SubSessionRef]:
    """The references of the usual session by child."""
    return {ref.sub_session_id: ref for ref in await store.get_sub_session_refs(SESSION)}
