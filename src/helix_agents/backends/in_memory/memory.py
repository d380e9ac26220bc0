"""The data that several handles share, as several processes share a database."""

import threading
from typing import Any, Protocol

from helix_agents.backends.in_memory.tables import Tables
from helix_agents.backends.wakeups import Wakeups
from helix_agents.domain.commits import Committed
from helix_agents.domain.streams import StreamAppend, StreamEnd


class SharedStream(Protocol):
    """What step commits and session deletion need of a stream. Every method is called with the lock held."""

    def check_append(self, append: StreamAppend) -> int:
        """The latest sequence the stream would have after the append, which is not made yet.

        Raises:
            SupersededError: a newer run, attempt or writer owns the stream.
            ChunkTooLargeError: a chunk is larger than the stream accepts.
        """
        ...

    def append(self, append: StreamAppend) -> None:
        """Store the chunks and wake the readers; called right after `check_append` accepted them, and cannot fail."""
        ...

    def end_with_commit(self, append: StreamAppend, end: StreamEnd, committed: Committed) -> None:
        """Come to rest after the chunks that were just stored; cannot fail."""
        ...

    def end_readers(self) -> None:
        """Wake the readers so that they find their stream gone."""
        ...


class Memory:
    """Tables by namespace, streams by namespace and stream id, and the one lock that makes every operation atomic.

    Every operation holds the lock from its first read to its last write. `wakeups` are for tasks that wait for a
    change.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.wakeups = Wakeups()
        self.streams: dict[tuple[str, str], Any] = {}
        self._tables: dict[str, Tables] = {}

    def tables(self, namespace: str) -> Tables:
        """The rows of one namespace; the caller holds the lock."""
        if namespace not in self._tables:
            self._tables[namespace] = Tables()
        return self._tables[namespace]
