"""The effect ledger: what is known about a tool that must not run twice."""

from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

from helix_agents.domain.errors import InvalidWriteError
from helix_agents.domain.ids import SessionId, ToolCallId
from helix_agents.domain.records import JSON, Record
from helix_agents.domain.runs import Fence
from helix_agents.domain.staging import StagedChange

EffectState: TypeAlias = Literal["intent", "done", "unknown"]


class Effect(Record):
    """One call's entry: an intent with an owner and a lease, then its result, or an explicit unknown."""

    session_id: SessionId
    tool_call_id: ToolCallId
    tool_name: str
    idempotency_key: str
    state: EffectState
    owner: str
    lease_expires_at: int
    result: JSON = None
    late_result: JSON = None
    begun_at: int
    finished_at: int | None = None


class BeginEffect(Record):
    """Announce a tool that is about to run. `stage` is part of the same transaction: the reply that requested the call.

    `rerun` starts an effect again whose outcome is unknown, as a person or a policy decided.
    """

    session_id: SessionId
    fence: Fence
    tool_call_id: ToolCallId
    tool_name: str
    idempotency_key: str
    owner: str
    lease_ms: int
    stage: tuple[StagedChange, ...] = ()
    consume_answer: bool = False
    rerun: bool = False


class EffectBegun(Record):
    """The intent is stored and the tool may run now."""

    effect: Effect


class EffectFinished(Record):
    """The tool ran before; this is its recorded result."""

    effect: Effect


class EffectBusy(Record):
    """Another live attempt is running the tool; wait for it."""

    effect: Effect


class EffectUnknown(Record):
    """An attempt died while the tool ran: its outcome is unknown."""

    effect: Effect


EffectOutcome: TypeAlias = EffectBegun | EffectFinished | EffectBusy | EffectUnknown


class EffectRecorded(Record):
    """The result is on record."""

    effect: Effect


class EffectLost(Record):
    """The intent was declared unknown, or another owner started it meanwhile; a result is kept as late."""

    effect: Effect


FinishOutcome: TypeAlias = EffectRecorded | EffectLost


def begin(existing: Effect | None, request: BeginEffect, now: int) -> tuple[Effect | None, EffectOutcome]:
    """What announcing a tool does to its entry: the row to store, if any, and what the caller may do."""
    lease = now + request.lease_ms
    if existing is None:
        begun = Effect(
            session_id=request.session_id,
            tool_call_id=request.tool_call_id,
            tool_name=request.tool_name,
            idempotency_key=request.idempotency_key,
            state="intent",
            owner=request.owner,
            lease_expires_at=lease,
            begun_at=now,
        )
        return begun, EffectBegun(effect=begun)
    if existing.state == "done":
        return None, EffectFinished(effect=existing)
    if existing.state == "intent":
        if existing.owner == request.owner:
            renewed = msgspec.structs.replace(existing, lease_expires_at=lease)
            return renewed, EffectBegun(effect=renewed)
        if existing.lease_expires_at > now:
            return None, EffectBusy(effect=existing)
    if request.rerun:
        # The idempotency key stays: a service that saw the first attempt recognises the second.
        rerun = msgspec.structs.replace(
            existing, state="intent", owner=request.owner, lease_expires_at=lease, begun_at=now
        )
        return rerun, EffectBegun(effect=rerun)
    unknown = msgspec.structs.replace(existing, state="unknown")
    return (unknown if existing.state == "intent" else None), EffectUnknown(effect=unknown)


def finish(effect: Effect, owner: str, result: JSON, now: int) -> tuple[Effect | None, FinishOutcome]:
    """What a result does to its entry: the row to store, if any, and whether the result counts."""
    if effect.owner == owner and effect.state == "intent":
        done = msgspec.structs.replace(effect, state="done", result=result, finished_at=now)
        return done, EffectRecorded(effect=done)
    if effect.owner == owner and effect.state == "done":
        return None, EffectRecorded(effect=effect)
    if effect.state == "unknown":
        late = msgspec.structs.replace(effect, late_result=result)
        return late, EffectLost(effect=late)
    return None, EffectLost(effect=effect)


def renew(effect: Effect, owner: str, lease_ms: int, now: int) -> tuple[Effect | None, FinishOutcome]:
    """What a sign of life does to an entry: the row to store, if any, and whether the intent is still valid."""
    if effect.owner != owner or effect.state != "intent":
        return None, EffectLost(effect=effect)
    renewed = msgspec.structs.replace(effect, lease_expires_at=now + lease_ms)
    return renewed, EffectRecorded(effect=renewed)


def oldest_first(effects: Iterable[Effect]) -> tuple[Effect, ...]:
    """Entries in the order in which their tools were last started; equally old ones keep their order."""
    return tuple(sorted(effects, key=lambda effect: effect.begun_at))


def begun(effect: Effect | None, session_id: SessionId, tool_call_id: ToolCallId) -> Effect:
    """The entry itself.

    Raises:
        InvalidWriteError: there is none, so nothing can be renewed or finished.
    """
    if effect is None:
        raise InvalidWriteError(session_id, tool_call_id, "no effect was started for this call")
    return effect
