"""Calls that wait for an answer: client tools, approvals and questions, and the answers to them."""

from typing import Literal, TypeAlias

import msgspec

from helix_agents.domain.ids import RunId, SessionId, StepId, ToolCallId
from helix_agents.domain.records import JSON, Record

PendingKind: TypeAlias = Literal["client_tool", "approval", "question"]
PendingState: TypeAlias = Literal["waiting", "answered", "expired", "consumed", "dropped"]

OPEN: frozenset[PendingState] = frozenset(("waiting", "answered", "expired"))
"""States in which no run has taken note of the call's end yet."""

READY: frozenset[PendingState] = frozenset(("answered", "expired"))
"""States in which a run that continued now would find something to consume."""

UNKNOWN_OUTCOME = "unknown_outcome"
"""The reason of a question about a call that was started and may or may not have taken effect."""


class ToolAnswer(Record, tag_field="kind", tag="client-tool-result"):
    """The result of the client's tool, or why it failed. Whoever stores the answer finds out whether it is `in_parts`:
    it then is a list of texts, images and files in their JSON form."""

    result: JSON = None
    in_parts: bool = False
    error: str | None = None


class ApprovalAnswer(Record, tag_field="kind", tag="approval-response"):
    """A person's decision on one call with exactly this input."""

    approved: bool
    reason: str | None = None
    edited_input: dict[str, JSON] | None = None


class AnsweredElsewhere(Record, tag_field="kind", tag="answered-elsewhere"):
    """The call waits in another service and was answered there; the answer itself is known only there."""


Answer: TypeAlias = ToolAnswer | ApprovalAnswer
"""The answers that people and clients give."""

KnownAnswer: TypeAlias = Answer | AnsweredElsewhere
"""The answers that a store keeps."""


class OnDeadline(Record):
    """What happens to a call that is not answered in time: it times out, is denied, or takes a default answer."""

    action: Literal["timeout", "deny", "default"] = "timeout"
    default: JSON = None


class PendingCall(Record):
    """One call that waits, and later the record that it was answered.

    `waiting` becomes `answered` or `expired`. An expired call may still be answered until a run has consumed the
    timeout. `consumed` and `dropped` rows are kept, so that a repeated answer is recognised forever. `preview` is what
    the tool shows the deciding person about its effect. `edited` is set if the call was started with an input that a
    person gave in place of the model's, and the question is now what happened to it. If that was asked before,
    `unknown_since` is the time since when the outcome has been unknown.
    """

    tool_call_id: ToolCallId
    kind: PendingKind
    session_id: SessionId
    root_session_id: SessionId
    run_id: RunId
    step_id: StepId
    tool_name: str
    input: JSON = None
    edited: bool = False
    preview: JSON = None
    approval_id: str | None = None
    reason: str | None = None
    unknown_since: int | None = None
    created_at: int
    deadline: int | None = None
    on_deadline: OnDeadline = OnDeadline()
    state: PendingState = "waiting"
    answer: KnownAnswer | None = None
    answered_at: int | None = None
    expired_at: int | None = None
    consumed_at: int | None = None
    late_answer: KnownAnswer | None = None
    late_answer_delivered: bool = False


class PendingFilter(Record):
    """Which waiting calls to list; all given conditions must hold. Without `states`, the calls that still wait.

    `session_id` is the session that made the call; `root_session_id` is the conversation, with everything below it.
    """

    session_id: SessionId | None = None
    root_session_id: SessionId | None = None
    user_id: str | None = None
    tool_name: str | None = None
    kind: PendingKind | None = None
    states: tuple[PendingState, ...] = ("waiting",)
    created_before: int | None = None


class SubmitAnswer(Record):
    """An answer on its way in, given for the root session or for the session that owns the call.

    If `expires_at` is given, an accepted answer moves the root's expiry to that time.
    """

    session_id: SessionId
    tool_call_id: ToolCallId
    answer: KnownAnswer
    approval_id: str | None = None
    expires_at: int | None = None


class AnswerAccepted(Record):
    """Stored, once. `next` says what is needed now: a resume, other answers first, or nothing because a run is
    running."""

    call: PendingCall
    next: Literal["resume", "wait", "nothing"]
    still_waiting: int = 0


class AnswerAlreadyCompleted(Record):
    """An earlier answer counts, or the call was given up; nothing was stored."""

    call: PendingCall


class AnswerLate(Record):
    """A run has already consumed the timeout. The first late answer is kept, to tell the model once."""

    call: PendingCall
    recorded: bool


class AnswerRefused(Record):
    """The answer does not fit the call; nothing was stored."""

    reason: str


class AnswerNotFound(Record):
    """No such call waits in this session or its tree."""


AnswerRejected: TypeAlias = AnswerAlreadyCompleted | AnswerLate | AnswerRefused | AnswerNotFound
AnswerOutcome: TypeAlias = AnswerAccepted | AnswerRejected


def fits(call: PendingCall, submission: SubmitAnswer) -> str | None:
    """Why this call cannot take an answer; None if it can."""
    wants_approval = call.kind == "approval"
    match submission.answer:
        case ApprovalAnswer() if not wants_approval:
            return f"call {call.tool_call_id!r} waits for a client-tool-result, not for an approval-response"
        case ToolAnswer() if wants_approval and call.reason != UNKNOWN_OUTCOME:
            return f"call {call.tool_call_id!r} waits for an approval-response, not for a client-tool-result"
        case _:
            pass
    if submission.approval_id is not None and submission.approval_id != call.approval_id:
        return f"approval id {submission.approval_id!r} is not the one call {call.tool_call_id!r} waits for"
    return None


def answer(
    call: PendingCall | None, submission: SubmitAnswer, now: int
) -> tuple[PendingCall | None, AnswerRejected | None]:
    """What an answer does to a call: the row to store, if any, and the outcome unless the answer was accepted.

    For an accepted answer, `accepted` says what is needed next.
    """
    if call is None:
        return None, AnswerNotFound()
    if call.state in ("waiting", "expired"):
        if (reason := fits(call, submission)) is not None:
            return None, AnswerRefused(reason=reason)
        return msgspec.structs.replace(call, state="answered", answer=submission.answer, answered_at=now), None
    timed_out = call.state == "consumed" and call.answer is None
    if not timed_out:
        return None, AnswerAlreadyCompleted(call=call)
    if call.late_answer is not None:
        return None, AnswerLate(call=call, recorded=False)
    late = msgspec.structs.replace(call, late_answer=submission.answer)
    return late, AnswerLate(call=late, recorded=True)


def accepted(call: PendingCall, *, running: bool, still_waiting: int) -> AnswerAccepted:
    """The outcome of an answer that was stored.

    `running` says whether the run that drives the call's session is running; `still_waiting` counts the other
    unanswered calls of the root's tree.
    """
    if running:
        return AnswerAccepted(call=call, next="nothing", still_waiting=still_waiting)
    return AnswerAccepted(call=call, next="wait" if still_waiting else "resume", still_waiting=still_waiting)


def is_overdue(call: PendingCall, now: int) -> bool:
    """Whether the call still waits although its deadline has been reached."""
    return call.state == "waiting" and call.deadline is not None and call.deadline <= now


def expire(call: PendingCall, now: int) -> PendingCall | None:
    """The row after its deadline; None if the call is not overdue."""
    if not is_overdue(call, now):
        return None
    return msgspec.structs.replace(call, state="expired", expired_at=now)


def ask(existing: PendingCall | None, new: PendingCall) -> PendingCall | None:
    """The row to store when a call starts to wait; None if it waits already. A call that has ended may be asked
    again."""
    if existing is None:
        return new
    if existing.state in OPEN:
        return None
    if new.reason != UNKNOWN_OUTCOME or new.step_id != existing.step_id:
        return new
    return msgspec.structs.replace(new, unknown_since=unknown_since(existing))


def unknown_since(call: PendingCall) -> int | None:
    """Since when it has been unknown whether the call took effect; None if that is not what was asked."""
    if call.reason != UNKNOWN_OUTCOME:
        return None
    return call.created_at if call.unknown_since is None else call.unknown_since


def consume(call: PendingCall, now: int) -> PendingCall | None:
    """The row after a run took note of its answer or timeout; None if there is neither."""
    if call.state not in READY:
        return None
    return msgspec.structs.replace(call, state="consumed", consumed_at=now)


def drop(call: PendingCall) -> PendingCall | None:
    """The row after a run failed: an unanswered call is given up; None (no change) for any other."""
    return msgspec.structs.replace(call, state="dropped") if call.state == "waiting" else None


def abandon(call: PendingCall) -> PendingCall | None:
    """The row after the conversation continued without it: an open call is given up; None for any other."""
    return msgspec.structs.replace(call, state="dropped") if call.state in OPEN else None


def deliver_late_answer(call: PendingCall) -> PendingCall | None:
    """The row after the model was told about its late answer; None if there is nothing to tell."""
    if call.late_answer is None or call.late_answer_delivered:
        return None
    return msgspec.structs.replace(call, late_answer_delivered=True)


def ready_since(call: PendingCall) -> int | None:
    """Since when a run that continued would find something to consume; None while there is nothing."""
    if call.state not in READY:
        return None
    return call.answered_at if call.state == "answered" else call.expired_at


def completed_at(call: PendingCall) -> int | None:
    """When the call was answered, or else consumed; None while it was neither."""
    return call.answered_at if call.answered_at is not None else call.consumed_at


def matches(call: PendingCall, where: PendingFilter, user_id: str | None) -> bool:
    """Whether a call, in a session of this user, matches the filter."""
    return (
        (where.session_id is None or call.session_id == where.session_id)
        and (where.root_session_id is None or call.root_session_id == where.root_session_id)
        and (where.user_id is None or user_id == where.user_id)
        and (where.tool_name is None or call.tool_name == where.tool_name)
        and (where.kind is None or call.kind == where.kind)
        and (not where.states or call.state in where.states)
        and (where.created_before is None or call.created_at < where.created_before)
    )
