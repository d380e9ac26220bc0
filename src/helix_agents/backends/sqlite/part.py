"""What every part of the backend shares: the file it is on, while it is open."""

from helix_agents.backends.sqlite.database import Database
from helix_agents.domain.errors import StoreClosedError


class Part:
    """A part on an open file: once it is closed it refuses work, whatever other parts still do there."""

    def __init__(self, database: Database) -> None:
        self._database = database.use()
        self._closed = False

    @property
    def _db(self) -> Database:
        if self._closed:
            raise StoreClosedError(self._database.name)
        return self._database

    async def close(self) -> None:
        """Let the file go, once; whoever waits here hears of it."""
        if not self._closed:
            self._closed = True
            self._database.bell.wake_everybody_here()
            await self._database.close()
