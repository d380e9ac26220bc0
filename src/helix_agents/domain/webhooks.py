"""Webhooks: which ends of runs are told to other services, what is sent, and how it is signed."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from msgspec.structs import replace

from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.pending import PendingCall
from helix_agents.domain.records import JSON, Record, encode
from helix_agents.domain.runs import SUSPENDED, RunRecord, RunStatus
from helix_agents.domain.sessions import SessionSummary

DeliveryId: TypeAlias = str

WebhookEvent: TypeAlias = Literal["turn.completed", "turn.failed", "turn.interrupted", "calls.waiting"]
"""What a webhook is told: how a turn of a conversation ended, or that calls wait for somebody's answer."""

DeliveryState: TypeAlias = Literal["owed", "delivered", "dropped", "given_up"]
"""`dropped` deliveries were no longer wanted when their time came: nothing waited any more, or the session was gone."""

LARGEST_VALUE_BYTES = 20_000
"""A larger output or input is left out of the message, which says so; the receiver can read it from the session."""

SECRET_PREFIX = "whsec_"
SECRET_BYTES = (24, 64)
DELAYS_MS = (5_000, 30_000, 120_000, 600_000, 1_800_000, 3_600_000, 7_200_000, 14_400_000, 28_800_000)
"""How long a delivery waits after each failed try; the last one applies to all further tries."""

KEPT_MS: dict[DeliveryState, int] = {"delivered": 3_600_000, "dropped": 3_600_000, "given_up": 30 * 86_400_000}
"""How long the record of a delivery is kept after its end."""

ABANDONED_MS = 60 * 86_400_000
"""A delivery that is owed and has not been tried for so long is for a webhook that no process knows any more."""


class Delivery(Record):
    """What one webhook has to be told about the end of one run.

    The message itself is not stored: it is made from the run when it is sent. `next_at` is when the delivery is tried
    next, or, once it is over, when its record is forgotten. Every stored change gives it a new `revision`.
    """

    delivery_id: DeliveryId
    webhook: str
    event: WebhookEvent
    session_id: SessionId
    run_id: RunId
    state: DeliveryState = "owed"
    attempts: int = 0
    created_at: int
    next_at: int
    last_tried_at: int | None = None
    last_error: str | None = None
    revision: str

    @property
    def is_over(self) -> bool:
        return self.state != "owed"

    def is_forgotten(self, by: int) -> bool:
        """Whether its record is no longer kept at this time."""
        return self.next_at + (0 if self.is_over else ABANDONED_MS) <= by


def is_untold(run: RunRecord) -> bool:
    """Whether webhooks have to be told about the end of a run, and nobody has seen to it yet.

    A run that its parent drives is told about only if it waits: how its parent's turn ends says the rest.
    """
    if run.told is None or run.status in ("running", run.told):
        return False
    return run.parent_run_id is None or run.status in SUSPENDED


def event_of(status: RunStatus) -> WebhookEvent | None:
    """The event that a run's status stands for; None while the run is running."""
    match status:
        case "completed":
            return "turn.completed"
        case "failed":
            return "turn.failed"
        case "interrupted":
            return "turn.interrupted"
        case "running":
            return None
        case _:
            return "calls.waiting"


def owed(run: RunRecord, event: WebhookEvent, webhook: str, *, now: int, revision: str) -> Delivery:
    """The delivery of an event of a run. Its id follows from all three, so every process means the same one."""
    name = hashlib.sha256(encode((webhook, run.run_id, event))).hexdigest()
    return Delivery(
        delivery_id=f"msg_{name[:32]}",
        webhook=webhook,
        event=event,
        session_id=run.session_id,
        run_id=run.run_id,
        created_at=now,
        next_at=now,
        revision=revision,
    )


def claimed(delivery: Delivery, *, now: int, lease_ms: int, revision: str) -> Delivery:
    """A delivery that is being tried: nobody else tries it until the lease is over."""
    return replace(
        delivery, attempts=delivery.attempts + 1, last_tried_at=now, next_at=now + lease_ms, revision=revision
    )


def finished(delivery: Delivery, state: DeliveryState, *, now: int, revision: str, error: str | None) -> Delivery:
    """A delivery that is not tried again."""
    return replace(delivery, state=state, next_at=now + KEPT_MS[state], last_error=error, revision=revision)


def put_off(delivery: Delivery, *, now: int, revision: str, error: str, at_least_ms: int, jitter: float) -> Delivery:
    """A delivery that failed and is tried again later; `at_least_ms` is what the receiver asked for."""
    wait = DELAYS_MS[min(max(delivery.attempts, 1), len(DELAYS_MS)) - 1]
    wait = max(round(wait * jitter), min(at_least_ms, DELAYS_MS[-1]))
    return replace(delivery, next_at=now + wait, last_error=error, revision=revision)


def owed_again(delivery: Delivery, *, now: int, revision: str) -> Delivery:
    """A delivery that was given up, and is to be tried again from now on."""
    return replace(delivery, state="owed", created_at=now, next_at=now, attempts=0, revision=revision)


def message_of(
    event: WebhookEvent, run: RunRecord, session: SessionSummary, calls: Sequence[PendingCall]
) -> dict[str, JSON]:
    """What is sent: ids, how the run ended, and its result or the calls that wait; never the transcript."""
    about: dict[str, Any] = {
        "sessionId": session.root_session_id,
        "runId": run.run_id,
        "turn": run.turn,
        "status": "suspended" if event == "calls.waiting" else run.status,
        "agent": session.agent_type,
        "userId": session.user_id,
        "startSequence": run.start_sequence,
        "startedAt": run.started_at,
        "endedAt": run.ended_at,
    }
    if session.held_by is not None:
        about["heldBy"] = session.held_by
    match event:
        case "calls.waiting":
            # The run may be that of a sub-agent, whose session is below the conversation's.
            about["runSessionId"] = run.session_id
            about["calls"] = [_told_call(call) for call in calls]
        case "turn.completed":
            about |= _unless_large("output", run.output)
        case _:
            about |= {"reason": run.completion_reason, "error": run.error}
    at = max([run.ended_at or run.started_at, *(call.created_at for call in calls)])
    return {"type": event, "timestamp": _iso(at), "data": about}


def _told_call(call: PendingCall) -> dict[str, Any]:
    return {
        "toolCallId": call.tool_call_id,
        "kind": call.kind,
        "toolName": call.tool_name,
        **_unless_large("input", call.input),
        "approvalId": call.approval_id,
        "reason": call.reason,
        "createdAt": call.created_at,
        "deadline": call.deadline,
    }


def _unless_large(name: str, value: JSON) -> dict[str, Any]:
    is_large = len(encode(value)) > LARGEST_VALUE_BYTES
    return {name: None, f"{name}Omitted": True} if is_large else {name: value}


def _iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def key_of(secret: str) -> bytes | None:
    """The key that a secret stands for; None if it is not one: `whsec_` and 24 to 64 bytes in base64."""
    if not secret.startswith(SECRET_PREFIX):
        return None
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        return None
    least, most = SECRET_BYTES
    return key if least <= len(key) <= most else None


def signed_headers(keys: Iterable[bytes], delivery_id: DeliveryId, at_s: int, body: bytes) -> dict[str, str]:
    """The headers by which a receiver knows the sender, as Standard Webhooks defines them: one signature per key."""
    content = b".".join((delivery_id.encode(), str(at_s).encode(), body))
    signatures = (base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode() for key in keys)
    return {
        "webhook-id": delivery_id,
        "webhook-timestamp": str(at_s),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }
