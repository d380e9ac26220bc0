"""What every facet of the store shares: the database, the namespace, the clock and the limits."""

from helix_agents.backends.part import StorePart
from helix_agents.backends.postgres.database import Database
from helix_agents.backends.postgres.state_writes import StateWrites
from helix_agents.domain.errors import SessionNotFoundError
from helix_agents.domain.ids import SessionId
from helix_agents.ports.clock import Clock
from helix_agents.ports.state_store import StoreLimits

_THERE = "SELECT 1 FROM __agents_sessions WHERE namespace = ? AND session_id = ?"


class Facet(StorePart[Database]):
    """One facet of a store on an open database."""

    def __init__(self, database: Database, *, namespace: str, limits: StoreLimits, clock: Clock) -> None:
        super().__init__(database, namespace=namespace, limits=limits, clock=clock)
        self._state_writes = StateWrites(limits.state_bytes)

    async def _check_there(self, session_id: SessionId) -> None:
        """Refuse to look for something in a session that does not exist.

        Raises:
            SessionNotFoundError: the session does not exist.
        """
        if not await self._db.one(_THERE, (self._namespace, session_id)):
            raise SessionNotFoundError(session_id)

    async def _bodies_of(self, session_id: SessionId, table: str) -> list[str]:
        """A table's rows of a session, in order of arrival.

        Raises:
            SessionNotFoundError: there is no such session.
        """
        rows = await self._db.all(
            f"SELECT t.body FROM __agents_sessions s LEFT JOIN {table} t USING (namespace, session_id)"
            " WHERE s.namespace = ? AND s.session_id = ? ORDER BY t.key",
            (self._namespace, session_id),
        )
        if not rows:
            raise SessionNotFoundError(session_id)
        return [row[0] for row in rows if row[0] is not None]
