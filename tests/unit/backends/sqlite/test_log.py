"""The log beside a SQLite file is folded into it now and then, while nobody waits for that."""

import asyncio
import threading
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from helix_agents.backends.sqlite import lanes
from helix_agents.backends.sqlite.connection import Connection
from helix_agents.backends.sqlite.database import Database


@pytest.fixture(autouse=True)
def short_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "LOG_PAGES", 20)


async def opened(path: Path) -> Database:
    database = await Database.open(path)
    await database.write(lambda connection: connection.execute("CREATE TABLE things (body BLOB)"))
    return database


def put_in(connection: Connection) -> None:
    connection.execute("INSERT INTO things VALUES (zeroblob(8000))")


def pages_in_log(database: Database) -> int:
    return database.path.with_name(f"{database.path.name}-wal").stat().st_size // 4096


async def test_the_log_begins_anew(tmp_path: Path) -> None:
    database = await opened(tmp_path / "helix.db")
    for _ in range(200):
        await database.write(put_in)
    assert pages_in_log(database) < 100, "600 pages were written, and the log kept them all"
    await database.close()


async def test_who_committed_is_answered_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = await opened(tmp_path / "helix.db")
    folding, going_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    fold = Connection.fold_log

    def hold(connection: Connection) -> None:
        loop.call_soon_threadsafe(folding.set)
        assert going_on.wait(10)
        fold(connection)

    monkeypatch.setattr(Connection, "fold_log", hold)
    async with asyncio.timeout(10):
        # The commit that makes the log long is answered while the log is held; the one after it waits for its turn.
        while not folding.is_set():
            await database.write(put_in)
            await asyncio.sleep(0.01)
    going_on.set()
    await database.close()


async def test_a_reader_keeps_it_from_beginning_anew_and_is_not_disturbed(tmp_path: Path) -> None:
    database = await opened(tmp_path / "helix.db")
    with closing(apsw.Connection(str(database.path))) as reader:
        reader.execute("BEGIN")
        before = reader.execute("SELECT count(*) FROM things").fetchall()
        for _ in range(50):
            await database.write(put_in)
        assert reader.execute("SELECT count(*) FROM things").fetchall() == before
        assert pages_in_log(database) > 50
        reader.execute("COMMIT")
    longest = pages_in_log(database)
    for _ in range(50):
        await database.write(put_in)
    assert pages_in_log(database) < longest + 20, "with the reader gone it begins anew, in the room it has"
    await database.close()
