"""What every part of a backend on a database shares: the database, while the part is open."""

from typing import Generic, Protocol, Self, TypeVar

from helix_agents.domain.errors import StoreClosedError


class SharedDatabase(Protocol):
    """A database that several parts have open together."""

    name: str

    def use(self) -> Self:
        """Count one more part."""
        ...

    def wake_everybody(self) -> None:
        """Have whoever waits here look again."""
        ...

    async def close(self) -> None:
        """Count one part less; the last one closes it."""
        ...


DatabaseT = TypeVar("DatabaseT", bound=SharedDatabase)


class Part(Generic[DatabaseT]):
    """A part on an open database: once it is closed it refuses work, whatever other parts still do there."""

    def __init__(self, database: DatabaseT) -> None:
        self._database = database.use()
        self._closed = False

    @property
    def _db(self) -> DatabaseT:
        if self._closed:
            raise StoreClosedError(self._database.name)
        return self._database

    async def close(self) -> None:
        """Let the database go, once; whoever waits here hears of it."""
        if not self._closed:
            self._closed = True
            self._database.wake_everybody()
            await self._database.close()
