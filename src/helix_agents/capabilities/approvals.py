"""Approvals for callers without a run: a row with the exact call, decided by a person, which then runs once.

pending → approved → executing → executed | failed, or pending → rejected | expired. Every arrow is a compare-and-set,
so of two clicks one counts. The stored call runs, not one that a caller sends again. A process that dies while the call
runs leaves `executing`; what the call made durable was remembered with it, so `resume_approvals` knows whether to run
it.

A request that is decided moves to its own scope, so that looking for open requests does not read the decided ones. It
can be read there for as long as results are remembered; the audit log records forever who decided what.
"""

from contextlib import suppress
from typing import Any

import msgspec

from helix_agents.agent.context import Approval
from helix_agents.capabilities.approval_rows import OPEN, ApprovalRow, Status, find_approval, row_of
from helix_agents.capabilities.calls import Call, Caller
from helix_agents.capabilities.gateway import Gateway
from helix_agents.capabilities.paging import every_entry
from helix_agents.capabilities.scopes import APPROVALS, ASKED, DECIDED
from helix_agents.capabilities.values import parsed, shown_time
from helix_agents.domain.capability_errors import ApprovalRejected, CapabilityError, InvalidInput, VersionConflict
from helix_agents.domain.entries import Change, Entry, EntryTransaction, Put, Remove
from helix_agents.domain.records import JSON, encode

LEASE_MS = 10 * 60 * 1000


async def request_approval(gateway: Gateway, call: Call) -> str:
    """Request approval for a call, or join a waiting request for the same call; returns the request's id. Of many
    callers at the same time, one creates it."""
    # A call requested in one session is not made in another.
    here = f"/{call.caller.session_id}" if call.capability.in_session else ""
    while True:
        asked = await gateway.store.find(ASKED, call.digest + here)
        if asked is not None and await _still_waits(gateway, parsed(asked.value)):
            return parsed(asked.value)
        approval_id = gateway.ids.new("approval")
        now = gateway.store.now_ms()
        row = ApprovalRow(
            digest=call.digest,
            agent=call.caller.agent,
            face=call.caller.face,
            session_id=call.caller.session_id,
            capability=call.capability.name,
            inputs=call.inputs,
            preview=await gateway.preview(call.caller, call.capability.name, call.inputs),
            requested_at=shown_time(now),
            expires_at=now + gateway.settings.limits.approval_hold_ms,
        )
        version = asked.version if asked is not None else 0
        with suppress(VersionConflict):
            await call.commit(
                Put(scope=ASKED, key=call.digest + here, value=encode(approval_id).decode(), expected_version=version),
                Put(scope=APPROVALS, key=approval_id, value=encode(row).decode(), expected_version=0),
                audit={"status": "asked", "approval_id": approval_id},
            )
            return approval_id


async def _still_waits(gateway: Gateway, approval_id: str) -> bool:
    entry = await gateway.store.find(APPROVALS, approval_id)
    row = None if entry is None else row_of(entry)
    return row is not None and row.status == "pending" and row.expires_at > gateway.store.now_ms()


async def decide_approval(
    gateway: Gateway, approval_id: str, *, approved: bool, by: str, reason: str | None = None
) -> ApprovalRow:
    """Decide a request, once, and run the call if it was approved; returns how it ended.

    Raises:
        InvalidInput: there is no such request, or it was already decided.
        ApprovalRejected: it expired before.
    """
    entry, row = await _load(gateway, approval_id)
    if row.status != "pending":
        raise InvalidInput(f"This request was decided already: it is {row.status}.", {"status": row.status})
    if row.expires_at <= gateway.store.now_ms():
        await _move(gateway, approval_id, entry, row, status="expired")
        raise ApprovalRejected("Nobody decided in time; the call has to be made again.", {"status": "expired"})
    status: Status = "approved" if approved else "rejected"
    moved = await _move(gateway, approval_id, entry, row, status=status, decided_by=by, reason=reason)
    if moved is None:
        raise InvalidInput("Another person decided at the same moment; read the request again.", {})
    if approved:
        return await run_approved(gateway, approval_id)
    return moved


async def run_approved(gateway: Gateway, approval_id: str) -> ApprovalRow:
    """Run an approved call that no process runs; returns how it ended, or its state if another process has it."""
    entry, row = await _load(gateway, approval_id)
    now = gateway.store.now_ms()
    free = row.status == "approved" or (row.status == "executing" and row.lease_until <= now)
    if not free:
        return row
    claimed = await _move(gateway, approval_id, entry, row, status="executing", lease_until=now + LEASE_MS)
    if claimed is None:
        return (await _load(gateway, approval_id))[1]
    caller = Caller(agent=row.agent, face=row.face, session_id=row.session_id)
    approval = Approval(approval_id=approval_id, preview=row.preview)
    changes: dict[str, Any]
    try:
        result = await gateway.call(
            caller, row.capability, row.inputs, approval=approval, once=f"approval:{approval_id}"
        )
        changes = {"status": "executed", "result": result}
    except CapabilityError as problem:
        changes = {"status": "failed", "result": problem.as_data()}
    # If another process took it over meanwhile, that process says how it ended.
    mine = msgspec.structs.replace(entry, version=entry.version + 1)
    return await _move(gateway, approval_id, mine, claimed, **changes) or (await _load(gateway, approval_id))[1]


async def expire_approvals(gateway: Gateway) -> int:
    """Expire requests that were not decided in time, so that they stop waiting; returns how many."""
    expired = 0
    async for entry in every_entry(gateway.store, APPROVALS):
        row = row_of(entry)
        if row.status == "pending" and row.expires_at <= gateway.store.now_ms():
            expired += await _move(gateway, entry.key, entry, row, status="expired") is not None
        elif row.status not in OPEN:
            # Left here by an older version.
            await _store(gateway, entry, row)
    return expired


async def resume_approvals(gateway: Gateway) -> int:
    """Run approved calls whose process died before or while it ran them; returns how many."""
    resumed = 0
    async for entry in every_entry(gateway.store, APPROVALS):
        row = row_of(entry)
        overdue = row.status == "executing" and row.lease_until <= gateway.store.now_ms()
        if row.status == "approved" or overdue:
            await run_approved(gateway, entry.key)
            resumed += 1
    return resumed


async def _load(gateway: Gateway, approval_id: str) -> tuple[Entry, ApprovalRow]:
    entry = await find_approval(gateway.store, approval_id)
    if entry is None:
        raise InvalidInput(f"There is no request {approval_id[:80]!r}.", {"approval_id": approval_id[:80]})
    return entry, row_of(entry)


async def _move(
    gateway: Gateway, approval_id: str, entry: Entry, row: ApprovalRow, **changes: Any
) -> ApprovalRow | None:
    """Change a request that was not changed since; None if it was."""
    moved = msgspec.structs.replace(row, **changes)
    line: dict[str, JSON] = {
        "at": shown_time(gateway.store.now_ms()),
        "agent": row.agent,
        "capability": row.capability,
        "approval_id": approval_id,
        "status": moved.status,
        "decided_by": moved.decided_by,
        "digest": row.digest,
    }
    return moved if await _store(gateway, entry, moved, line) else None


async def _store(gateway: Gateway, entry: Entry, row: ApprovalRow, *audit: dict[str, JSON]) -> bool:
    """Store a request where it belongs, unless it was changed since; returns whether it was stored."""
    value = encode(row).decode()
    changes: tuple[Change, ...] = (Put(scope=APPROVALS, key=entry.key, value=value, expected_version=entry.version),)
    if row.status not in OPEN:
        changes = (
            Remove(scope=APPROVALS, key=entry.key, expected_version=entry.version, forget=True),
            Put(scope=DECIDED, key=entry.key, value=value, expected_version=0),
        )
    try:
        await gateway.store.transact(EntryTransaction(changes=changes, owner=row.agent, audit=audit))
    except VersionConflict:
        return False
    return True
