"""The schema's history: numbered SQL files that only go forward, each applied once under one lock."""

import re
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple

from helix_agents.backends.postgres.connection import Connection, Statements
from helix_agents.domain.errors import SchemaTooNewError, SchemaTooOldError

_LEDGER = """
CREATE TABLE IF NOT EXISTS __agents_migrations (
    version    bigint PRIMARY KEY,
    name       text NOT NULL,
    applied_at bigint NOT NULL
)
"""


class Migration(NamedTuple):
    """One schema step: `0001_initial.sql` is version 1, named `initial`."""

    version: int
    name: str
    text: str


@cache
def migrations() -> tuple[Migration, ...]:
    """All steps this version knows, in order; read from disk once."""
    found: list[Migration] = []
    for path in sorted(Path(__file__).parent.glob("*.sql")):
        name = re.fullmatch(r"(\d{4})_(\w+)", path.stem)
        assert name is not None, f"migration {path.name} is not named like 0001_initial.sql"
        found.append(Migration(int(name[1]), name[2], path.read_text(encoding="utf-8")))
    return tuple(found)


def known_version() -> int:
    """The newest schema this version of the library understands."""
    return migrations()[-1].version


async def schema_version(connection: Connection) -> int:
    """The database's schema version; 0 for a new database."""
    there = await connection.one("SELECT to_regclass('__agents_migrations')::text")
    if there is None or there[0] is None:
        return 0
    row = await connection.one("SELECT version FROM __agents_migrations ORDER BY version DESC LIMIT 1")
    return row[0] if row is not None else 0


async def migrate(connection: Connection, statements: Statements, schema: str) -> None:
    """Bring the database to the newest known schema; runs in a transaction, one process at a time."""
    if await schema_version(connection) >= known_version():
        return
    # A lock of the transaction, not of the session: behind a pooler, sessions do not belong to clients.
    await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(?, 0))", (f"helix migrations {schema}",))
    there = await connection.one("SELECT 1 FROM pg_namespace WHERE nspname = ?", (schema,))
    if there is None:
        await connection.raw.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
    version = await schema_version(connection)
    for step in migrations():
        if step.version <= version:
            continue
        await connection.execute(_LEDGER)
        # Without bound values, the driver sends the whole file at once.
        await connection.raw.execute(statements.in_schema(step.text))
        await connection.execute(
            "INSERT INTO __agents_migrations (version, name, applied_at) VALUES (?, ?, ?)",
            (step.version, step.name, time.time_ns() // 1_000_000),
        )


async def check_schema(connection: Connection, store: str) -> None:
    """Refuse a database whose schema this version cannot work with.

    Raises:
        SchemaTooNewError: a newer version has migrated it.
        SchemaTooOldError: it has to be migrated first.
    """
    version = await schema_version(connection)
    if version > known_version():
        raise SchemaTooNewError(store, version, known_version())
    if version < known_version():
        raise SchemaTooOldError(store, version, known_version())
