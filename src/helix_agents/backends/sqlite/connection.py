"""A SQLite connection that sends every statement through the seam, and the translation of its errors for users."""

# apsw's stubs name types of Python 3.12, which a checker on 3.11 cannot resolve.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import contextlib
import os
import random
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import apsw

from helix_agents.backends.sqlite.log import Log
from helix_agents.domain.errors import (
    HelixError,
    StoreCorruptError,
    StoreFullError,
    StoreNotOpenedError,
    StoreReadOnlyError,
    StoreReplacedError,
    StoreUnavailableError,
    UnstorableValueError,
)
from helix_agents.ports.seam import Seam

Value: TypeAlias = str | int | float | bytes | None
Row: TypeAlias = tuple[Any, ...]
Synchronous: TypeAlias = Literal["FULL", "NORMAL"]
FileId: TypeAlias = tuple[int, int]


UNTOLD = (apsw.Error, OverflowError, UnicodeEncodeError)
"""What a statement can raise: SQLite's errors, and those for values that SQLite cannot represent."""


class Connection:
    """The backend's view of a database: statements in, rows out. `ring` announces a topic after a durable commit."""

    def __init__(
        self,
        path: str,
        *,
        synchronous: Synchronous,
        seam: Seam | None,
        busy_ms: int,
        read_only: bool,
        create: bool = False,
    ) -> None:
        self.path = path
        self.topics: set[str] = set()
        self.has_vectors: bool | None = None
        self._seam = seam
        self._files: dict[str, FileId] = {}
        flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
        if not read_only:
            # Only the writing thread creates, uses and closes this connection, so SQLite need not guard it against
            # other threads. Readers are closed by the thread that closes the file.
            flags |= apsw.SQLITE_OPEN_NOMUTEX
        self.raw = apsw.Connection(path, flags=flags, statementcachesize=256)
        if busy_ms:
            self.raw.set_busy_handler(_wait_up_to(busy_ms))
        self._asked: Synchronous = synchronous
        self._synchronous: Synchronous = synchronous
        self.raw.pragma("synchronous", synchronous)
        self.raw.pragma("foreign_keys", False)
        self.raw.pragma("temp_store", "MEMORY")
        self.log = None if read_only else Log(self.raw, synced=synchronous == "FULL")
        if read_only:
            self.raw.pragma("query_only", True)

    def execute(self, statement: str, values: Sequence[Value] = ()) -> None:
        """Run a statement for its effect."""
        self.raw.execute(statement, values)
        if self._seam is not None:
            self._pass(statement)

    def execute_many(self, statement: str, rows: Iterable[Sequence[Value]]) -> None:
        """Run a statement once per row."""
        self.raw.executemany(statement, rows)
        if self._seam is not None:
            self._pass(statement)

    def one(self, statement: str, values: Sequence[Value] = ()) -> Row | None:
        """The first row, or None."""
        rows = self.raw.execute(statement, values).fetchall()
        if self._seam is not None:
            self._pass(statement)
        return rows[0] if rows else None

    def all(self, statement: str, values: Sequence[Value] = ()) -> list[Row]:
        """Every row."""
        rows = self.raw.execute(statement, values).fetchall()
        if self._seam is not None:
            self._pass(statement)
        return rows

    def each(self, statement: str, values: Sequence[Value] = ()) -> Iterator[Row]:
        """Rows one by one; if the caller stops, the rest of the query is not run."""
        cursor = self.raw.execute(statement, values)
        if self._seam is not None:
            self._pass(statement)
        try:
            yield from cursor
        finally:
            cursor.close()

    def changed(self) -> int:
        """How many rows the last statement changed."""
        return self.raw.changes()

    def ring(self, topic: str) -> None:
        """Wake the listeners of this topic, in any process, once the transaction is durable."""
        self.topics.add(topic)

    def sync_commits(self, wanted: bool) -> None:
        """Set whether the next commits wait until they are on disk; a file opened as NORMAL never waits."""
        level: Synchronous = self._asked if wanted else "NORMAL"
        if level != self._synchronous:
            self.raw.execute(f"PRAGMA synchronous = {level}")
            self._synchronous = level

    def roll_back(self) -> None:
        """Undo the open transaction, if there is one, without asking the seam: a lost connection does the same."""
        self.topics.clear()
        if self.raw.in_transaction:
            with contextlib.suppress(apsw.Error):
                self.raw.execute("ROLLBACK")

    def tables(self) -> list[str]:
        """The names of all tables and views in the file, without asking the seam, which is not in use yet."""
        rows = self.raw.execute("SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') ORDER BY name")
        return [row[0] for row in rows]

    def enter_wal(self, limit_ms: int) -> None:
        """Switch the file to write-ahead logging; many processes may try that on a new file at once."""
        deadline = time.monotonic() + limit_ms / 1000
        while True:
            try:
                if self.raw.pragma("journal_mode") != "wal":
                    self.raw.pragma("journal_mode", "WAL")
                return
            except apsw.BusyError:
                # SQLite does not call the busy handler here, because waiting with a read lock could block both sides.
                if time.monotonic() > deadline:
                    raise
                time.sleep(random.uniform(0.001, 0.01))

    def check_files(self) -> None:
        """Refuse to continue with files that their paths no longer lead to. A log is created with the first commit.

        Raises:
            StoreReplacedError: a file was deleted, moved or replaced; anything written to it would be lost.
        """
        for path in (self.path, f"{self.path}-wal"):
            try:
                found = os.stat(path)
            except (FileNotFoundError, NotADirectoryError):
                if path in self._files:
                    raise StoreReplacedError(self.path, f"{path} was deleted or moved") from None
            except OSError:
                # The file cannot be examined, which says nothing about what is there.
                continue
            else:
                file = (found.st_dev, found.st_ino)
                if self._files.setdefault(path, file) != file:
                    raise StoreReplacedError(self.path, f"{path} was replaced by another file")

    def interrupt(self) -> None:
        """Stop the statement that another thread is running here, if there is one."""
        self.raw.interrupt()

    def close(self) -> None:
        self.raw.close()

    def _pass(self, statement: str) -> None:
        assert self._seam is not None
        try:
            self._seam(statement)
        except Exception as problem:
            raise StoreUnavailableError(self.path, f"connection lost: {problem}") from problem


def _wait_up_to(limit_ms: int) -> Callable[[int], bool]:
    """A busy handler. Short, uneven waits let many processes take turns; SQLite's own waits grow to 100 ms."""
    started = 0.0

    def wait(attempt: int) -> bool:
        nonlocal started
        if attempt == 0:
            started = time.monotonic()
        elif (time.monotonic() - started) * 1000 > limit_ms:
            return False
        time.sleep(random.uniform(0.0002, 0.002 if attempt < 20 else 0.01))
        return True

    return wait


@contextlib.contextmanager
def telling(store: str) -> Generator[None]:
    """A context that translates SQLite's errors into the domain's."""
    try:
        yield
    except UNTOLD as problem:
        raise meaning(problem, store) from problem


def meaning(problem: apsw.Error | OverflowError | UnicodeEncodeError, store: str) -> HelixError:
    """The error a user should see for one of SQLite's."""
    match problem:
        case OverflowError() | UnicodeEncodeError():
            return UnstorableValueError("value", str(problem))
        # A full disk raises the second one when a process opens the file: there is no room for the index of its log.
        case apsw.FullError() | apsw.IOError(extendedresult=apsw.SQLITE_IOERR_SHMSIZE):
            return StoreFullError(store)
        case apsw.ReadOnlyError() | apsw.PermissionsError() | apsw.AuthError():
            return StoreReadOnlyError(store)
        case apsw.CorruptError() | apsw.NotADBError() | apsw.FormatError():
            return StoreCorruptError(store, str(problem))
        case apsw.BusyError() | apsw.LockedError():
            return StoreUnavailableError(store, "another process keeps it locked")
        case apsw.CantOpenError():
            return _not_opened(store)
        case _:
            return StoreUnavailableError(store, str(problem) or type(problem).__name__)


def _not_opened(store: str) -> StoreNotOpenedError:
    """Why a file could not be opened, and what helps."""
    file = Path(store)
    elsewhere, permissions = "or name another file", "Check the permissions, and the user that this process runs as"
    try:
        if not file.parent.is_dir():
            reason, cure = f"there is no folder {file.parent}", f"Create the folder, {elsewhere}"
        elif file.is_dir():
            reason, cure = "it is a folder", "Name a file in it"
        elif file.exists():
            reason, cure = "this process may not open it", permissions
        elif not os.access(file.parent, os.W_OK | os.X_OK):
            reason = f"there is no such file, and this process may not create one in {file.parent}"
            cure = f"{permissions}, {elsewhere}"
        else:
            reason, cure = (
                "there is no such file",
                f"The first run creates it, and so does `helix migrate`; {elsewhere}",
            )
    except OSError as problem:
        # Not even looking is possible: the name is too long, or a folder on the way is closed to this process.
        reason, cure = f"it cannot be inspected: {problem.strerror}", f"{permissions}, {elsewhere}"
    return StoreNotOpenedError(store, reason, cure)
