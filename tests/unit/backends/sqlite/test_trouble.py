"""What can be wrong with a SQLite file gets a clear, typed error, and nothing that was stored is lost."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest

from helix_agents.backends.sqlite import Database, SQLiteEntryStore, SQLiteStateStore, database, lanes, open_backend
from helix_agents.backends.sqlite.connection import Connection
from helix_agents.domain.commits import StartRun
from helix_agents.domain.entries import Entry
from helix_agents.domain.errors import (
    ForeignFileError,
    InvalidStoreUrlError,
    InvalidWriteError,
    SchemaTooNewError,
    SchemaTooOldError,
    StoreClosedError,
    StoreCorruptError,
    StoreFullError,
    StoreNotOpenedError,
    StoreReplacedError,
    StoreUnavailableError,
    UnsafeSQLiteError,
    UnstorableValueError,
)
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.sessions import CreateSession, SessionFilter
from helix_agents.domain.writes import Append, Delete, StepWrites


def message(size: int = 10) -> UserMessage:
    return UserMessage(content="x" * size)


async def new_store(path: Path) -> SQLiteStateStore:
    store = await SQLiteStateStore.open(path)
    await store.create_session("s-1")
    await store.append_messages("s-1", [message()])
    return store


async def test_a_full_disk_refuses_the_write_and_keeps_what_was_there(tmp_path: Path) -> None:
    store = await new_store(tmp_path / "helix.db")

    def leave_no_room(connection: Connection) -> None:
        [[pages]] = connection.all("PRAGMA page_count")
        connection.execute(f"PRAGMA max_page_count = {pages + 2}")

    await store.database.write(leave_no_room)
    with pytest.raises(StoreFullError, match="no space left"):
        await store.append_messages("s-1", [message(1_000_000)])
    assert await store.get_message_count("s-1") == 1
    await store.database.write(lambda connection: connection.execute("PRAGMA max_page_count = 1000000"))
    assert await store.append_messages("s-1", [message(1_000_000)]) == 2
    await store.close()


def test_a_disk_too_full_to_open_the_file_is_told_as_such(tmp_path: Path) -> None:
    """In a process that may write no large files, which is what a full disk looks like to SQLite."""
    path = tmp_path / "helix.db"
    asyncio.run(_make_and_close(path))
    program = (
        "import asyncio, resource, sys\n"
        "from helix_agents.backends.sqlite import SQLiteStateStore\n"
        "from helix_agents.domain.errors import StoreError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))\n"
        "try:\n"
        "    asyncio.run(SQLiteStateStore.open(sys.argv[1]))\n"
        "except StoreError as told:\n"
        "    print(told)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "has no space left" in done.stdout, (done.stdout, done.stderr)


@pytest.mark.parametrize("damage", [b"this is no database, it only has its name" * 200, b"\x00" * 8192])
async def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "helix.db"
    path.write_bytes(damage)
    with pytest.raises(StoreCorruptError, match="cannot be read"):
        await SQLiteStateStore.open(path)
    assert path.read_bytes() == damage


async def test_a_damaged_page_is_told_when_it_is_met(tmp_path: Path) -> None:
    path = tmp_path / "helix.db"
    store = await new_store(path)
    await store.append_messages("s-1", [message(100_000)])
    await store.vacuum()
    await store.close()
    whole = bytearray(path.read_bytes())
    whole[4096:40960] = b"\xff" * 36864
    path.write_bytes(whole)

    async def use() -> None:
        broken = await SQLiteStateStore.open(path)
        try:
            await broken.load_transcript("s-1")
            await broken.append_messages("s-1", [message()])
        finally:
            await broken.close()

    with pytest.raises(StoreCorruptError):
        await use()


def test_a_file_that_may_not_be_written_is_named_read_only(tmp_path: Path) -> None:
    path = tmp_path / "helix.db"
    asyncio.run(_make_and_close(path))
    os.chmod(path, 0o444)
    assert "read-only" in _told_without_rights(path)


def test_a_file_that_may_not_be_made_names_the_folder(tmp_path: Path) -> None:
    told = _told_without_rights(tmp_path / "helix.db")
    assert f"there is no such file, and this process may not create one in {tmp_path}" in told
    assert "helix migrate" not in told


@pytest.mark.may_block("makes and deletes a folder")
async def test_a_file_in_a_folder_that_was_deleted_is_not_answering(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(StoreUnavailableError, match=r"helix\.db .* the folder this process works in was deleted"):
        await open_backend("sqlite:///helix.db")


def _told_without_rights(path: Path) -> str:
    """What a store in a closed folder says to a process without special rights; root may write everything."""
    program = (
        "import asyncio, os, sys\n"
        "from helix_agents.backends.sqlite import SQLiteStateStore\n"
        "from helix_agents.domain.errors import StoreError\n"
        "import concurrent.futures.thread\n"
        "async def main():\n"
        "    try:\n"
        "        store = await SQLiteStateStore.open(sys.argv[1])\n"
        "        await store.create_session('s-2')\n"
        "    except StoreError as told:\n"
        "        print(told)\n"
        "if os.geteuid() == 0:\n"
        "    os.setgid(65534); os.setuid(65534)\n"
        "asyncio.run(main())\n"
    )
    folder = path.parent
    for above in (folder, *folder.parents[:3]):
        if above.stat().st_uid == os.geteuid():
            above.chmod(0o755)
    os.chmod(folder, 0o555)
    try:
        done = subprocess.run(
            [sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=60, check=False
        )
    finally:
        os.chmod(folder, 0o755)
    assert done.stdout, done.stderr
    return done.stdout


async def _make_and_close(path: Path) -> None:
    await (await new_store(path)).close()


async def test_a_newer_schema_is_refused_and_an_older_one_names_the_cure(tmp_path: Path) -> None:
    path = tmp_path / "helix.db"
    await _make_and_close(path)
    with apsw.Connection(str(path)) as connection:
        connection.execute("INSERT INTO __agents_migrations VALUES (99, 'from_the_future', 0)")
    connection.close()
    with pytest.raises(SchemaTooNewError, match="upgrade helix-agents"):
        await SQLiteStateStore.open(path)

    empty = tmp_path / "empty.db"
    apsw.Connection(str(empty)).close()
    empty.touch()
    with pytest.raises(SchemaTooOldError, match="helix migrate"):
        await SQLiteStateStore.open(empty, migrate="check")


async def test_checking_creates_nothing(tmp_path: Path) -> None:
    path = tmp_path / "missing.db"
    with pytest.raises(StoreUnavailableError, match="there is no such file"):
        await SQLiteStateStore.open(path, migrate="check")
    assert not path.exists()


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    told = rf"cannot be opened: there is no folder {tmp_path / 'nowhere'}. Create the folder, or name another file.$"
    with pytest.raises(StoreNotOpenedError, match=told):
        await SQLiteStateStore.open(tmp_path / "nowhere" / "helix.db")


async def test_an_unsafe_sqlite_library_is_refused_by_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "linked_sqlite", lambda: "3.40.1")
    with pytest.raises(UnsafeSQLiteError, match=r"3\.40\.1.*pip install --upgrade apsw"):
        await SQLiteStateStore.open(tmp_path / "helix.db")


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = await new_store(tmp_path / "helix.db")
    await store.close()
    for call in (store.load_state("s-1"), store.load_transcript("s-1"), store.create_session("s-2")):
        with pytest.raises(StoreClosedError):
            await call


async def test_a_lock_that_is_never_released_is_reported_in_time(tmp_path: Path) -> None:
    path = tmp_path / "helix.db"
    await _make_and_close(path)
    impatient = SQLiteStateStore(await Database.open(path, busy_ms=50))
    blocker = apsw.Connection(str(path))
    blocker.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(StoreUnavailableError, match="locked"):
            await impatient.create_session("s-2")
        assert await impatient.session_exists("s-1"), "readers do not wait for a writer"
    finally:
        blocker.execute("ROLLBACK")
        blocker.close()
    await impatient.create_session("s-2")
    await impatient.close()


@pytest.mark.parametrize(
    "url",
    ["sqlite://", "sqlite:///", "sqlite:relative.db", "sqlite:///x.db?fast=yes", "sqlite:///x.db?synchronous=off"],
)
async def test_a_url_that_names_no_file_or_an_unknown_option_is_explained(url: str) -> None:
    with pytest.raises(InvalidStoreUrlError):
        await open_backend(url)


async def test_a_copy_of_the_file_is_a_store_of_its_own(tmp_path: Path) -> None:
    store = await new_store(tmp_path / "helix.db")
    await store.vacuum()
    await asyncio.to_thread(shutil.copy, tmp_path / "helix.db", tmp_path / "copy.db")
    await store.append_messages("s-1", [message()])
    copy = await SQLiteStateStore.open(tmp_path / "copy.db")
    assert await copy.get_message_count("s-1") == 1
    await copy.close()
    await store.close()


async def test_deleting_and_vacuuming_leaves_no_byte_of_text_behind(tmp_path: Path) -> None:
    store = await new_store(tmp_path / "helix.db")
    secret = "a text that nobody shall find again"
    await store.append_messages("s-1", [UserMessage(content=secret)] * 50)
    await store.delete_session("s-1")
    await store.vacuum()

    def found() -> list[str]:
        return [file.name for file in tmp_path.iterdir() if file.is_file() and secret.encode() in file.read_bytes()]

    assert await asyncio.to_thread(found) == []
    await store.close()


async def test_a_file_whose_name_is_too_long_is_told(tmp_path: Path) -> None:
    async with asyncio.timeout(10):
        with pytest.raises(StoreUnavailableError, match="name too long"):
            await SQLiteStateStore.open(tmp_path / ("x" * 300))


async def test_a_full_disk_in_a_group_of_writers_leaves_whole_writes_only(tmp_path: Path) -> None:
    """SQLite undoes the transaction by itself then; nobody's statements may run outside of one."""
    db = await Database.open(tmp_path / "helix.db")
    await db.write(lambda connection: connection.execute("CREATE TABLE t (n INTEGER, body TEXT)"))

    def leave_little_room(connection: Connection) -> None:
        [[pages]] = connection.all("PRAGMA page_count")
        connection.execute(f"PRAGMA max_page_count = {pages + 2}")

    def insert(number: int, size: int, times: int = 1):
        def work(connection: Connection) -> None:
            for _ in range(times):
                connection.execute("INSERT INTO t VALUES (?, ?)", (number, "x" * size))
            if times > 1:
                raise ValueError("this one is undone")

        return work

    await db.write(leave_little_room)
    outcomes = await _grouped(db, [insert(1, 10), insert(2, 1_000_000), insert(3, 10, times=2), insert(4, 10)])
    assert [type(outcome).__name__ for outcome in outcomes] == ["NoneType", "StoreFullError", "ValueError", "NoneType"]
    assert await db.read(lambda connection: connection.all("SELECT n FROM t ORDER BY n")) == [(1,), (4,)]
    await db._shut()  # pyright: ignore[reportPrivateUsage]


async def test_a_group_that_meets_a_locked_file_waits_for_it_once(tmp_path: Path) -> None:
    db = await Database.open(tmp_path / "helix.db", busy_ms=300)
    other = apsw.Connection(str(tmp_path / "helix.db"))
    other.execute("BEGIN IMMEDIATE")
    started = asyncio.get_running_loop().time()
    outcomes = await _grouped(db, [lambda connection: connection.execute("DELETE FROM __agents_locks")] * 20)
    assert asyncio.get_running_loop().time() - started < 2
    assert {type(outcome) for outcome in outcomes} == {StoreUnavailableError}
    other.close()
    await db.write(lambda connection: connection.execute("DELETE FROM __agents_locks"))
    await db._shut()  # pyright: ignore[reportPrivateUsage]


async def _grouped(db: Database, jobs: Sequence[Callable[[Connection], object]]) -> list[object]:
    """What becomes of jobs that were all queued before the first of them began."""
    queued = threading.Event()

    async def hold() -> None:
        with contextlib.suppress(StoreUnavailableError):
            await db._writer.do(lambda _: queued.wait(10), transaction=False)  # pyright: ignore[reportPrivateUsage]

    holding = asyncio.create_task(hold())
    await asyncio.sleep(0.05)
    tasks = [asyncio.create_task(db.write(job)) for job in jobs]
    await asyncio.sleep(0)
    queued.set()
    await holding
    return await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_refused_write_in_a_group_does_not_change_what_is_known_of_the_state(tmp_path: Path) -> None:
    store = await SQLiteStateStore.open(tmp_path / "helix.db")
    await store.create_session("s-1", CreateSession(custom_state={"a": 1, "b": 2, "list": []}))
    await store.merge_custom_state("s-1", StepWrites(ops=(Append(key="list", items=[1]),)))
    refused = StepWrites(ops=(Delete(key="a"), Append(key="b", items=[1])))
    outcomes = await asyncio.gather(
        *(store.create_session(f"before-{n}") for n in range(5)),
        store.merge_custom_state("s-1", refused),
        *(store.create_session(f"after-{n}") for n in range(5)),
        return_exceptions=True,
    )
    assert isinstance(outcomes[5], InvalidWriteError)
    with pytest.raises(InvalidWriteError):
        await store.merge_custom_state("s-1", StepWrites(ops=(Append(key="a", items=[1]),)))
    assert (await store.load_state("s-1")).custom_state == {"a": 1, "b": 2, "list": [1]}
    await store.close()


async def test_whoever_is_cancelled_while_closing_leaves_nothing_open(tmp_path: Path) -> None:
    store = await new_store(tmp_path / "cancelled.db")
    reading = threading.Event()
    long_read = asyncio.create_task(store.database.read(lambda _: reading.wait(10)))
    await asyncio.sleep(0.05)
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0.05)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    reading.set()
    await long_read
    await eventually(lambda: not any("cancelled.db" in thread.name for thread in threading.enumerate()))
    await eventually(lambda: not _open_files(tmp_path))


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def _open_files(folder: Path) -> list[str]:
    links = [Path("/proc/self/fd", number) for number in os.listdir("/proc/self/fd")]
    found: list[str] = []
    for link in links:
        with contextlib.suppress(OSError):
            found.append(os.readlink(link))
    return [name for name in found if name.startswith(str(folder))]


async def test_a_write_that_comes_after_the_end_from_another_loop_is_refused(tmp_path: Path) -> None:
    """The other loop looked before the file was closed, and queued its work after the thread had ended."""
    db = await Database.open(tmp_path / "helix.db")
    lane = db._writer  # pyright: ignore[reportPrivateUsage]
    await db._shut()  # pyright: ignore[reportPrivateUsage]
    lane._closed = False  # pyright: ignore[reportPrivateUsage]
    async with asyncio.timeout(10):
        with pytest.raises(StoreClosedError):
            await lane.do(lambda _: None)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files")
async def test_threads_and_loops_that_ended_leave_no_file_open(tmp_path: Path) -> None:
    store = await new_store(tmp_path / "helix.db")

    async def use() -> None:
        assert await store.session_exists("s-1")
        await store.wait_for_interrupt("s-1", 0.001)

    async def use_elsewhere() -> int:
        thread = threading.Thread(target=lambda: asyncio.run(use()))
        thread.start()
        await eventually(lambda: not thread.is_alive())
        return len(_open_files(tmp_path))

    counts = [await use_elsewhere() for _ in range(20)]
    assert counts[-1] == counts[3], counts
    await store.close()
    assert not _open_files(tmp_path)


async def test_a_file_that_is_gone_is_told_to_a_loop_that_comes_later(tmp_path: Path) -> None:
    store = await new_store(tmp_path / "helix.db")
    (tmp_path / "helix.db").rename(tmp_path / "elsewhere.db")

    def look() -> object:
        try:
            return asyncio.run(store.session_exists("s-1"))
        except Exception as problem:
            return problem

    told = await asyncio.to_thread(look)
    assert isinstance(told, StoreUnavailableError), told
    await store.close()


def _delete(folder: Path, name: str) -> None:
    (folder / name).unlink()


def _replace(folder: Path, name: str) -> None:
    """As a restore does that renames its copy to the name of what it restores."""
    shutil.copy(folder / name, folder / "copy")
    (folder / "copy").rename(folder / name)


def _delete_the_folder(folder: Path, name: str) -> None:
    shutil.rmtree(folder)


LOSSES = {
    "deleted": _delete,
    "replaced": _replace,
    "gone with its folder": _delete_the_folder,
}


@pytest.fixture
def looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "LOOK_AGAIN_SECONDS", 0.0)


@pytest.mark.usefixtures("looks_each_time")
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("lost", ["helix.db", "helix.db-wal"])
async def test_nothing_is_written_to_a_file_that_nobody_can_find_any_more(tmp_path: Path, lost: str, loss: str) -> None:
    folder = tmp_path / "stored"
    await asyncio.to_thread(folder.mkdir)
    backend = await open_backend(f"sqlite:///{folder}/helix.db")
    await backend.state.create_session("s-1")
    await asyncio.to_thread(LOSSES[loss], folder, lost)
    told = r"helix\.db is no longer the file that this process has open: .*restart the process"
    for write in (
        lambda: backend.state.start_run(StartRun(session_id="s-1", run_id="r-1")),
        lambda: backend.state.append_messages("s-1", [message()]),
        lambda: backend.state.renew_lease("worker-1", 1_000),
        lambda: backend.streams.create_writer("s-1", "r-1", "agent"),
        lambda: backend.locks.acquire("door", ttl_ms=1_000),
    ):
        with pytest.raises(StoreReplacedError, match=told):
            await write()
    outcomes = await asyncio.gather(*(backend.state.create_session(f"n-{n}") for n in range(5)), return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {StoreReplacedError}
    await backend.close()


@pytest.mark.usefixtures("looks_each_time")
async def test_a_file_that_is_put_back_is_written_to_again(tmp_path: Path) -> None:
    store = await new_store(tmp_path / "helix.db")
    (tmp_path / "helix.db").rename(tmp_path / "elsewhere.db")
    with pytest.raises(StoreReplacedError, match="was deleted or moved"):
        await store.append_messages("s-1", [message()])
    (tmp_path / "elsewhere.db").rename(tmp_path / "helix.db")
    assert await store.append_messages("s-1", [message()]) == 2
    await store.close()


@pytest.mark.usefixtures("looks_each_time")
async def test_a_file_keeps_its_place_whatever_is_done_to_it_by_itself_and_others(tmp_path: Path) -> None:
    """Rebuilding it, folding its log, and others who come and go: none of that is another file."""
    path = tmp_path / "helix.db"
    store = await new_store(path)
    for number in range(3):
        await _open_write_and_close(path, f"other-{number}")
        await store.vacuum()
        await store.create_session(f"mine-{number}")
    assert (await store.list_sessions()).total == 7
    await store.close()


async def _open_write_and_close(path: Path, session_id: str) -> None:
    store = await SQLiteStateStore.open(path)
    await store.create_session(session_id)
    await store.close()


async def test_a_part_that_is_closed_twice_leaves_the_others_open(tmp_path: Path) -> None:
    backend = await open_backend(f"sqlite:///{tmp_path}/helix.db")
    assert backend.usage is not None
    for _ in range(5):
        await backend.locks.close()
        await backend.usage.close()
    assert not await backend.state.session_exists("s-1")
    await backend.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_fork_is_told_to_open_the_file_itself(tmp_path: Path) -> None:
    program = (
        "import asyncio, os, sys\n"
        "from helix_agents.backends.sqlite import SQLiteStateStore\n"
        "from helix_agents.domain.errors import StoreClosedError\n"
        "async def use(*calls):\n"
        "    for call in calls:\n"
        "        try:\n"
        "            await asyncio.wait_for(call, 10)\n"
        "        except StoreClosedError as told:\n"
        "            print(told, flush=True)\n"
        "store = asyncio.run(SQLiteStateStore.open(sys.argv[1]))\n"
        "if os.fork() == 0:\n"
        "    asyncio.run(use(store.create_session('a'), store.session_exists('a'), store.list_sessions()))\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "asyncio.run(store.create_session('b'))\n"
        "print('the parent goes on')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "helix.db")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    *told, parent = done.stdout.splitlines()
    assert len(told) == 3, done
    assert all("before this process was forked" in line for line in told)
    assert parent == "the parent goes on", done.stderr


async def test_a_cancelled_write_never_happens_or_has_happened(tmp_path: Path) -> None:
    db = await Database.open(tmp_path / "helix.db")
    working, go_on = threading.Event(), threading.Event()

    def take(key: str) -> Callable[[Connection], None]:
        def work(connection: Connection) -> None:
            connection.execute("INSERT INTO __agents_locks VALUES ('', ?, 1, NULL, 0)", (key,))
            working.set()
            go_on.wait(10)

        return work

    begun = asyncio.create_task(db.write(take("begun")))
    await asyncio.to_thread(working.wait, 10)
    queued = asyncio.create_task(db.write(take("queued")))
    await asyncio.sleep(0)
    queued.cancel()
    begun.cancel()
    with pytest.raises(asyncio.CancelledError):
        await queued
    await asyncio.sleep(0.05)
    begun.cancel()
    assert not begun.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await begun
    assert await db.read(lambda connection: connection.all("SELECT key FROM __agents_locks")) == [("begun",)]
    await db._shut()  # pyright: ignore[reportPrivateUsage]


async def test_a_cancelled_dump_ends_as_cancelled_and_lets_its_connection_go(tmp_path: Path) -> None:
    store = await new_store(tmp_path / "helix.db")
    entries = SQLiteEntryStore(store.database)
    reading, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        reading.set()
        go_on.wait(10)

    def read_for_long(dump: Any, scope: str, after: str) -> list[Entry]:
        dump._connection.raw.create_scalar_function("hold", hold)
        return dump._connection.all("SELECT hold()")

    async def dump() -> None:
        async with entries.dump(["s"]) as dumped:
            async for _ in dumped.rows():
                pass

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("helix_agents.backends.sqlite.entries._SQLiteDump._batch", read_for_long)
        dumping = asyncio.create_task(dump())
        await asyncio.to_thread(reading.wait, 10)
        dumping.cancel()
        await asyncio.sleep(0.05)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await dumping
    await entries.close()
    await store.close()
    assert not _open_files(tmp_path)


async def test_what_sqlite_has_no_form_for_is_told_as_such(tmp_path: Path) -> None:
    store = await new_store(tmp_path / "helix.db")
    for call in (
        lambda: store.load_state("\ud800"),
        lambda: store.list_sessions(SessionFilter(user_id="\ud800")),
        lambda: store.list_sessions(SessionFilter(created_to=2**70)),
        lambda: store.create_session("s-2", CreateSession(expires_at=2**70)),
    ):
        with pytest.raises(UnstorableValueError):
            await call()
    assert (await store.list_sessions()).total == 1
    await store.close()


def database_of_somebody_else(path: Path) -> bytes:
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        for table in ("orders", "customers", "invoices", "zones"):
            connection.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT)")
        connection.execute("INSERT INTO customers (name) VALUES ('ann')")
    return path.read_bytes()


@pytest.mark.may_block("looks at the file")
@pytest.mark.parametrize("migrate", ["auto", "check"])
async def test_a_file_of_another_application_is_refused_and_left_as_it_is(tmp_path: Path, migrate: Any) -> None:
    path = tmp_path / "shop.db"
    before = database_of_somebody_else(path)
    with pytest.raises(ForeignFileError, match=r"shop\.db belongs to.*customers, invoices, orders, ….*shared=true"):
        await open_backend(f"sqlite:///{path}", migrate=migrate)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["shop.db"]


@pytest.mark.may_block("looks at the file")
async def test_a_file_may_be_shared_with_another_application_by_who_says_so(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    database_of_somebody_else(path)
    async with await open_backend(f"sqlite:///{path}?shared=true") as backend:
        await backend.state.create_session("s-1")
    # Once our tables are there, nobody has to say so again.
    async with await open_backend(f"sqlite:///{path}") as backend:
        assert await backend.state.session_exists("s-1")
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        assert connection.execute("SELECT name FROM customers").fetchall() == [("ann",)]


@pytest.mark.may_block("makes the file")
async def test_a_file_without_tables_becomes_a_store(tmp_path: Path) -> None:
    empty = tmp_path / "empty.db"
    empty.touch()
    used = tmp_path / "used.db"
    with contextlib.closing(apsw.Connection(str(used))) as connection:
        connection.execute("CREATE TABLE gone (id INTEGER PRIMARY KEY AUTOINCREMENT)")
        connection.execute("DROP TABLE gone")
    for path in (empty, used):
        async with await open_backend(f"sqlite:///{path}") as backend:
            await backend.state.create_session("s-1")
