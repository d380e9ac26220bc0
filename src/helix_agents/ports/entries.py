"""Where the state capabilities keep what they know: versioned entries, their history and changes, the audit log."""

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
    """Somebody who listens for changes."""

    async def wait(self, timeout: float) -> bool:
        """Return as soon as something was committed since the last wait; False if nothing was for so many seconds."""
        ...


class EntryStore(Protocol):
    """The entries of one namespace. Every read sees one revision; every write is one transaction."""

    @property
    def namespace(self) -> str:
        """The tenant that no call can step out of."""
        ...

    @property
    def home(self) -> Path | None:
        """The folder for files that belong to this store, None when it has no place on disk. It may not exist yet."""
        ...

    def now_ms(self) -> int:
        """The store's time."""
        ...

    async def store_id(self) -> str:
        """What tells this store's namespace from every other one, for ever."""
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
        """The key as it is; None when it does not exist."""
        ...

    async def find_version(self, scope: str, key: str, version: int) -> Entry | None:
        """One kept version of a key that exists."""
        ...

    async def list_versions(self, scope: str, key: str, *, limit: int | None = None) -> tuple[Entry, ...]:
        """The kept versions, newest first; nothing for a key that does not exist."""
        ...

    async def list_entries(
        self, scope: str, *, prefix: str = "", after: str | None = None, limit: int = 1_000, values: bool = False
    ) -> EntryPage:
        """Keys that start with the prefix, in order, after a key; without `values` only what they weigh and whose."""
        ...

    async def usage(self, scope: str) -> ScopeUsage:
        """What a scope holds."""
        ...

    async def list_scopes(self, prefix: str = "") -> tuple[ScopeUsage, ...]:
        """Every scope that holds a key, in order."""
        ...

    async def list_events(
        self, after: int, *, limit: int = 1_000, scope: str | None = None, prefix: str = "", until: int | None = None
    ) -> EventPage:
        """What was announced after a revision, up to another one."""
        ...

    async def revision_at(self, at_ms: int) -> int:
        """The last revision before the first that was announced at this time or later, whatever the clock did since. It
        is the present one when none was."""
        ...

    async def prune_events(self, *, before_ms: int, keep: int) -> int:
        """Let go of announced changes that are older, or more than `keep`; answers the revision up to which."""
        ...

    def listen(self) -> AbstractAsyncContextManager[Waiting]:
        """Listen for commits in any process, for as long as the block lasts."""
        ...

    async def overview(self, system: Sequence[str] = (), *, sessions: int = 1_000) -> Overview:
        """One consistent look at everything; with the latest sessions, and the entries of the named scopes."""
        ...

    async def glance(
        self, system: Sequence[str] = (), *, agent: str | None = None, runs_since: int | None = None
    ) -> Glance:
        """One consistent look at what waits, and at the runs since a time, in all sessions or in an agent's; with the
        entries of the named scopes. Sessions in which nothing goes on are not gone through."""
        ...

    def dump(self, scopes: Sequence[str]) -> AbstractAsyncContextManager["EntryDump"]:
        """Everything in some scopes at one revision, whatever is written meanwhile."""
        ...

    async def stage_restore(self, restore_id: str, rows: Sequence[Entry]) -> None:
        """Lay rows aside for a restore; nobody sees them. Nothing else is changed."""
        ...

    async def restore(self, request: RestoreEntries) -> Transacted:
        """Replace the scopes by what was staged: versions and revisions go on counting, readers of changes are told.

        A key keeps the history that came with it. Sending the same restore again finds nothing staged and is refused.

        Raises:
            InvalidInput: nothing is staged under this id.
        """
        ...

    async def discard_restore(self, restore_id: str | None) -> None:
        """Let go of what was staged under an id, or under all; idempotent."""
        ...

    async def list_audit(self, after: int = 0, *, limit: int = 1_000) -> tuple[AuditRow, ...]:
        """The audit log after a row, in order."""
        ...

    async def prune_audit(self, up_to: int) -> int:
        """Let go of rows of the audit log that a checkpoint stands for; answers how many."""
        ...

    async def close(self) -> None:
        """Let go of the store; idempotent."""
        ...


class EntryDump(Protocol):
    """A consistent view of some scopes."""

    @property
    def revision(self) -> int:
        """The revision it shows."""
        ...

    def rows(self) -> AsyncIterator[Sequence[Entry]]:
        """Present rows and kept versions, batch by batch, by scope, key and version, the newest of a key last."""
        ...
