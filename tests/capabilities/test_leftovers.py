"""Files of processes that died while they made a backup or a snapshot are found, and go when an operator says so."""

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from helix_agents.capabilities.backups import Backups
from helix_agents.capabilities.client import StateClient
from helix_agents.capabilities.importing import import_backup
from helix_agents.capabilities.leftovers import delete_leftovers, find_leftovers
from helix_agents.capabilities.scopes import BACKUPS
from helix_agents.domain.entries import EntryTransaction, Remove
from helix_agents.domain.errors import PathRefusedError
from tests.capabilities.worlds import World

pytestmark = pytest.mark.may_block("looks at files")
TWO_DAYS = 2 * 24 * 60 * 60


@pytest.fixture
async def state(tmp_path: Path) -> AsyncIterator[StateClient]:
    world = await World.make(tmp_path)
    async with world.open("ann", face="operator") as state:
        await state.call("state.persistent.set", key="k", value=1)
        yield state


def age(path: Path) -> Path:
    long_ago = time.time() - TWO_DAYS
    os.utime(path, (long_ago, long_ago))
    return path


def age_of_new(path: Path) -> Path:
    path.write_bytes(b"{}")
    return age(path)


async def left_by_the_dead(state: StateClient) -> list[Path]:
    """A backup that was written and not made known, one that was retired and not deleted, and half a snapshot."""
    store, settings = state.gateway.store, state.gateway.settings
    backups = Backups(store, settings)
    unknown = (await backups.create(None)).path
    retired = await state.call("state.backup.create")
    forget = Remove(scope=BACKUPS, key=retired["backup_id"], forget=True)
    await store.transact(EntryTransaction(changes=(forget,), owner="ann"))
    await state.call("state.snapshot.create")
    half = backups.folder.parent / "snapshots" / ".snap-1.json.0123456789ab.part"
    half.write_bytes(b"{")
    return [age(unknown), age(backups.folder / f"{retired['backup_id']}.helixbackup"), age(half)]


async def test_files_without_a_row_are_found_and_deleted_by_who_says_so(state: StateClient) -> None:
    store, settings = state.gateway.store, state.gateway.settings
    kept = await state.call("state.backup.create")
    dead = await left_by_the_dead(state)
    for path in (dead[0].parent).iterdir():
        age(path)
    found = await find_leftovers(store, settings)
    assert sorted(each.path for each in found) == sorted(dead)
    assert {each.about.scope for each in found if each.about is not None} == {"full"}
    assert await delete_leftovers(store, found) == found
    assert await find_leftovers(store, settings) == []
    audited = [row for row in await store.list_audit() if "leftover deleted" in row.entry]
    assert len(audited) == len(dead)
    assert (await state.call("state.backup.restore", backup_id=kept["backup_id"]))["restored"] is True


async def test_a_file_that_may_still_be_made_known_is_left_alone(state: StateClient) -> None:
    store, settings = state.gateway.store, state.gateway.settings
    await Backups(store, settings).create(None)
    assert await find_leftovers(store, settings) == []


async def test_a_leftover_that_is_needed_is_brought_back(state: StateClient) -> None:
    """As when the store was put back to a copy from before the backup."""
    store, settings = state.gateway.store, state.gateway.settings
    made = await Backups(store, settings).create(None)
    brought = await import_backup(state.gateway, age(made.path))
    assert (await state.call("state.backup.restore", backup_id=brought["backup_id"]))["restored"] is True


async def test_backups_of_another_store_in_the_same_folder_are_not_deleted(state: StateClient, tmp_path: Path) -> None:
    store, settings = state.gateway.store, state.gateway.settings
    (tmp_path / "other").mkdir()
    other = await World.make(tmp_path / "other")
    async with other.open("bob", face="operator", settings={"directory": settings.directory}) as neighbour:
        await neighbour.call("state.persistent.set", key="k", value=1)
        await neighbour.call("state.backup.create")
        await neighbour.call("state.snapshot.create")
    folder = Backups(store, settings).folder.parent
    (folder / "backups" / "bkp-broken.helixbackup").write_bytes(b"cannot be read")
    (folder / "snapshots" / "of-somebody-else.json").write_bytes(b"{}")
    for path in (*(folder / "backups").iterdir(), *(folder / "snapshots").iterdir()):
        age(path)
    found = await find_leftovers(store, settings)
    assert len(found) == 3
    assert {each.shown()["of_this_store"] for each in found} == {False}
    assert await delete_leftovers(store, found) == []
    assert all(each.path.exists() for each in found)


async def test_a_folder_that_is_a_link_is_not_looked_into(state: StateClient, tmp_path: Path) -> None:
    store, settings = state.gateway.store, state.gateway.settings
    folder = Backups(store, settings).folder.parent / "snapshots"
    folder.parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "mine").mkdir()
    precious = age_of_new(tmp_path / "mine" / "snap-shots.json")
    folder.symlink_to(tmp_path / "mine")
    with pytest.raises(PathRefusedError, match="links are not followed"):
        await find_leftovers(store, settings)
    assert precious.exists()
