"""How each part of the backend reaches the shared memory: whole operations, one at a time."""

from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

from helix_agents.backends.in_memory.memory import Memory
from helix_agents.backends.in_memory.tables import Tables
from helix_agents.backends.in_memory.transaction import Transaction
from helix_agents.domain.errors import StoreClosedError
from helix_agents.domain.ids import check_id
from helix_agents.domain.paging import Page
from helix_agents.domain.records import JSON, Record, decode_json, encode, read_back
from helix_agents.ports.clock import Clock, IdSource
from helix_agents.ports.seam import Seam
from helix_agents.ports.state_store import StoreLimits
from helix_agents.system import RandomIds, SystemClock

R = TypeVar("R", bound=Record)
S = TypeVar("S")
T = TypeVar("T")

NO_LIMITS = StoreLimits()
SYSTEM_CLOCK = SystemClock()
RANDOM_IDS = RandomIds()


def own(record: R) -> R:
    """A copy that shares nothing mutable with the original, so that callers cannot reach what is stored.

    Raises:
        UnstorableValueError: the record holds a value that JSON cannot carry or that its type does not allow.
    """
    return read_back(record, type(record), type(record).__name__)


def own_json(value: JSON) -> JSON:
    """The same for a plain JSON value."""
    return decode_json(encode(value))


def page_of(rows: Sequence[T], offset: int, limit: int, show: Callable[[T], S]) -> Page[S]:
    """One page of sorted rows, each converted for the reader."""
    items = tuple(show(row) for row in rows[offset : offset + limit])
    return Page(items=items, total=len(rows), offset=offset, limit=limit)


class Handle:
    """One opening of a memory, in one namespace; several handles see the same data, as several processes would."""

    def __init__(
        self,
        memory: Memory | None = None,
        *,
        namespace: str = "",
        limits: StoreLimits = NO_LIMITS,
        clock: Clock = SYSTEM_CLOCK,
        ids: IdSource = RANDOM_IDS,
        seam: Seam | None = None,
    ) -> None:
        self.memory = memory if memory is not None else Memory()
        self.namespace = check_id(namespace, "namespace") if namespace else ""
        self._limits = limits
        self._clock = clock
        self._ids = ids
        self._seam = seam
        self._closed = False

    async def close(self) -> None:
        """Refuse further calls; idempotent. The data stays in the memory."""
        self._closed = True

    @contextmanager
    def _reading(self) -> Generator[Tables]:
        """The tables, protected from changes for the time being."""
        self._check_open()
        with self.memory.lock:
            yield self.memory.tables(self.namespace)

    @asynccontextmanager
    async def _writing(self, operation: str) -> AsyncGenerator[Transaction]:
        """A transaction: if its body or the seam raises, nothing is written.

        The body must not await, because it holds the lock.
        """
        self._check_open()
        held = None
        with self.memory.lock:
            transaction = Transaction(
                self.memory.tables(self.namespace),
                now=self._clock.now_ms(),
                ids=self._ids,
                limits=self._limits,
            )
            try:
                yield transaction
                if self._seam is not None:
                    held = self._seam(operation)
            except BaseException:
                transaction.undo()
                raise
            transaction.conclude()
        if held is not None:
            await held

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError(type(self).__name__)
