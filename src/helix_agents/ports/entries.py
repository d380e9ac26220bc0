"""Where the state capabilities keep their data: versioned entries, their history and changes, the audit log."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from helix_agents.domain.audit import AuditRow
from helix_agents.domain.entries import (
    Entry,
    EntryPage,
    EntryTransaction,
    EventPage,
    Glance,
    Overview,
    RestoreEntries,
    ScopeUsage,
    Transacted,
)

MOST_LISTED = 10_000


class Waiting(Protocol):
    """A listener for changes."""

    async def wait(self, timeout: float) -> bool:
        """Return True as soon as something was committed since the last wait; False if nothing was within `timeout`
        seconds."""
        ...


class EntryStore(Protocol):
    """The entries of one namespace. Every read sees one revision; every write is one transaction."""

    @property
    def namespace(self) -> str:
        """The tenant; no call can reach outside it."""
        ...

    @property
    def home(self) -> Path | None:
        """The folder for files that belong to this store; None if it has no place on disk. The folder may not exist
        yet."""
        ...

    def now_ms(self) -> int:
        """The store's time."""
        ...

    async def store_id(self) -> str:
        """An id that distinguishes this store's namespace from every other one, forever."""
        ...

    async def transact(self, request: EntryTransaction) -> Transacted:
        """Make all changes or none; durable when this returns.

        Raises:
            VersionConflict: a key does not have the expected version.
            KeyNotFound: a key that must exist does not.
            QuotaExceeded: a scope would hold more than it may.
            InvalidInput: `once` was used for another request.
        """
        ...

    async def find(self, scope: str, key: str) -> Entry | None:
        """The current entry of a key; None if it does not exist."""
        ...

    async def find_version(self, scope: str, key: str, version: int) -> Entry | None:
        """One kept version of an existing key."""
        ...

    async def list_versions(self, scope: str, key: str, *, limit: int | None = None) -> tuple[Entry, ...]:
        """The kept versions, newest first; empty for a key that does not exist."""
        ...

    async def list_entries(
        self, scope: str, *, prefix: str = "", after: str | None = None, limit: int = 1_000, values: bool = False
    ) -> EntryPage:
        """Keys with the prefix, in order, after a given key; without `values`, only their sizes and owners."""
        ...

    async def usage(self, scope: str) -> ScopeUsage:
        """How much a scope holds."""
        ...

    async def list_scopes(self, prefix: str = "") -> tuple[ScopeUsage, ...]:
        """Every scope that holds a key, in order."""
        ...

    async def list_events(
        self, after: int, *, limit: int = 1_000, scope: str | None = None, prefix: str = "", until: int | None = None
    ) -> EventPage:
        """The changes announced after a revision, up to another one."""
        ...

    async def revision_at(self, at_ms: int) -> int:
        """The last revision before the first one that was announced at this time or later, whatever the clock did
        since; the present revision if none was."""
        ...

    async def prune_events(self, *, before_ms: int, keep: int) -> int:
        """Remove announced changes that are older, or exceed `keep`; returns the revision up to which they are gone."""
        ...

    def listen(self) -> AbstractAsyncContextManager[Waiting]:
        """Listen for commits in any process, for as long as the block lasts."""
        ...

    async def overview(self, system: Sequence[str] = (), *, sessions: int = 1_000) -> Overview:
        """One consistent view of everything, with the latest sessions and the entries of the named scopes."""
        ...

    async def glance(
        self, system: Sequence[str] = (), *, agent: str | None = None, runs_since: int | None = None
    ) -> Glance:
        """One consistent view of what waits, and of the runs since a given time, in all sessions or in those of one
        agent, with the entries of the named scopes. Idle sessions are not scanned."""
        ...

    def dump(self, scopes: Sequence[str]) -> AbstractAsyncContextManager["EntryDump"]:
        """Everything in some scopes at one revision, whatever is written meanwhile."""
        ...

    async def stage_restore(self, restore_id: str, rows: Sequence[Entry]) -> None:
        """Stage rows for a restore. They are not visible, and nothing else is changed."""
        ...

    async def restore(self, request: RestoreEntries) -> Transacted:
        """Replace the scopes by what was staged. Versions and revisions continue counting, and readers of changes are
        notified.

        A key keeps the history that came with it. Sending the same restore again finds nothing staged and is refused.

        Raises:
            InvalidInput: nothing is staged under this id.
        """
        ...

    async def discard_restore(self, restore_id: str | None) -> None:
        """Discard what was staged under an id, or under all ids; idempotent."""
        ...

    async def list_audit(self, after: int = 0, *, limit: int = 1_000) -> tuple[AuditRow, ...]:
        """The audit log after a row, in order."""
        ...

    async def prune_audit(self, up_to: int) -> int:
        """Remove rows of the audit log that a checkpoint covers; returns how many."""
        ...

    async def close(self) -> None:
        """Release the store; idempotent."""
        ...


class EntryDump(Protocol):
    """A consistent view of some scopes."""

    @property
    def revision(self) -> int:
        """The revision it shows."""
        ...

    def rows(self) -> AsyncIterator[Sequence[Entry]]:
        """Present rows and kept versions in batches, ordered by scope, key and version, the newest of a key last."""
        ...
