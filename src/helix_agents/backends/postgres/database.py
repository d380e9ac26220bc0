"""One Postgres database as this backend uses it: how it is opened, queried, written to and closed."""

# asyncpg carries no types of its own.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportArgumentType=false

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self, TypeVar

import asyncpg

from helix_agents.backends.postgres.connection import (
    LOST_RACES,
    REFUSALS,
    CommitUnknownError,
    Connection,
    ConnectionGoneError,
    Row,
    Statements,
    Value,
    is_lost,
    meaning,
)
from helix_agents.backends.postgres.database_clock import DatabaseClock
from helix_agents.backends.postgres.listener import Listener
from helix_agents.backends.postgres.migrations import check_schema, known_version, migrate, migrations, schema_version
from helix_agents.backends.postgres.pool import Pool, uninterrupted
from helix_agents.backends.postgres.settings import PostgresSettings
from helix_agents.domain.errors import InvalidStoreUrlError, StoreClosedError, StoreUnavailableError
from helix_agents.ports.backend import Migrate
from helix_agents.ports.seam import Seam

T = TypeVar("T")

TRIES = 4
"""How often repeatable work is sent: once, and again after each of three broken connections or lost races."""

ENCODINGS = ("UTF8", "SQL_ASCII")
"""The encodings that can store any text: UTF8, or bytes taken without checking."""

READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
# A transaction must see what was committed while it waited for a lock, whatever the database's default level.
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
_BEGIN_UNSYNCED = f"{_BEGIN}; SET LOCAL synchronous_commit = off"


class Database:
    """A database, shared by the store, streams, locks and usage of one process.

    A plain write is one statement in its own transaction. Work that needs several statements takes a lock first, and
    runs again if the connection broke before its COMMIT was sent, because until then nothing has happened. A COMMIT
    without an answer is never repeated here, because it may have taken place.
    """

    def __init__(self, settings: PostgresSettings, *, seam: Seam | None = None) -> None:
        self.settings = settings
        self.name = settings.shown
        self.clock = DatabaseClock()
        self._seam = seam
        self._statements = Statements(settings.schema)
        self._pool = Pool(self._connect, size=settings.pool_size, patience=settings.connect_patience)
        url = settings.listen_dsn
        self.listener = Listener(
            (lambda: self._connected(url)) if url is not None else None, self._statements.in_schema("__agents_changes")
        )
        self._loop = asyncio.get_running_loop()
        self._users = 0
        self._closed = False

    @classmethod
    async def open(
        cls, settings: PostgresSettings, *, migrate: Migrate = "auto", seam: Seam | None = None
    ) -> "Database":
        """Open the database, migrating it unless told only to check; many processes may do so at once.

        Raises:
            SchemaTooNewError: a newer version of this library has migrated the database.
            SchemaTooOldError: the database has to be migrated and `migrate="check"` forbids that.
            InvalidStoreUrlError: there is no such database, or the server refuses us; the message says why.
            StoreError: the database cannot be reached or used; the message says why.
        """
        database = cls(settings, seam=seam)
        try:
            await database._prepare(migrate)
        except (StoreUnavailableError, ValueError) as problem:
            await database._shut()
            cause = problem.__cause__ if isinstance(problem, StoreUnavailableError) else problem
            if isinstance(cause, (ValueError, *REFUSALS)):
                raise InvalidStoreUrlError(database.name, str(cause)) from cause
            raise
        except BaseException:
            await database._shut()
            raise
        return database

    def is_same_as(self, other: "Database") -> bool:
        """Whether both lead to the same data, so that one transaction can cover both."""
        mine, theirs = self.settings, other.settings
        return (mine.dsn, mine.schema) == (theirs.dsn, theirs.schema)

    def use(self) -> Self:
        """Count one more part that needs the database open."""
        self._users += 1
        return self

    def wake_everybody(self) -> None:
        """Make all waiting tasks of this process look again."""
        self.listener.wake_everybody()

    async def close(self) -> None:
        """Count one part less; the last one closes the connections."""
        self._users -= 1
        if self._users <= 0:
            await self._shut()

    async def write(self, work: Callable[[Connection], Awaitable[T]], *, synced: bool = True) -> T:
        """Run work in a transaction: durable when this returns, undone when it raises.

        Work that is not `synced` is visible to everyone at once, and reaches the server's disk with the next commit
        that is.
        """

        async def in_transaction(connection: Connection) -> T:
            await connection.execute(_BEGIN if synced else _BEGIN_UNSYNCED)
            result = await work(connection)
            try:
                await connection.execute("COMMIT")
            except Exception as problem:
                if is_lost(problem, connection.raw):
                    raise CommitUnknownError(str(problem)) from problem
                raise
            for tell in connection.after_commit:
                tell()
            return result

        return await self._again_when_lost(in_transaction, writes=True)

    async def read(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Run work of several statements on one consistent view of the data."""

        async def consistently(connection: Connection) -> T:
            await connection.execute(READ)
            result = await work(connection)
            await undo(connection.raw)
            return result

        return await self._again_when_lost(consistently, asks=True)

    @asynccontextmanager
    async def view(self) -> AsyncGenerator["View"]:
        """One consistent view of the data for as long as the block lasts, on a connection of its own."""
        if self._closed:
            raise StoreClosedError(self.name)
        raw = await self._tell(lambda: uninterrupted(self._connect()))
        try:
            view = View(Connection(raw, self._statements, self._seam, asks=True), self._tell)
            await view.begin()
            yield view
        finally:
            # Nothing was written, so there is no transaction to end.
            raw.terminate()

    async def one(self, statement: str, values: Sequence[Value] = ()) -> Row | None:
        """Run one query; returns its first row, or None."""
        return await self._again_when_lost(lambda connection: connection.one(statement, values), asks=True)

    async def all(self, statement: str, values: Sequence[Value] = ()) -> list[Row]:
        """Run one query; returns all its rows."""
        return await self._again_when_lost(lambda connection: connection.all(statement, values), asks=True)

    async def call(self, statement: str, values: Sequence[Value]) -> Row | None:
        """Run one write in its own transaction, which may be sent twice; returns its first row, or None."""
        return await self._again_when_lost(lambda connection: connection.one(statement, values))

    async def execute(self, statement: str, values: Sequence[Value] = ()) -> int:
        """Run one statement in its own transaction, which may be sent twice; returns how many rows it changed."""
        return await self._again_when_lost(lambda connection: connection.execute(statement, values))

    async def call_once(self, statement: str, values: Sequence[Value]) -> Row | None:
        """Run one write in its own transaction, which must not be sent twice; returns its first row, or None."""

        async def in_doubt(connection: Connection) -> Row | None:
            try:
                return await connection.one(statement, values)
            except Exception as problem:
                if is_lost(problem, connection.raw):
                    raise CommitUnknownError(str(problem)) from problem
                raise

        return await self._again_when_lost(in_doubt)

    async def execute_once(self, statement: str) -> None:
        """Run one statement outside any transaction, without repeating it."""
        await self._tell(lambda: self._borrowing(lambda connection: connection.execute(statement)))

    async def _again_when_lost(
        self, work: Callable[[Connection], Awaitable[T]], *, writes: bool = False, asks: bool = False
    ) -> T:
        for left in reversed(range(TRIES)):
            try:
                return await self._borrowing(work, writes=writes, asks=asks)
            except Exception as problem:
                if left and isinstance(problem, (ConnectionGoneError, *LOST_RACES)):
                    continue
                told = meaning(problem, self.name)
                if told is None:
                    raise
                raise told from problem
        raise AssertionError("the last try returns or raises")

    async def _tell(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run the work and translate the driver's errors into the domain's."""
        try:
            return await work()
        except Exception as problem:
            told = meaning(problem, self.name)
            if told is None:
                raise
            raise told from problem

    async def _borrowing(
        self, work: Callable[[Connection], Awaitable[T]], *, writes: bool = False, asks: bool = False
    ) -> T:
        """Run the work with a connection. A lost connection always raises the same error, and is not used again."""
        if self._closed:
            raise StoreClosedError(self.name)
        raw = await self._acquire()
        usable = False
        try:
            result = await work(Connection(raw, self._statements, self._seam, writes=writes, asks=asks))
            usable = True
            return result
        except Exception as problem:
            if isinstance(problem, ConnectionGoneError | CommitUnknownError):
                raise
            if is_lost(problem, raw):
                if raw.is_closed():
                    # Whatever ended this connection may also have ended the idle ones, which nobody has used since.
                    self._let_idle_ones_go()
                raise ConnectionGoneError(str(problem) or type(problem).__name__) from problem
            if isinstance(problem, asyncpg.ReadOnlySQLTransactionError):
                # By now the address may lead to the server that accepts writes, so connections to this one are dropped.
                self._let_idle_ones_go()
            else:
                usable = await undo(raw)
            raise
        finally:
            # A cancelled caller leaves a statement behind that may still be running on the connection.
            await self._release(raw, usable=usable)

    async def _acquire(self) -> Any:
        """A connection of the pool.

        A connection belongs to the event loop that opened it. A caller in another loop, such as the one that keeps
        leases alive while this loop is busy, gets a connection of its own.
        """
        if asyncio.get_running_loop() is self._loop:
            return await self._pool.acquire()
        return await uninterrupted(self._connect())

    async def _release(self, raw: Any, *, usable: bool) -> None:
        if asyncio.get_running_loop() is self._loop:
            self._pool.release(raw, usable=usable)
        elif usable:
            await raw.close(timeout=2.0)
        else:
            raw.terminate()

    def _let_idle_ones_go(self) -> None:
        if asyncio.get_running_loop() is self._loop:
            self._pool.let_idle_ones_go()

    async def _connect(self) -> Any:
        raw = await self._connected(self.settings.dsn)
        try:
            await self.clock.look_at(raw)
        except BaseException as problem:
            # If the first query is cut off, the connection was never established, whatever the driver calls it.
            lost = is_lost(problem, raw)
            raw.terminate()
            if lost:
                raise ConnectionResetError(str(problem)) from problem
            raise
        return raw

    async def _connected(self, dsn: str) -> Any:
        settings = self.settings
        return await asyncpg.connect(
            dsn,
            timeout=settings.connect_timeout,
            command_timeout=settings.command_timeout,
            statement_cache_size=0 if settings.pooler else 256,
        )

    async def _prepare(self, mode: Migrate) -> None:
        settings = self.settings
        await asyncio.to_thread(migrations)
        version = await self.read(self._look_at_database)
        if version == known_version():
            return
        if mode == "auto" and version < known_version():
            await self.write(lambda connection: migrate(connection, self._statements, settings.schema))
        await self.read(lambda connection: check_schema(connection, self.name))

    async def _look_at_database(self, connection: Connection) -> int:
        """The schema's version, after checking that the database can hold any text.

        Raises:
            InvalidStoreUrlError: the database's encoding cannot represent most texts.
        """
        encoding = getattr(connection.raw.get_settings(), "server_encoding", "UTF8")
        if encoding not in ENCODINGS:
            reason = f"the database is encoded as {encoding}, which cannot represent most texts; create one with UTF8"
            raise InvalidStoreUrlError(self.name, reason)
        return await schema_version(connection)

    async def _shut(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self.listener.close()
        await self._pool.close()


class View:
    """Queries that are all answered as of the first of them."""

    def __init__(self, connection: Connection, tell: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]) -> None:
        self._connection = connection
        self._tell = tell

    async def begin(self) -> None:
        """Open the transaction that holds the view."""
        await self._tell(lambda: self._connection.execute(READ))

    async def ask(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Run a query. A lost connection cannot be replaced, because another one has another view."""
        return await self._tell(lambda: work(self._connection))


async def undo(raw: Any) -> bool:
    """Roll back without asking the seam: a lost connection does the same. Returns whether the connection is usable."""
    try:
        if raw.is_in_transaction():
            await raw.execute("ROLLBACK")
    except Exception:
        return False
    return True
