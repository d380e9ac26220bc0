"""One SQLite file as this backend uses it: which threads write and read, how it is opened and closed."""

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self, TypeVar
from weakref import WeakSet

import apsw

from helix_agents.backends.sqlite.connection import UNTOLD, Connection, Row, Synchronous, Value, meaning
from helix_agents.backends.sqlite.doorbell import Doorbell
from helix_agents.backends.sqlite.lanes import Lane, WriteLane
from helix_agents.backends.sqlite.migrations import check_schema, migrate, refuse_foreign
from helix_agents.domain.errors import StoreClosedError, StoreNotOpenedError, UnsafeSQLiteError
from helix_agents.ports.backend import Migrate
from helix_agents.ports.seam import Seam

T = TypeVar("T")

OLDEST_SAFE_SQLITE = (3, 51, 3)
DEFAULT_BUSY_MS = 30_000


def linked_sqlite() -> str:
    """The version of the SQLite library in this process."""
    return apsw.sqlite_lib_version()


def check_sqlite() -> None:
    """Refuse a library that can corrupt a database in WAL mode.

    Raises:
        UnsafeSQLiteError: names the version and the cure.
    """
    version = tuple(int(part) for part in linked_sqlite().split(".")[:3])
    if version < OLDEST_SAFE_SQLITE:
        raise UnsafeSQLiteError(linked_sqlite(), ".".join(map(str, OLDEST_SAFE_SQLITE)))


class Database:
    """An open file, shared by the store, streams, locks and usage of one process.

    Writes go through one thread, which groups waiting jobs into one transaction. Reads by key run in the calling
    thread, because WAL readers never wait for writers; anything that scans runs in a thread of its own.
    """

    def __init__(
        self,
        path: Path,
        *,
        synchronous: Synchronous = "FULL",
        seam: Seam | None = None,
        busy_ms: int = DEFAULT_BUSY_MS,
        create: bool = True,
        shared: bool = False,
    ) -> None:
        self.path = path.absolute()
        self.name = str(self.path)
        self.bell = Doorbell(self.path)
        self._synchronous: Synchronous = synchronous
        self._seam = seam
        self._busy_ms = busy_ms
        self._create = create
        self._shared = shared
        self._users = 0
        self._closed = False
        self._by_thread = threading.local()
        self._making_inline = threading.Lock()
        self._inline: list[tuple[threading.Thread, Connection]] = []
        self._writer = WriteLane(
            f"helix-write {path.name}",
            self.name,
            self._connect_writer,
            self.bell.ring,
            self.bell.wake_everybody_here,
        )
        self._reader = Lane(f"helix-read {path.name}", self.name, self._connect_reader)
        _open.add(self)

    @classmethod
    async def open(
        cls,
        path: str | Path,
        *,
        synchronous: Synchronous = "FULL",
        migrate: Migrate = "auto",
        seam: Seam | None = None,
        busy_ms: int = DEFAULT_BUSY_MS,
        shared: bool = False,
    ) -> "Database":
        """Open the file, creating and migrating it unless told only to check; many processes may do so at once.

        A `shared` file may also hold another application's tables.

        Raises:
            UnsafeSQLiteError: the linked library is not safe.
            ForeignFileError: the file has tables, none of them ours, and is not to be shared.
            SchemaTooNewError: a newer version of this library has migrated the file.
            SchemaTooOldError: the file has to be migrated and `migrate="check"` forbids that.
            StoreError: the file cannot be used; the message says why.
        """
        check_sqlite()
        try:
            database = cls(
                Path(path),
                synchronous=synchronous,
                seam=seam,
                busy_ms=busy_ms,
                create=migrate == "auto",
                shared=shared,
            )
        except FileNotFoundError as problem:
            raise StoreNotOpenedError(
                str(path), "the folder this process works in was deleted", "Start it from another one"
            ) from problem
        try:
            await database._writer.do(_prepare(database.name, migrate))
        except BaseException:
            await database._shut()
            raise
        return database

    def use(self) -> Self:
        """Count one more part that needs the file open."""
        self._users += 1
        return self

    def wake_everybody(self) -> None:
        """Make all waiting tasks of this process look again."""
        self.bell.wake_everybody_here()

    async def close(self) -> None:
        """Count one part less; the last one closes the file."""
        self._users -= 1
        if self._users <= 0:
            await self._shut()

    async def write(self, work: Callable[[Connection], T], *, synced: bool = True) -> T:
        """Run work in a write transaction: durable when this returns, undone when it raises.

        Work that is not `synced` survives the death of the process at once, but survives a power cut only after the
        next commit that is. Use it for work that the next commit builds upon, or that is repeated if it is missing.
        """
        return await self._writer.do(work, synced=synced)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run work that may take long on one consistent view of the data."""
        if self._writer.is_gone:
            await self._writer.check_files()
        return await self._reader.do(work)

    async def read_by_key(self, work: Callable[[Connection], T], *, transaction: bool = True) -> T:
        """Run a few lookups by key on one consistent view, without leaving the calling thread."""
        if self._closed:
            raise StoreClosedError(self.name)
        if self._writer.is_gone:
            await self._writer.check_files()
        try:
            connection = self._inline_connection()
            try:
                if transaction:
                    connection.execute("BEGIN")
                return work(connection)
            finally:
                connection.roll_back()
        except (apsw.BusyError, apsw.CantOpenError):
            # Rare: another process is rebuilding the WAL index, or no connection can be opened. Waiting for the former
            # and diagnosing the latter must not block the event loop.
            return await self.read(work)
        except UNTOLD as problem:
            raise meaning(problem, self.name) from problem

    async def look_up(self, statement: str, values: Sequence[Value]) -> Row | None:
        """One row by key with a single statement, cheap enough for polling loops."""
        return await self.read_by_key(lambda connection: connection.one(statement, values), transaction=False)

    async def vacuum(self) -> None:
        """Rebuild the file without deleted data, and empty the log beside it."""
        await self._writer.do(_vacuum, transaction=False)

    def on_rollback(self, forget: Callable[[], None]) -> None:
        """Register a callback, run in the writing thread, for whenever a transaction was undone."""
        self._writer.on_rollback.append(forget)

    def _inline_connection(self) -> Connection:
        connection: Connection | None = getattr(self._by_thread, "connection", None)
        if connection is None:
            connection = Connection(
                self.name, synchronous=self._synchronous, seam=self._seam, busy_ms=0, read_only=True
            )
            self._by_thread.connection = connection
            with self._making_inline:
                self._close_inline(lambda thread: not thread.is_alive())
                self._inline.append((threading.current_thread(), connection))
        return connection

    def _close_inline(self, goes: Callable[[threading.Thread], bool]) -> None:
        """Close the connections of these threads."""
        for _, connection in (each for each in self._inline if goes(each[0])):
            connection.close()
        self._inline = [each for each in self._inline if not goes(each[0])]

    def _connect_writer(self) -> Connection:
        connection = Connection(
            self.name,
            synchronous=self._synchronous,
            seam=self._seam,
            busy_ms=self._busy_ms,
            read_only=False,
            create=self._create,
        )
        if not self._shared:
            # This has to come first, because switching to WAL also changes the file.
            refuse_foreign(connection)
        connection.enter_wal(self._busy_ms)
        connection.check_files()
        return connection

    def open_reader(self) -> Connection:
        """A connection for one long read, which the caller closes."""
        if self._closed:
            raise StoreClosedError(self.name)
        return self._connect_reader()

    def _connect_reader(self) -> Connection:
        return Connection(
            self.name, synchronous=self._synchronous, seam=self._seam, busy_ms=self._busy_ms, read_only=True
        )

    async def _shut(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._reader.end()
        self._writer.end()
        # A single call, which continues in its thread even if the closing task is cancelled, so nothing stays open.
        try:
            await asyncio.to_thread(self._let_go, self.bell.leave())
        finally:
            self._reader.let_go()
            self._writer.let_go()

    def _let_go(self, leave: Callable[[], None]) -> None:
        self._reader.join()
        self._writer.join()
        with self._making_inline:
            self._close_inline(lambda _: True)
        leave()

    def disown(self) -> None:
        """Refuse all further calls: this process is a fork, which has neither the file's threads nor its locks."""
        self._closed = True
        self.name = f"{self.name}, opened before this process was forked,"
        self._reader.disown(self.name)
        self._writer.disown(self.name)


_open: WeakSet[Database] = WeakSet()


def _disown_all() -> None:
    for database in list(_open):
        database.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)


def _vacuum(connection: Connection) -> None:
    connection.execute("VACUUM")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _prepare(name: str, mode: Migrate) -> Callable[[Connection], None]:
    def prepare(connection: Connection) -> None:
        if mode == "auto":
            migrate(connection)
        check_schema(connection, name)

    return prepare
