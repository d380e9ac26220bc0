"""The floor for our store: the same rows and bytes, written by hand with nothing else around them."""

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue

import apsw

SCHEMA = """
CREATE TABLE sessions (
    key INTEGER PRIMARY KEY, session_id TEXT NOT NULL, run_id TEXT NOT NULL, attempt INTEGER NOT NULL,
    status TEXT NOT NULL, version INTEGER NOT NULL, step_count INTEGER NOT NULL, message_count INTEGER NOT NULL,
    state_count INTEGER NOT NULL, checkpoint INTEGER, updated_at INTEGER NOT NULL, filler TEXT NOT NULL
);
CREATE UNIQUE INDEX sessions_by_id ON sessions (session_id);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY, session_id TEXT NOT NULL, created_at INTEGER NOT NULL, body TEXT NOT NULL
);
CREATE TABLE state_log (id INTEGER PRIMARY KEY, writes TEXT NOT NULL, base TEXT);
CREATE TABLE checkpoints (
    id INTEGER PRIMARY KEY, session_id TEXT NOT NULL, run_id TEXT, step_id TEXT, step_count INTEGER NOT NULL,
    status TEXT NOT NULL, message_count INTEGER NOT NULL, state_count INTEGER NOT NULL, has_writes INTEGER NOT NULL,
    stream_sequence INTEGER NOT NULL, source TEXT NOT NULL, created_at INTEGER NOT NULL, used TEXT
);
CREATE TABLE streams (key INTEGER PRIMARY KEY, latest INTEGER NOT NULL, batch INTEGER NOT NULL, filler TEXT NOT NULL);
CREATE TABLE chunks (id INTEGER PRIMARY KEY, first INTEGER NOT NULL, bodies TEXT NOT NULL);
"""
# As many bytes as a session's row has in our table besides the columns above.
FILLER = "x" * 60
# How many chunks a step's chunk row stands for; the floor uses it only to count.
CHUNKS = 8


class FloorWriter:
    """One thread, one connection, one queue; everything that waits shares a transaction."""

    def __init__(self, path: str, synchronous: str = "FULL") -> None:
        self._connection = apsw.Connection(path, statementcachesize=256)
        self._connection.pragma("journal_mode", "WAL")
        self._connection.pragma("synchronous", synchronous)
        self._connection.execute(SCHEMA)
        self._queue: SimpleQueue = SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    async def write(self, work: Callable[[apsw.Connection], None]) -> None:
        """Run work in a transaction."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._queue.put((work, future, loop))
        await future

    def close(self) -> None:
        """End the thread."""
        self._queue.put(None)
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        connection = self._connection
        while (job := self._queue.get()) is not None:
            jobs = [job]
            while len(jobs) < 256 and not self._queue.empty():
                following = self._queue.get()
                if following is None:
                    self._queue.put(None)
                    break
                jobs.append(following)
            connection.execute("BEGIN IMMEDIATE")
            for work, _, _ in jobs:
                work(connection)
            connection.execute("COMMIT")
            jobs[0][2].call_soon_threadsafe(_finish, [future for _, future, _ in jobs])


def _finish(futures: list[asyncio.Future]) -> None:
    for future in futures:
        future.set_result(None)


class FloorSession:
    """A session whose counts the caller keeps in memory."""

    def __init__(self, writer: FloorWriter, key: int) -> None:
        self._writer = writer
        self._key = key
        self._id = f"session-{key}"
        self._run = f"run-{key}"
        self._version = self._messages = self._writes = self._chunks = 0

    async def create(self) -> None:
        """Insert the rows of the session and its stream."""

        def work(connection: apsw.Connection) -> None:
            connection.execute(
                "INSERT INTO sessions VALUES (?, ?, ?, 1, 'active', 0, 0, 0, 0, NULL, 0, ?)",
                (self._key, self._id, self._run, FILLER),
            )
            connection.execute("INSERT INTO streams VALUES (?, 0, 0, ?)", (self._key, FILLER))

        await self._writer.write(work)

    async def commit(
        self,
        step: int,
        bodies: list[str],
        writes: str | None,
        now: int,
        *,
        chunks: str | None = None,
        usage: str | None = None,
    ) -> None:
        """Commit one step: the session's row by compare-and-set, the messages, the state write, the checkpoint, and
        what the step streamed and used."""

        def work(connection: apsw.Connection) -> None:
            version, messages = self._version, self._messages
            fence = (self._id, self._run, 1, version)
            count = self._writes + (writes is not None)
            connection.execute(
                "UPDATE sessions SET version = version + 1, status = ?, step_count = ?, message_count = ?,"
                " state_count = ?, checkpoint = ?, updated_at = ?, filler = ?"
                " WHERE session_id = ? AND run_id = ? AND attempt = ? AND version = ?",
                ("active", step, messages + len(bodies), count, self._key << 32 | version + 1, now, FILLER, *fence),
            )
            assert connection.changes() == 1
            connection.executemany(
                "INSERT INTO messages (id, session_id, created_at, body) VALUES (?, ?, ?, ?)",
                [(self._key << 32 | messages + place, self._id, now, body) for place, body in enumerate(bodies, 1)],
            )
            if writes is not None:
                connection.execute(
                    "INSERT INTO state_log (id, writes) VALUES (?, ?)", (self._key << 32 | count, writes)
                )
            counts = (messages + len(bodies), count, 1, self._chunks + (CHUNKS if chunks else 0), "staging", now, usage)
            connection.execute(
                "INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (self._key << 32 | version + 1, self._id, self._run, f"{self._run}.{step}", step, "active", *counts),
            )
            if chunks is not None:
                self._store_chunks(connection, chunks)
            self._version, self._messages, self._writes = version + 1, messages + len(bodies), count

        await self._writer.write(work)

    def _store_chunks(self, connection: apsw.Connection, chunks: str) -> None:
        first = self._key << 32 | self._chunks + 1
        self._chunks += CHUNKS
        connection.execute("INSERT INTO chunks VALUES (?, ?, ?)", (first + CHUNKS - 1, first, chunks))
        connection.execute("UPDATE streams SET latest = ?, batch = batch + 1 WHERE key = ?", (self._chunks, self._key))
