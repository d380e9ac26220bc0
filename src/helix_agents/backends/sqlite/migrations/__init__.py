"""The schema's history: numbered SQL files that only go forward, each applied once under the write lock."""

import re
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple

from helix_agents.backends.sqlite.connection import Connection
from helix_agents.domain.errors import ForeignFileError, SchemaTooNewError, SchemaTooOldError

_LEDGER = """
CREATE TABLE IF NOT EXISTS __agents_migrations (
    version    INTEGER PRIMARY KEY,
    name       TEXT NOT NULL,
    applied_at INTEGER NOT NULL
)
"""


class Migration(NamedTuple):
    """One schema step: `0001_initial.sql` is version 1, named `initial`."""

    version: int
    name: str
    path: Path


@cache
def migrations() -> tuple[Migration, ...]:
    """All steps this version knows, in order."""
    found: list[Migration] = []
    for path in sorted(Path(__file__).parent.glob("*.sql")):
        name = re.fullmatch(r"(\d{4})_(\w+)", path.stem)
        assert name is not None, f"migration {path.name} is not named like 0001_initial.sql"
        found.append(Migration(int(name[1]), name[2], path))
    return tuple(found)


def known_version() -> int:
    """The newest schema this version of the library understands."""
    return migrations()[-1].version


def refuse_foreign(connection: Connection) -> None:
    """Refuse a file that holds another application's tables; a new file has none, and a store has ours.

    Raises:
        ForeignFileError: names some of the tables.
    """
    names = [name for name in connection.tables() if not name.startswith("sqlite_")]
    if names and "__agents_migrations" not in names:
        raise ForeignFileError(connection.path, tuple(names))


def schema_version(connection: Connection) -> int:
    """The file's schema version; 0 for a new file."""
    if connection.one("SELECT 1 FROM sqlite_schema WHERE name = '__agents_migrations'") is None:
        return 0
    row = connection.one("SELECT version FROM __agents_migrations ORDER BY version DESC LIMIT 1")
    return row[0] if row is not None else 0


def migrate(connection: Connection) -> None:
    """Bring the file to the newest known schema; runs inside a write transaction, so only one process does it."""
    version = schema_version(connection)
    for step in migrations():
        if step.version <= version:
            continue
        connection.execute(_LEDGER)
        connection.execute(step.path.read_text())
        connection.execute(
            "INSERT INTO __agents_migrations (version, name, applied_at) VALUES (?, ?, ?)",
            (step.version, step.name, time.time_ns() // 1_000_000),
        )


def check_schema(connection: Connection, store: str) -> None:
    """Refuse a file whose schema this version cannot work with.

    Raises:
        SchemaTooNewError: a newer version has migrated it.
        SchemaTooOldError: it has to be migrated first.
    """
    version = schema_version(connection)
    if version > known_version():
        raise SchemaTooNewError(store, version, known_version())
    if version < known_version():
        raise SchemaTooOldError(store, version, known_version())
