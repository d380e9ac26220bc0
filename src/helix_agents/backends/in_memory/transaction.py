"""The changes of one operation, which are all kept or all undone."""

from collections.abc import Callable
from typing import Any, TypeVar

from helix_agents.backends.in_memory.tables import Tables
from helix_agents.ports.clock import IdSource
from helix_agents.ports.state_store import StoreLimits

K = TypeVar("K")
K2 = TypeVar("K2")
V = TypeVar("V")


class Transaction:
    """Changes tables in place, under the lock of the memory, and remembers how to undo each change.

    An operation can therefore read what it wrote, and can be refused at any point without leaving a trace.
    """

    def __init__(self, tables: Tables, *, now: int, ids: IdSource, limits: StoreLimits) -> None:
        self.tables = tables
        self.now = now
        self.ids = ids
        self.limits = limits
        self._undo: list[Callable[[], Any]] = []
        self._afterwards: list[Callable[[], None]] = []

    def put(self, table: dict[K, V], key: K, row: V) -> None:
        """Store a row, replacing the one under its key if there is one."""
        if key in table:
            before = table[key]
            self._undo.append(lambda: table.__setitem__(key, before))
        else:
            self._undo.append(lambda: table.pop(key))
        table[key] = row

    def within(self, tables: dict[K, dict[K2, V]], key: K) -> dict[K2, V]:
        """The table under a key of a table of tables, created if it is missing."""
        if key not in tables:
            self.put(tables, key, {})
        return tables[key]

    def remove(self, table: dict[K, V], key: K) -> None:
        """Remove a row; a missing one is fine."""
        if key in table:
            row = table.pop(key)
            self._undo.append(lambda: table.__setitem__(key, row))

    def append(self, log: list[V], entry: V) -> None:
        """Add to the end of a log."""
        log.append(entry)
        self._undo.append(log.pop)

    def append_under(self, logs: dict[K, list[V]], key: K, entry: V) -> None:
        """Append to the log under a key, created if it is missing."""
        if key not in logs:
            self.put(logs, key, [])
        self.append(logs[key], entry)

    def afterwards(self, action: Callable[[], None]) -> None:
        """Schedule a call for when the changes are kept, still under the lock; it must not fail."""
        self._afterwards.append(action)

    def conclude(self) -> None:
        """Keep the changes."""
        for action in self._afterwards:
            action()

    def undo(self) -> None:
        """Undo every change, the latest first."""
        for step in reversed(self._undo):
            step()
