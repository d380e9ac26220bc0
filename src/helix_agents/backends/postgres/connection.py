"""A Postgres connection that sends every statement through the seam, and the translation of its errors for users."""

# asyncpg carries no types of its own.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import asyncpg

from helix_agents.domain.errors import (
    HelixError,
    StoreCorruptError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
    UnstorableValueError,
)
from helix_agents.ports.seam import Seam

Value: TypeAlias = str | int | float | bool | Sequence[str | None] | Sequence[float | None] | None
Row: TypeAlias = tuple[Any, ...]

HAS_TO_BE_LOOKED_AT = "HX001"
_OURS = re.compile(r"__agents_(changes\b)?")
_PLACEHOLDER = re.compile(r"\?(\d*)")
# A transaction that lost a race inside the server was rolled back, so it can be run again.
LOST_RACES = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
# The connection, or the server behind it, is gone; whether the last request was carried out is unknown.
LOST_CONNECTIONS = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.TooManyConnectionsError,
    asyncpg.QueryCanceledError,
    OSError,
    TimeoutError,
)
# A server that answers a first connection with a refusal is the wrong server, or was addressed in the wrong way.
REFUSALS = (
    asyncpg.InvalidCatalogNameError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.UndefinedObjectError,
    asyncpg.ClientConfigurationError,
)


class ConnectionGoneError(Exception):
    """The connection was lost at this point; never leaves the backend."""


class CommitUnknownError(Exception):
    """The connection was lost while a COMMIT was under way; never leaves the backend."""


class Statements:
    """Statements in the server's form: our names qualified with the schema, `?` numbered. Each is computed once."""

    def __init__(self, schema: str) -> None:
        self._schema = schema
        self._known: dict[str, str] = {}

    def __getitem__(self, statement: str) -> str:
        found = self._known.get(statement)
        if found is None:
            found = self._known[statement] = self.in_schema(self._numbered(statement))
        return found

    def in_schema(self, text: str) -> str:
        """The text with all our names qualified with the schema; values are bound and never part of the text."""
        return _OURS.sub(self._whole_name, text)

    def _whole_name(self, found: re.Match[str]) -> str:
        # Quoted, because a schema may be named like an SQL keyword. Channels belong to no schema, and their names are
        # values.
        return f"{self._schema}.{found[0]}" if found[1] else f'"{self._schema}".{found[0]}'

    def _numbered(self, statement: str) -> str:
        places = itertools.count(1)
        return _PLACEHOLDER.sub(lambda found: f"${found[1] or next(places)}", statement)


class Connection:
    """The backend's view of a database: statements in, rows out.

    `ring` announces a topic with the commit; the callbacks in `after_commit` run once the commit is certain. In a
    writing transaction, `lock` is the clause that makes a SELECT lock its rows.
    """

    def __init__(
        self, raw: Any, statements: Statements, seam: Seam | None, *, writes: bool = False, asks: bool = False
    ) -> None:
        self.raw = raw
        self._asks = asks
        self.lock = " FOR UPDATE" if writes else ""
        self.after_commit: list[Callable[[], None]] = []
        self._statements = statements
        self._seam = seam

    async def execute(self, statement: str, values: Sequence[Value] = ()) -> int:
        """Run a statement for its effect; returns how many rows it changed."""
        done: str = await self.raw.execute(self._statements[statement], *values)
        if self._seam is not None:
            await self._pass(statement)
        count = done.rpartition(" ")[2]
        return int(count) if count.isdigit() else 0

    async def execute_many(self, statement: str, rows: Sequence[Sequence[Value]]) -> None:
        """Run a statement once per row, in one batch."""
        await self.raw.executemany(self._statements[statement], rows)
        if self._seam is not None:
            await self._pass(statement)

    async def one(self, statement: str, values: Sequence[Value] = ()) -> Row | None:
        """The first row, or None."""
        row = await self.raw.fetchrow(self._statements[statement], *(askable(*values) if self._asks else values))
        if self._seam is not None:
            await self._pass(statement)
        return row

    async def all(self, statement: str, values: Sequence[Value] = ()) -> list[Row]:
        """Every row."""
        rows = await self.raw.fetch(self._statements[statement], *(askable(*values) if self._asks else values))
        if self._seam is not None:
            await self._pass(statement)
        return rows

    async def ring(self, topic: str) -> None:
        """Wake the listeners of this topic, in any process, with the commit."""
        await self.execute("SELECT pg_notify('__agents_changes', ?)", (topic,))

    async def _pass(self, statement: str) -> None:
        assert self._seam is not None
        try:
            waiting = self._seam(statement)
            if waiting is not None:
                await waiting
        except Exception as problem:
            raise ConnectionGoneError(str(problem)) from problem


def askable(*values: Value) -> list[Value]:
    """Values to query by, with zero characters replaced by another control character.

    No text in the database holds a zero character and no id a control character, so such a query finds nothing, as it
    should.
    """
    return [_without_zero(value) for value in values]


def _without_zero(value: Value) -> Value:
    if isinstance(value, str):
        return value.replace("\0", "\x01")
    if isinstance(value, list | tuple):
        return [part.replace("\0", "\x01") if isinstance(part, str) else part for part in cast("list[Any]", value)]
    return value


def has_to_be_looked_at(problem: BaseException | None) -> bool:
    """Whether an SQL function refused to decide or could not read its input; in either case nothing was done."""
    if isinstance(problem, asyncpg.UntranslatableCharacterError):
        return True
    return isinstance(problem, asyncpg.PostgresError) and problem.sqlstate == HAS_TO_BE_LOOKED_AT


def is_unreadable(text: str) -> bool:
    """Whether SQL functions cannot read this JSON. They can keep a zero character in it, but not convert it to text."""
    return "\\u0000" in text


def is_lost(problem: BaseException, raw: Any) -> bool:
    """Whether the connection is gone, rather than the statement being wrong."""
    # A server that shuts down sends a message that answers no request of ours. While the socket is still open, the
    # driver reports that as an internal error.
    if isinstance(problem, (ConnectionGoneError, asyncpg.InternalClientError, *LOST_CONNECTIONS)):
        return True
    # asyncpg reports a closed connection with an error class that it also uses for programming mistakes.
    return isinstance(problem, asyncpg.InterfaceError) and raw is not None and raw.is_closed()


def meaning(problem: BaseException, store: str) -> HelixError | None:
    """The error a user should see for one of Postgres' or asyncpg's; None for any other."""
    match problem:
        case asyncpg.DiskFullError() | asyncpg.OutOfMemoryError():
            return StoreFullError(store)
        case asyncpg.InsufficientPrivilegeError():
            return StoreReadOnlyError(store, f"grant access to the role that opens it ({problem})")
        case asyncpg.DataCorruptedError() | asyncpg.IndexCorruptedError():
            return StoreCorruptError(store, str(problem))
        case asyncpg.CharacterNotInRepertoireError() | asyncpg.UntranslatableCharacterError() | asyncpg.DataError():
            return UnstorableValueError("value", str(problem))
        case asyncpg.ProgramLimitExceededError():
            # For example ids that together are too long for an index; a retry cannot help.
            return UnstorableValueError("value", str(problem))
        case asyncpg.ReadOnlySQLTransactionError():
            # After a failover the old address may still lead to a server that only follows.
            return StoreUnavailableError(store, "the server accepts no writes at the moment")
        case CommitUnknownError():
            return StoreUnavailableError(
                store, f"the connection was lost during a commit, which may have been made ({problem})"
            )
        case ConnectionGoneError() | asyncpg.PostgresError() | asyncpg.InterfaceError() | OSError() | TimeoutError():
            return StoreUnavailableError(store, str(problem) or type(problem).__name__)
        case _:
            return None
