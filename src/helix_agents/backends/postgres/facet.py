"""What every facet of the store shares: the database, the namespace, the clock and the limits."""

from collections.abc import Iterable, Sequence

from helix_agents.backends.part import Part
from helix_agents.backends.postgres.database import Database
from helix_agents.backends.postgres.state_writes import StateWrites
from helix_agents.domain.errors import SessionNotFoundError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.limits import check_size
from helix_agents.domain.messages import Message
from helix_agents.domain.records import encode
from helix_agents.domain.staging import StagedChange
from helix_agents.ports.clock import Clock
from helix_agents.ports.state_store import StoreLimits

_THERE = "SELECT 1 FROM __agents_sessions WHERE namespace = ? AND session_id = ?"


class Facet(Part[Database]):
    """One facet of a store on an open database."""

    def __init__(self, database: Database, *, namespace: str, limits: StoreLimits, clock: Clock) -> None:
        super().__init__(database)
        self._namespace = namespace
        self._limits = limits
        self._clock = clock
        self._state_writes = StateWrites(limits.state_bytes)

    async def _check_there(self, session_id: SessionId) -> None:
        """Refuse to look for something of a session that is not there.

        Raises:
            SessionNotFoundError: it is not.
        """
        if not await self._db.one(_THERE, (self._namespace, session_id)):
            raise SessionNotFoundError(session_id)

    async def _bodies_of(self, session_id: SessionId, table: str) -> list[str]:
        """What a table has of a session, in the order in which it came.

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

    def _encoded(self, session_id: SessionId, messages: Sequence[Message]) -> list[str]:
        """Messages as they are stored; encoded by the caller, once for all tries."""
        bodies = [encode(message) for message in messages]
        if self._limits.message_bytes is not None:
            for body in bodies:
                check_size(session_id, "message", len(body), self._limits.message_bytes)
        return [body.decode() for body in bodies]

    def _check_staged(self, session_id: SessionId, changes: Iterable[StagedChange]) -> None:
        """Refuse staged changes that are too large, before anything is written."""
        limit = self._limits.staged_write_bytes
        if limit is not None:
            for change in changes:
                check_size(session_id, "stage", len(encode(change)), limit)
