"""Requests for approval by callers without a run, as they are stored."""

from typing import Literal, TypeAlias

from helix_agents.capabilities.calls import Face
from helix_agents.capabilities.scopes import APPROVALS, DECIDED
from helix_agents.domain.entries import Entry
from helix_agents.domain.records import JSON, Record, decode
from helix_agents.ports.entries import EntryStore

Status: TypeAlias = Literal["pending", "approved", "executing", "executed", "failed", "rejected", "expired"]
OPEN: tuple[Status, ...] = ("pending", "approved", "executing")


class ApprovalRow(Record):
    """One request: the exact call, what a person is shown, and its outcome."""

    digest: str
    agent: str
    face: Face
    session_id: str | None = None
    capability: str
    inputs: dict[str, JSON]
    preview: JSON = None
    status: Status = "pending"
    requested_at: str
    expires_at: int
    decided_by: str | None = None
    reason: str | None = None
    lease_until: int = 0
    result: JSON = None


def row_of(entry: Entry) -> ApprovalRow:
    """A stored request."""
    return decode(entry.value or "", ApprovalRow)


async def find_approval(store: EntryStore, approval_id: str) -> Entry | None:
    """A request, open or decided; None if there is none, or no longer."""
    # In the order in which it moves, so that it is not missed on its way.
    for scope in (APPROVALS, DECIDED):
        entry = await store.find(scope, approval_id)
        if entry is not None:
            return entry
    return None
