"""A parent's reference to a child session."""

from typing import Literal, TypeAlias

import msgspec

from helix_agents.domain.ids import RunId, SessionId, ToolCallId
from helix_agents.domain.records import JSON, Record

SubSessionMode: TypeAlias = Literal["ephemeral", "persistent"]
SubSessionStatus: TypeAlias = Literal["running", "suspended", "completed", "failed", "interrupted", "terminated"]
Location: TypeAlias = Literal["local", "remote"]


class RemoteChild(Record):
    """Where a child in another service lives."""

    url: str
    agent: str
    session_id: SessionId
    details: dict[str, JSON] = {}


class SubSessionRef(Record):
    """One delegation: which call of the parent created which child, and the child's state."""

    sub_session_id: SessionId
    agent_type: str
    tool_call_id: ToolCallId
    delegation: str
    mode: SubSessionMode = "ephemeral"
    name: str | None = None
    status: SubSessionStatus = "running"
    location: Location = "local"
    remote: RemoteChild | None = None
    parent_run_id: RunId | None = None
    result: JSON = None
    error: str | None = None
    created_at: int = 0
    updated_at: int = 0


class SubSessionRefUpdate(Record):
    """A change to a reference; fields that are None are unchanged. The child's location never changes."""

    sub_session_id: SessionId
    status: SubSessionStatus | None = None
    tool_call_id: ToolCallId | None = None
    delegation: str | None = None
    result: JSON = None
    error: str | None = None
    remote: RemoteChild | None = None


def updated(ref: SubSessionRef, update: SubSessionRefUpdate, now: int) -> SubSessionRef:
    """The reference after the change."""
    return msgspec.structs.replace(
        ref,
        status=ref.status if update.status is None else update.status,
        tool_call_id=ref.tool_call_id if update.tool_call_id is None else update.tool_call_id,
        delegation=ref.delegation if update.delegation is None else update.delegation,
        result=ref.result if update.result is None else update.result,
        error=ref.error if update.error is None else update.error,
        remote=ref.remote if update.remote is None else update.remote,
        updated_at=now,
    )


def linked(ref: SubSessionRef) -> SubSessionRefUpdate:
    """The update when a known child is started again: it is at work, for this call."""
    return SubSessionRefUpdate(sub_session_id=ref.sub_session_id, status=ref.status, tool_call_id=ref.tool_call_id)


def added(ref: SubSessionRef, now: int) -> SubSessionRef:
    """The reference as it is first stored; if its creator gave the time of the delegation, that is kept."""
    return msgspec.structs.replace(ref, created_at=ref.created_at or now, updated_at=ref.updated_at or now)
