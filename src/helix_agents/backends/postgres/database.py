"""One Postgres database as this backend uses it: how it is opened, asked, written to and closed."""

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
"""How often work is sent that may be sent again: once, and after each of three connections that broke or races lost."""

ENCODINGS = ("UTF8", "SQL_ASCII")
"""Those of a database that takes any text: as it is, or without looking at it."""

READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
# What was waited for behind a lock has to be seen, whatever the database does by default.
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
_BEGIN_UNSYNCED = f"{_BEGIN}; SET LOCAL synchronous_commit = off"


class Database:
    """A database, shared by the store, streams, locks and usage of one process.

    A plain write is one statement in a transaction of its own. What needs several takes a lock first, and runs again
    when the connection broke before its COMMIT was sent: until then nothing has happened. A COMMIT without an answer is
    never repeated here, as nobody knows whether it took place.
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
            SchemaTooNewError: a newer version of this library has migrated it.
            SchemaTooOldError: it has to be migrated and `migrate="check"` forbids that.
            InvalidStoreUrlError: there is no such database, or the server does not let us in; says why.
            StoreError: it cannot be reached or used; says why.
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
        """Whether both lead to the same data, so that one transaction can hold what belongs to both."""
        mine, theirs = self.settings, other.settings
        return (mine.dsn, mine.schema) == (theirs.dsn, theirs.schema)

    def use(self) -> Self:
        """Count one more part that needs the database open."""
        self._users += 1
        return self

    def wake_everybody(self) -> None:
        """Have whoever waits in this process look again."""
        self.listener.wake_everybody()

    async def close(self) -> None:
        """Count one part less; the last one closes the connections."""
        self._users -= 1
        if self._users <= 0:
            await self._shut()

    async def write(self, work: Callable[[Connection], Awaitable[T]], *, synced: bool = True) -> T:
        """Run work in a transaction: durable when this returns, undone when it raises.

        What is not `synced` is everybody's to see at once, and reaches the server's disk with the next commit that is.
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
        """Run work that takes several statements on one consistent view of the data."""

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
            # Nothing was written, so there is nothing to end.
            raw.terminate()

    async def one(self, statement: str, values: Sequence[Value] = ()) -> Row | None:
        """One question: its first row, or None."""
        return await self._again_when_lost(lambda connection: connection.one(statement, values), asks=True)

    async def all(self, statement: str, values: Sequence[Value] = ()) -> list[Row]:
        """One question: all its rows."""
        return await self._again_when_lost(lambda connection: connection.all(statement, values), asks=True)

    async def call(self, statement: str, values: Sequence[Value]) -> Row | None:
        """One statement that writes, in a transaction of its own, and may be sent twice: its first row, or None."""
        return await self._again_when_lost(lambda connection: connection.one(statement, values))

    async def execute(self, statement: str, values: Sequence[Value] = ()) -> int:
        """One statement in a transaction of its own, which may be sent twice; answers how many rows it changed."""
        return await self._again_when_lost(lambda connection: connection.execute(statement, values))

    async def call_once(self, statement: str, values: Sequence[Value]) -> Row | None:
        """One statement that writes, in a transaction of its own, and may not be sent twice: its first row, or None."""

        async def in_doubt(connection: Connection) -> Row | None:
            try:
                return await connection.one(statement, values)
            except Exception as problem:
                if is_lost(problem, connection.raw):
                    raise CommitUnknownError(str(problem)) from problem
                raise

        return await self._again_when_lost(in_doubt)

    async def execute_once(self, statement: str) -> None:
        """One statement outside any transaction, which is not repeated."""
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
        """Do it, and tell a problem of the driver in the words of the domain."""
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
        """Do it with a connection. One that is lost says so in one way, and is not used again."""
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
                    # What ended this one may have ended those, too, and nobody sent anything over them since.
                    self._let_idle_ones_go()
                raise ConnectionGoneError(str(problem) or type(problem).__name__) from problem
            if isinstance(problem, asyncpg.ReadOnlySQLTransactionError):
                # The address may lead to the server that takes writes by now: nobody goes on with this one.
                self._let_idle_ones_go()
            else:
                usable = await undo(raw)
            raise
        finally:
            # Whoever was cancelled left a statement behind that may still be running there.
            await self._release(raw, usable=usable)

    async def _acquire(self) -> Any:
        """A connection of the pool; a caller in another event loop, such as the one that keeps leases alive while this
        one is busy, gets one for itself, as a connection belongs to the loop that opened it."""
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
            # Who is hung up on at his first question was never connected, whatever the driver calls it.
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
        """The schema's version, of a database that can hold what people write.

        Raises:
            InvalidStoreUrlError: it is encoded in a way that has no form for most of it.
        """
        encoding = getattr(connection.raw.get_settings(), "server_encoding", "UTF8")
        if encoding not in ENCODINGS:
            reason = f"the database is encoded as {encoding}, which has no form for most texts; make one as UTF8"
            raise InvalidStoreUrlError(self.name, reason)
        return await schema_version(connection)

    async def _shut(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self.listener.close()
        await self._pool.close()


class View:
    """Questions that are all answered as of the first of them."""

    def __init__(self, connection: Connection, tell: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]) -> None:
        self._connection = connection
        self._tell = tell

    async def begin(self) -> None:
        """Open the transaction that keeps the view."""
        await self._tell(lambda: self._connection.execute(READ))

    async def ask(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """The answer; a lost connection cannot be replaced, as another one has another view."""
        return await self._tell(lambda: work(self._connection))


async def undo(raw: Any) -> bool:
    """Roll back without asking the seam, as a lost connection does the same; whether the connection is good again."""
    try:
        if raw.is_in_transaction():
            await raw.execute("ROLLBACK")
    except Exception:
        return False
    return True
