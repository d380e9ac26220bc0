"""Where usage is counted, across sessions."""

from collections.abc import Sequence
from typing import Protocol

from helix_agents.domain.ids import SessionId
from helix_agents.domain.paging import DEFAULT_LIMIT, Page
from helix_agents.domain.usage import UsageEntry, UsageFilter, UsageOfDay, UsageRollup


class UsageStore(Protocol):
    """Entries are unique by run, attempt, step and number, so writing them again counts nothing twice."""

    async def record_usage(self, entries: Sequence[UsageEntry]) -> int:
        """Store entries; returns how many were new."""
        ...

    async def query_usage(
        self, where: UsageFilter | None = None, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[UsageEntry]:
        """Matching entries, newest first."""
        ...

    async def get_usage_by_day(self, where: UsageFilter | None = None) -> tuple[UsageOfDay, ...]:
        """Matching usage, added up per day (in UTC), agent and source: newest day first, then by name."""
        ...

    async def get_usage_rollup(self, session_id: SessionId) -> UsageRollup:
        """What a session and every session below it have used."""
        ...

    async def delete_usage(self, session_id: SessionId) -> int:
        """Delete a session's entries; returns how many were deleted."""
        ...

    async def close(self) -> None:
        """Release files and connections; idempotent."""
        ...
