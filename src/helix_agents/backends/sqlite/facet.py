"""What every facet of the store shares: the file, the namespace, the clock and the limits."""

from collections.abc import Iterable, Sequence

from helix_agents.backends.part import Part
from helix_agents.backends.sqlite.database import Database
from helix_agents.backends.sqlite.state_writes import StateWrites
from helix_agents.domain.ids import SessionId
from helix_agents.domain.limits import check_size
from helix_agents.domain.messages import Message
from helix_agents.domain.records import encode
from helix_agents.domain.staging import StagedChange
from helix_agents.ports.clock import Clock
from helix_agents.ports.state_store import StoreLimits


class Facet(Part[Database]):
    """One facet of a store on an open file."""

    def __init__(self, database: Database, *, namespace: str, limits: StoreLimits, clock: Clock) -> None:
        super().__init__(database)
        self._namespace = namespace
        self._limits = limits
        self._clock = clock
        self._state_writes = StateWrites(limits.state_bytes)
        database.on_rollback(self._state_writes.forget)

    def _encoded(self, session_id: SessionId, messages: Sequence[Message]) -> list[str]:
        """Messages as they are stored; encoded by the caller, so that the writing thread only writes."""
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
