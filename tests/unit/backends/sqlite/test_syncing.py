"""Which commits wait for the disk: those that must, and whatever is stored together with them."""

import asyncio
import threading
from pathlib import Path

import pytest

from helix_agents.backends.sqlite.connection import Connection
from helix_agents.backends.sqlite.database import Database

NORMAL, FULL = 1, 2


def level(connection: Connection) -> int:
    """How much the commit that is about to be made waits for."""
    return connection.raw.pragma("synchronous")


async def test_a_commit_waits_for_the_disk_unless_it_need_not(tmp_path: Path) -> None:
    database = await Database.open(tmp_path / "helix.db")
    assert await database.write(level) == FULL
    assert await database.write(level, synced=False) == NORMAL
    assert await database.write(level) == FULL
    await database.close()


async def test_one_that_must_wait_makes_its_whole_group_wait(tmp_path: Path) -> None:
    database = await Database.open(tmp_path / "helix.db")
    going_on, held = threading.Event(), asyncio.get_running_loop().create_future()

    def hold(_: Connection) -> None:
        held.get_loop().call_soon_threadsafe(held.set_result, None)
        assert going_on.wait(10)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(database.write(hold))
        await held
        lazy = [tasks.create_task(database.write(level, synced=False)) for _ in range(3)]
        must = tasks.create_task(database.write(level))
        await asyncio.sleep(0)
        going_on.set()
    assert [task.result() for task in (*lazy, must)] == [FULL] * 4
    await database.close()


@pytest.mark.parametrize("synced", [True, False])
async def test_a_file_that_asked_not_to_wait_never_does(tmp_path: Path, synced: bool) -> None:
    database = await Database.open(tmp_path / "helix.db", synchronous="NORMAL")
    assert await database.write(level, synced=synced) == NORMAL
    await database.close()
