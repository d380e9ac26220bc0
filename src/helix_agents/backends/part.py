"""What all parts of a database backend share: the database, for as long as the part is open."""

from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, Self, TypeVar

from helix_agents.domain.errors import StoreClosedError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.limits import check_size
from helix_agents.domain.messages import Message
from helix_agents.domain.records import encode
from helix_agents.domain.staging import StagedChange
from helix_agents.ports.clock import Clock
from helix_agents.ports.state_store import StoreLimits


class SharedDatabase(Protocol):
    """A database that several parts share while they are open."""

    name: str

    def use(self) -> Self:
        """Count one more part."""
        ...

    def wake_everybody(self) -> None:
        """Make all waiting tasks look again."""
        ...

    async def close(self) -> None:
        """Count one part less; the last one closes the database."""
        ...


DatabaseT = TypeVar("DatabaseT", bound=SharedDatabase)


class Part(Generic[DatabaseT]):
    """A part on an open database. Once closed it refuses work, even while other parts still use the database."""

    def __init__(self, database: DatabaseT) -> None:
        self._database = database.use()
        self._closed = False

    @property
    def _db(self) -> DatabaseT:
        if self._closed:
            raise StoreClosedError(self._database.name)
        return self._database

    async def close(self) -> None:
        """Release the database, once, and wake the tasks that wait here."""
        if not self._closed:
            self._closed = True
            self._database.wake_everybody()
            await self._database.close()


class StorePart(Part[DatabaseT]):
    """A facet of a state store, which has a namespace, a clock and limits besides the database."""

    def __init__(self, database: DatabaseT, *, namespace: str, limits: StoreLimits, clock: Clock) -> None:
        super().__init__(database)
        self._namespace = namespace
        self._limits = limits
        self._clock = clock

    def _encoded(self, session_id: SessionId, messages: Sequence[Message]) -> list[str]:
        """Messages in their stored form. The caller encodes them before the write, once for all retries of it."""
        bodies = [encode(message) for message in messages]
        if self._limits.message_bytes is not None:
            for body in bodies:
                check_size(session_id, "message", len(body), self._limits.message_bytes)
        return [body.decode() for body in bodies]

    def _check_staged(self, session_id: SessionId, changes: Iterable[StagedChange]) -> None:
        """Refuse staged changes that are too large before anything is written."""
        limit = self._limits.staged_write_bytes
        if limit is not None:
            for change in changes:
                check_size(session_id, "stage", len(encode(change)), limit)
