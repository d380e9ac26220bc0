"""The contract of moving entries: dumped at one revision, and restored to where they came from or elsewhere."""

import pytest

from helix_agents.domain.capability_errors import InvalidInput, VersionConflict
from helix_agents.domain.entries import Entry, RestoreEntries
from helix_agents.ports.backend import Backend
from helix_agents.ports.entries import EntryStore
from helix_agents.testing.contracts.entry_handles import EntriesContract, entries_of
from helix_agents.testing.contracts.handles import Handles
from helix_agents.testing.entry_scenes import KEPT, SCOPE, everything, put, recount, remove, set_value, values, write
from helix_agents.testing.requirements.registry import proves


async def dumped(store: EntryStore, *scopes: str) -> tuple[int, list[Entry]]:
    """The revision and rows of a dump."""
    async with store.dump(scopes) as dump:
        return dump.revision, [row async for batch in dump.rows() for row in batch]


async def restored(store: EntryStore, rows: list[Entry], *scopes: str) -> int:
    """Restore rows; returns the new revision."""
    await store.stage_restore("r-1", rows)
    request = RestoreEntries(restore_id="r-1", scopes=scopes, owner="operator", keep_versions=KEPT)
    return (await store.restore(request)).revision


class EntryMovesContract(EntriesContract):
    """Dumps and restores."""

    @proves("entries.dump-one-revision")
    async def test_a_dump_shows_one_revision(self, handles: Handles[Backend]) -> None:
        store, writer = entries_of(await handles.open()), entries_of(await handles.open())
        for number in range(20):
            await set_value(store, f"k{number:02}", [number])
            await set_value(store, f"k{number:02}", number)
        before = await everything(store)
        async with store.dump([SCOPE]) as dump:
            for number in range(0, 20, 2):
                await set_value(writer, f"k{number:02}", "later")
            await write(writer, remove("k01"), put("new", 1))
            rows = [row async for batch in dump.rows() for row in batch]
            assert dump.revision == 40
        found: dict[str, list[tuple[int, str | None]]] = {}
        for row in rows:
            found.setdefault(row.key, []).insert(0, (row.version, row.value))
        assert [(key, [version for version, _ in versions]) for key, versions in found.items()] == [
            (key, [version for version, _ in versions]) for key, versions in before
        ]
        assert found["k00"] == [(2, "0"), (1, "[0]")]

    @proves("entries.restore-exact", "entries.restore-leaves-others", "entries.restore-goes-forward")
    async def test_a_restore_brings_back_values_and_history(self, store: EntryStore) -> None:
        for number in range(7):
            await set_value(store, "often", number)
        await set_value(store, "deleted-later", "d")
        await set_value(store, "same", "s")
        await set_value(store, "other", "o", scope="agent:bob")
        read = await store.find(SCOPE, "often")
        _, rows = await dumped(store, SCOPE)
        before = dict(await everything(store))
        head = (
            await set_value(store, "often", "changed"),
            await write(store, remove("deleted-later"), put("extra", 1)),
        )
        await set_value(store, "other", "kept", scope="agent:bob")
        revision = await restored(store, rows, SCOPE)
        assert revision > head[1].revision
        assert await values(store) == {"often": 6, "deleted-later": "d", "same": "s"}
        assert await values(store, "agent:bob") == {"other": "kept"}
        after = dict(await everything(store))
        assert after["same"] == before["same"]
        assert [value for _, value in after["often"]] == [6, *(value for _, value in before["often"])][:KEPT]
        assert after["often"][0][0] > 8
        assert tuple(await recount(store)) == (3, (await store.usage(SCOPE)).bytes)
        assert read is not None
        with pytest.raises(VersionConflict):
            await set_value(store, "often", "stale", expected_version=read.version)
        with pytest.raises(VersionConflict):
            await set_value(store, "often", "stale", expected_version=8)
        told = await store.list_events(head[1].revision)
        assert {event.operation for event in told.events if event.scope == SCOPE and event.revision == revision} == {
            "restore"
        }
        assert told.epoch == 2

    @proves("entries.restore-exact")
    async def test_an_empty_place_gets_the_very_same_rows(self, handles: Handles[Backend]) -> None:
        source, target = entries_of(await handles.open()), entries_of(await handles.open(namespace="clean"))
        for number in range(9):
            await set_value(source, "often", number)
        await set_value(source, "gone", 1)
        await write(source, remove("gone"))
        await set_value(source, "once", {"a": 1})
        _, rows = await dumped(source, SCOPE)
        await restored(target, rows, SCOPE)
        assert await everything(target) == await everything(source)
        assert (await target.usage(SCOPE)).bytes == (await source.usage(SCOPE)).bytes
        assert (await set_value(target, "gone", 2)).version == 2

    @proves("entries.restore-once")
    async def test_a_restore_is_made_once(self, store: EntryStore) -> None:
        await set_value(store, "k", 1)
        _, rows = await dumped(store, SCOPE)
        await restored(store, rows, SCOPE)
        request = RestoreEntries(restore_id="r-1", scopes=(SCOPE,), owner="operator")
        with pytest.raises(InvalidInput):
            await store.restore(request)
        await store.stage_restore("r-1", [])
        await store.discard_restore("r-1")
        await store.discard_restore(None)
        with pytest.raises(InvalidInput):
            await store.restore(request)
        assert await values(store) == {"k": 1}
