"""One Postgres connection whose every statement passes the seam, and what its errors mean to a user."""

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
# A transaction that lost a race inside the server was rolled back: it may simply run again.
LOST_RACES = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
# The connection, or the server behind it, is gone; whether it did what it was asked last is not known.
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
# A server that answers somebody who comes for the first time, and refuses, is the wrong one or asked in the wrong way.
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
    """Statements as the server takes them: names put into the schema, `?` numbered. Each is worked out once."""

    def __init__(self, schema: str) -> None:
        self._schema = schema
        self._known: dict[str, str] = {}

    def __getitem__(self, statement: str) -> str:
        found = self._known.get(statement)
        if found is None:
            found = self._known[statement] = self.in_schema(self._numbered(statement))
        return found

    def in_schema(self, text: str) -> str:
        """The text with every name of ours in the schema; values are bound and never part of a text."""
        return _OURS.sub(self._whole_name, text)

    def _whole_name(self, found: re.Match[str]) -> str:
        # A schema may be named like a word of the language. Channels belong to none, and their names are values.
        return f"{self._schema}.{found[0]}" if found[1] else f'"{self._schema}".{found[0]}'

    def _numbered(self, statement: str) -> str:
        places = itertools.count(1)
        return _PLACEHOLDER.sub(lambda found: f"${found[1] or next(places)}", statement)


class Connection:
    """What a backend's functions get: statements in, rows out.

    `ring` announces a topic with the commit; `after_commit` is called once it is certain. In a transaction that writes,
    `lock` is what makes a SELECT keep its rows from others.
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
        """Run a statement for its effect; answers how many rows it changed."""
        done: str = await self.raw.execute(self._statements[statement], *values)
        if self._seam is not None:
            await self._pass(statement)
        count = done.rpartition(" ")[2]
        return int(count) if count.isdigit() else 0

    async def execute_many(self, statement: str, rows: Sequence[Sequence[Value]]) -> None:
        """Run a statement once per row, in one go."""
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
        """Wake whoever waits for this topic, in any process, with the commit."""
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
    """Values to ask by. No text in the database holds a zero character, and no id a control character: so with this
    one in its place nothing is found, as it should be."""
    return [_without_zero(value) for value in values]


def _without_zero(value: Value) -> Value:
    if isinstance(value, str):
        return value.replace("\0", "\x01")
    if isinstance(value, list | tuple):
        return [part.replace("\0", "\x01") if isinstance(part, str) else part for part in cast("list[Any]", value)]
    return value


def has_to_be_looked_at(problem: BaseException | None) -> bool:
    """Whether a function in SQL refused to decide, or could not read what it was given; nothing was done."""
    if isinstance(problem, asyncpg.UntranslatableCharacterError):
        return True
    return isinstance(problem, asyncpg.PostgresError) and problem.sqlstate == HAS_TO_BE_LOOKED_AT


def is_unreadable(text: str) -> bool:
    """Whether no function in SQL can look into this JSON: it keeps a zero character, but cannot make a text of it."""
    return "\\u0000" in text


def is_lost(problem: BaseException, raw: Any) -> bool:
    """Whether the connection is gone, and not only the statement wrong."""
    # A driver that is in the middle of nothing we asked of it was told so by a server that ends: while the line is
    # still open, it says that with an internal error.
    if isinstance(problem, (ConnectionGoneError, asyncpg.InternalClientError, *LOST_CONNECTIONS)):
        return True
    # asyncpg says that a connection is closed with an error of its own kind, which also tells of mistakes.
    return isinstance(problem, asyncpg.InterfaceError) and raw is not None and raw.is_closed()


def meaning(problem: BaseException, store: str) -> HelixError | None:
    """The error a user should see for one of Postgres' or asyncpg's; None for any other."""
    match problem:
        case asyncpg.DiskFullError() | asyncpg.OutOfMemoryError():
            return StoreFullError(store)
        case asyncpg.InsufficientPrivilegeError():
            return StoreReadOnlyError(store, f"grant it to the role that opens it ({problem})")
        case asyncpg.DataCorruptedError() | asyncpg.IndexCorruptedError():
            return StoreCorruptError(store, str(problem))
        case asyncpg.CharacterNotInRepertoireError() | asyncpg.UntranslatableCharacterError() | asyncpg.DataError():
            return UnstorableValueError("value", str(problem))
        case asyncpg.ProgramLimitExceededError():
            # Such as ids that are too long together for an index: trying again helps nobody.
            return UnstorableValueError("value", str(problem))
        case asyncpg.ReadOnlySQLTransactionError():
            # After a failover the old address may still lead to a server that only follows.
            return StoreUnavailableError(store, "the server takes no writes at the moment")
        case CommitUnknownError():
            return StoreUnavailableError(store, f"the connection was lost in a commit, which may be made ({problem})")
        case ConnectionGoneError() | asyncpg.PostgresError() | asyncpg.InterfaceError() | OSError() | TimeoutError():
            return StoreUnavailableError(store, str(problem) or type(problem).__name__)
        case _:
            return None
