"""The contents of a namespace: plain dicts of rows that nothing outside the backend can reach."""

from dataclasses import dataclass
from itertools import count

from helix_agents.backends.in_memory.lineage import Segment
from helix_agents.domain.audit import AuditRow
from helix_agents.domain.checkpoints import Checkpoint
from helix_agents.domain.commits import RememberedCommit, RunStartCommitted
from helix_agents.domain.effects import Effect
from helix_agents.domain.entries import Entry, EntryEvent, ScopeUsage
from helix_agents.domain.ids import CheckpointId, RunId, SessionId, StepId, ToolCallId
from helix_agents.domain.locks import Lock
from helix_agents.domain.memories import EntityId, MemoryId
from helix_agents.domain.memory_search import Looked
from helix_agents.domain.pending import PendingCall
from helix_agents.domain.queued import QueuedTurn, TakenTurn
from helix_agents.domain.records import JSON
from helix_agents.domain.runs import Lease, RunRecord
from helix_agents.domain.schedules import Schedule, ScheduleId
from helix_agents.domain.sessions import InterruptFlag, SessionState
from helix_agents.domain.staging import StagedChange
from helix_agents.domain.sub_sessions import SubSessionRef
from helix_agents.domain.usage import UsageEntry
from helix_agents.domain.webhooks import Delivery, DeliveryId


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """A session's record, its present custom state, and its position in the lineage.

    `first_state_count` is its position at creation; `remembered` answers a step commit that is sent again.
    """

    record: SessionState
    custom_state: dict[str, JSON]
    segment: Segment
    state_count: int
    first_state_count: int
    remembered: RememberedCommit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    """A checkpoint and the position in the lineage that it marks."""

    checkpoint: Checkpoint
    segment: Segment
    state_count: int


@dataclass(slots=True)
class EntryHead:
    """The head of a namespace's log of entries."""

    store_id: str
    audit_hash: str
    revision: int = 0
    compacted: int = 0
    epoch: int = 1
    audit_seq: int = 0


class EntryTables:
    """The entries of one namespace, by scope and key; older versions by scope, key and version."""

    def __init__(self) -> None:
        self.heads: dict[str, EntryHead] = {}
        self.entries: dict[str, dict[str, Entry]] = {}
        self.versions: dict[tuple[str, str], dict[int, Entry]] = {}
        self.usage: dict[str, ScopeUsage] = {}
        self.events: dict[tuple[int, int], EntryEvent] = {}
        self.audit: dict[int, AuditRow] = {}
        self.staged: dict[str, dict[tuple[str, str, int], Entry]] = {}


class Tables:
    """All rows of one namespace. Rows that belong to a session are found under its id, oldest first."""

    def __init__(self) -> None:
        self.sessions: dict[SessionId, SessionRow] = {}
        self.segments: dict[SessionId, list[Segment]] = {}
        self.children: dict[SessionId, list[SessionId]] = {}
        self.checkpoints: dict[SessionId, dict[CheckpointId, CheckpointRow]] = {}
        self.refs: dict[SessionId, dict[SessionId, SubSessionRef]] = {}
        self.staged: dict[SessionId, dict[tuple[StepId, ToolCallId], StagedChange]] = {}
        self.flags: dict[SessionId, InterruptFlag] = {}
        self.effects: dict[SessionId, dict[ToolCallId, Effect]] = {}
        self.queued: dict[SessionId, dict[RunId, QueuedTurn]] = {}
        self.taken: dict[SessionId, dict[RunId, TakenTurn]] = {}
        self.session_runs: dict[SessionId, list[RunId]] = {}
        self.runs: dict[RunId, RunRecord] = {}
        self.starts: dict[RunId, RunStartCommitted] = {}
        # Each with its length from one renewal to its end.
        self.leases: dict[str, tuple[Lease, int]] = {}
        self.schedules: dict[ScheduleId, Schedule] = {}
        self.deliveries: dict[DeliveryId, Delivery] = {}
        # By root session, because one person answers for a whole tree.
        self.pending: dict[SessionId, dict[ToolCallId, PendingCall]] = {}
        self.usage: dict[tuple[RunId, int, int, int], UsageEntry] = {}
        self.locks: dict[str, Lock] = {}
        self.tokens = count(1)
        self.locks_looked_at = 0
        self.entries = EntryTables()
        # By entity; each row holds a memory and what it is found by.
        self.memories: dict[EntityId, dict[MemoryId, Looked]] = {}
