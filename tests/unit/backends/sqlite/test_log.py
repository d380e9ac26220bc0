"""The log beside a SQLite file is lengthened, and folded into it now and then, while nobody waits for that."""

import asyncio
import resource
import shutil
import threading
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from helix_agents.backends.sqlite import log
from helix_agents.backends.sqlite.connection import Connection, Synchronous
from helix_agents.backends.sqlite.database import Database
from helix_agents.backends.sqlite.log import Log


@pytest.fixture
def short_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "LOG_PAGES", 20)


async def opened(path: Path, synchronous: Synchronous = "FULL") -> Database:
    database = await Database.open(path, synchronous=synchronous)
    await database.write(lambda connection: connection.execute("CREATE TABLE things (body BLOB)"))
    return database


def put_in(connection: Connection) -> None:
    connection.execute("INSERT INTO things VALUES (zeroblob(8000))")


def log_of(database: Database) -> Path:
    return database.path.with_name(f"{database.path.name}-wal")


def pages_in_log(database: Database) -> int:
    return log_of(database).stat().st_size // 4096


def rows_in(path: Path) -> int:
    with closing(apsw.Connection(str(path))) as reader:
        assert reader.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return len(reader.execute("SELECT 1 FROM things").fetchall())


@pytest.mark.usefixtures("short_log")
async def test_the_log_begins_anew(tmp_path: Path) -> None:
    database = await opened(tmp_path / "helix.db")
    for _ in range(200):
        await database.write(put_in)
    assert pages_in_log(database) < 100, "600 pages were written, and the log kept them all"
    await database.close()


@pytest.mark.usefixtures("short_log")
async def test_who_committed_is_answered_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = await opened(tmp_path / "helix.db")
    folding, going_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    fold = Log.fold

    def hold(log: Log) -> None:
        loop.call_soon_threadsafe(folding.set)
        assert going_on.wait(10)
        fold(log)

    monkeypatch.setattr(Log, "fold", hold)
    async with asyncio.timeout(10):
        # The commit that makes the log long is answered while the log is held; the one after it waits for its turn.
        while not folding.is_set():
            await database.write(put_in)
            await asyncio.sleep(0.01)
    going_on.set()
    await database.close()


@pytest.mark.usefixtures("short_log")
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


async def commits_that_lengthen(database: Database) -> int:
    """How many commits of 200 found the log too short for them, or had it lengthened."""
    lengths: list[int] = []
    for _ in range(200):
        await database.write(put_in)
        lengths.append(log_of(database).stat().st_size)
    return len(set(lengths))


async def test_commits_find_the_room_they_need(tmp_path: Path) -> None:
    database = await opened(tmp_path / "helix.db")
    assert await commits_that_lengthen(database) < 50
    assert rows_in(database.path) == 200
    await database.close()


async def test_the_log_of_a_short_life_stays_short(tmp_path: Path) -> None:
    database = await opened(tmp_path / "helix.db")
    await database.write(put_in)
    await database.write(put_in)
    assert pages_in_log(database) < log.FEW_PAGES
    await database.close()


async def test_a_log_that_nobody_waits_for_is_not_lengthened(tmp_path: Path) -> None:
    database = await opened(tmp_path / "helix.db", synchronous="NORMAL")
    assert await commits_that_lengthen(database) == 200
    await database.close()


async def test_a_process_that_dies_leaves_a_log_that_is_read_to_its_last_commit(tmp_path: Path) -> None:
    database = await opened(tmp_path / "helix.db")
    left = tmp_path / "left.db"
    for number in range(1, 151):
        await database.write(put_in)
        if number % 10 == 0:
            shutil.copy(database.path, left)
            shutil.copy(log_of(database), tmp_path / "left.db-wal")
            assert rows_in(left) == number
    await database.close()


@pytest.mark.parametrize("stride", [5_000, 1 << 20])
async def test_two_who_lengthen_one_log_keep_what_each_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stride: int
) -> None:
    monkeypatch.setattr(log, "STRIDE", stride)
    one, other = await opened(tmp_path / "helix.db"), await Database.open(tmp_path / "helix.db")

    async def put_many(database: Database) -> None:
        for _ in range(150):
            await database.write(put_in)

    await asyncio.gather(put_many(one), put_many(other))
    assert rows_in(one.path) == 300
    await one.close()
    await other.close()
    assert rows_in(one.path) == 300


async def test_a_disk_without_room_for_a_longer_log_keeps_the_commits(tmp_path: Path) -> None:
    database = await opened(tmp_path / "helix.db")
    while pages_in_log(database) < log.FEW_PAGES - 3:
        await database.write(put_in)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    largest = log_of(database).stat().st_size + 100_000
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, before[1]))
    try:
        for _ in range(6):
            await database.write(put_in)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert log_of(database).stat().st_size <= largest
    rows = rows_in(database.path)
    await database.write(put_in)
    assert rows_in(database.path) == rows + 1
    await database.close()


async def test_the_log_of_a_file_behind_a_link_is_the_one_that_is_lengthened(tmp_path: Path) -> None:
    (tmp_path / "helix.db").symlink_to(tmp_path / "real.db")
    namesake = tmp_path / "helix.db-wal"
    namesake.write_text("somebody's notes")
    database = await opened(tmp_path / "helix.db")
    for _ in range(100):
        await database.write(put_in)
    assert namesake.read_text() == "somebody's notes"
    await database.close()
    assert rows_in(tmp_path / "real.db") == 100
