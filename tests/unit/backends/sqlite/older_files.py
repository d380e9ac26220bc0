"""A file as an earlier version of the library left it."""

from pathlib import Path

import apsw

from helix_agents.backends.sqlite.migrations import migrations


def file_at(file: Path, version: int) -> apsw.Connection:
    """A connection to a new file of an earlier schema, for whoever fills it by hand."""
    connection = apsw.Connection(str(file))
    connection.execute("CREATE TABLE __agents_migrations (version INTEGER PRIMARY KEY, name TEXT, applied_at INTEGER)")
    for step in migrations()[:version]:
        connection.execute(step.path.read_text())
        connection.execute("INSERT INTO __agents_migrations VALUES (?, ?, 0)", (step.version, step.name))
    return connection
