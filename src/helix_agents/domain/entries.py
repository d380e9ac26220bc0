"""Entries: JSON values under keys, in scopes, with versions, history, quotas and a log of changes.

Every announced write takes the next revision of its namespace, so revisions order everything that is announced. A key's
version keeps counting across deletion, so a version that was read once never comes to mean another value.
"""

from typing import Literal, TypeAlias

from helix_agents.domain.ids import SessionId
from helix_agents.domain.pending import PendingCall
from helix_agents.domain.records import JSON, Record

EntryOperation: TypeAlias = Literal["put", "delete", "restore"]


class Entry(Record):
    """One version of a key. `value` is JSON text; None means that this version is a deletion.

    `size` is the size of key and value, `history_bytes` the total size of the older versions that are kept. `mark` is
    the version of the session whose commit wrote it.
    """

    scope: str
    key: str
    version: int
    revision: int
    value: str | None
    size: int
    history_bytes: int = 0
    created_at: int
    updated_at: int
    owner: str
    mark: int | None = None


class Put(Record, tag_field="kind", tag="put"):
    """Store a value.

    With `expected_version` the key must have exactly that version now; 0 means that it must not exist. `keep_versions`
    is how many versions stay readable, including this one: 0 keeps no history, None keeps all of it and deletions too.
    `announce` puts the change into the log. A write that makes the scope larger than `limit_bytes`, or gives it more
    keys than `limit_keys`, is refused.
    """

    scope: str
    key: str
    value: str
    expected_version: int | None = None
    keep_versions: int | None = 0
    announce: bool = False
    limit_bytes: int | None = None
    limit_keys: int | None = None


class Remove(Record, tag_field="kind", tag="remove"):
    """Remove a key with its history; its version counter is kept, unless `forget` removes that too."""

    scope: str
    key: str
    expected_version: int | None = None
    must_exist: bool = False
    keep_versions: int | None = 0
    announce: bool = False
    forget: bool = False


class Clear(Record, tag_field="kind", tag="clear"):
    """Remove every key of a scope; with `forget`, no trace of the keys is left."""

    scope: str
    keep_versions: int | None = 0
    forget: bool = False


Change: TypeAlias = Put | Remove | Clear


class Changed(Record):
    """The result of one change: the version now, the one before (0 for none), the value before, the keys removed."""

    version: int
    previous_version: int = 0
    previous: str | None = None
    removed: int = 0


class EntryTransaction(Record):
    """Changes that become visible together, with the lines they leave in the audit log.

    `once` makes a repetition harmless: the same request again gets the first result and writes nothing. `digest` says
    what makes a request the same; without one, its changes do. In an audit entry, `revision` is filled in.
    """

    changes: tuple[Change, ...] = ()
    owner: str = ""
    audit: tuple[dict[str, JSON], ...] = ()
    once: str | None = None
    digest: str | None = None


class Transacted(Record):
    """The changes are durable. `repeated` says that they already were."""

    revision: int
    at: int
    results: tuple[Changed, ...] = ()
    repeated: bool = False


class EntryEvent(Record):
    """One announced change. Events of one transaction share a revision and are distinguished by their position."""

    revision: int
    position: int
    scope: str
    key: str
    version: int
    operation: EntryOperation
    owner: str
    at: int
    size: int = 0


class EventPage(Record):
    """Announced changes after a revision, whole transactions only.

    Everything up to `reached` was examined, so the next query starts there. Changes up to `compacted` are no longer
    known; a reader that has not come that far has to read the entries themselves.
    """

    events: tuple[EntryEvent, ...]
    reached: int
    head: int
    compacted: int = 0
    epoch: int = 0


class EntryPage(Record):
    """Keys in order, and the total size of all that matched, however many of them are on this page."""

    items: tuple[Entry, ...]
    total: int
    total_bytes: int
    history_bytes: int
    revision: int
    has_more: bool = False


class ScopeUsage(Record):
    """What a scope holds: its existing keys, and the size of every version that is kept."""

    scope: str
    keys: int = 0
    bytes: int = 0
    revision: int = 0


class SessionSummary(Record):
    """A conversation as a snapshot of the system shows it."""

    session_id: str
    agent: str
    status: str
    updated_at: int
    run_status: str | None = None


class AgentSummary(Record):
    """How many conversations an agent has, and how many of them have a running run."""

    sessions: int
    running: int


class RunSummary(Record):
    """A run as a briefing describes it."""

    run_id: str
    session_id: str
    agent: str
    turn: int
    status: str
    started_at: int
    ended_at: int | None = None


class Glance(Record):
    """One consistent view of current activity: calls that wait, `runs` that are not over or ended since the requested
    time, and the values of `system` scopes."""

    revision: int
    runs: tuple[RunSummary, ...] = ()
    pending: tuple[PendingCall, ...] = ()
    system: dict[str, tuple[Entry, ...]] = {}


class Overview(Record):
    """One consistent view of a namespace: conversations, what waits, every scope; values only of `system` scopes.

    `agents` and `runs` count everything. `sessions` are the latest, newest first, and the scopes of all sessions are
    combined into one: the size of the view does not grow with what was ever stored.
    """

    revision: int
    at: int
    epoch: int
    scopes: tuple[ScopeUsage, ...] = ()
    agents: dict[str, AgentSummary] = {}
    sessions: tuple[SessionSummary, ...] = ()
    runs: dict[str, int] = {}
    pending: tuple[PendingCall, ...] = ()
    usage: dict[str, float] = {}
    system: dict[str, tuple[Entry, ...]] = {}


class RestoreEntries(Record):
    """Replace whole scopes by what was staged under an id, in one transaction."""

    restore_id: str
    scopes: tuple[str, ...]
    owner: str
    keep_versions: int = 100
    changes: tuple[Change, ...] = ()
    audit: tuple[dict[str, JSON], ...] = ()


SESSION_SCOPES = "session:"
"""Prefix of every scope that lives and dies with a session."""


def session_scope(session_id: SessionId) -> str:
    """The scope that lives and dies with a session."""
    return f"{SESSION_SCOPES}{session_id}"


def weight(key: str, value: str | None) -> int:
    """How much a key and its value count against a quota."""
    return 0 if value is None else len(key.encode()) + len(value.encode())


def successor(prefix: str) -> str | None:
    """The first text after everything that starts with the prefix; None if nothing comes after."""
    for index in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[index])
        if code < 0x10FFFF:
            # Surrogates are not text; the next character after them is.
            return prefix[:index] + chr(0xE000 if code + 1 == 0xD800 else code + 1)
    return None
