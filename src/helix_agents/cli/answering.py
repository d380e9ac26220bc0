"""What waits for people, as the command line lists it and stores their answers."""

from collections.abc import Callable
from typing import Any, Literal, cast

from helix_agents.cli.agent_modules import load_agents
from helix_agents.cli.driving import Workplace
from helix_agents.cli.exit_codes import ExitCode
from helix_agents.cli.opened import desk_of
from helix_agents.cli.output import Output
from helix_agents.cli.plain import plain, plain_page, shown_json, shown_span
from helix_agents.cli.stored import open_stored
from helix_agents.domain.errors import CallerError, SessionNotFoundError
from helix_agents.domain.pending import (
    UNKNOWN_OUTCOME,
    Answer,
    AnswerAccepted,
    AnswerAlreadyCompleted,
    AnswerLate,
    AnswerNotFound,
    AnswerOutcome,
    AnswerRefused,
    ApprovalAnswer,
    PendingCall,
    PendingFilter,
)
from helix_agents.domain.records import JSON
from helix_agents.ports.state_store import SessionStateStore

# Stands for the agents where an answer was given without naming any: a store does not know which module defines them.
UNNAMED = "MODULE:AGENTS"


class NoSuchCallError(CallerError):
    """The call to answer is not there, or it was not said which one is meant."""

    code = "not_found"
    session_id: str
    problem: str

    def __str__(self) -> str:
        return f"In session {self.session_id!r} {self.problem}"


async def list_pending(output: Output, url: str, *, offset: int, limit: int, **where: Any) -> None:
    """What waits, across all sessions."""
    async with open_stored(url) as backend:
        page = await backend.state.list_pending(PendingFilter(**where), offset=offset, limit=limit)
        now = backend.state.now_ms()
    output.answer(plain_page(page))
    output.table(
        ("session", "call", "kind", "waits for", "deadline", "tool", "input"),
        [
            (
                call.root_session_id,
                call.tool_call_id,
                f"{call.kind} ({call.reason})" if call.reason else call.kind,
                shown_span(now - call.created_at),
                _deadline(call, now),
                call.tool_name,
                shown_json(call.input),
            )
            for call in page.items
        ],
    )


async def answer_call(
    output: Output,
    url: str,
    session_id: str,
    tool_call_id: str | None,
    to_answer: Callable[[PendingCall], Answer],
    agents: str | None,
    *,
    wants_approval: bool,
) -> ExitCode:
    """Store an answer, and say what is needed next."""
    known = load_agents(agents) if agents is not None else None
    async with open_stored(url) as backend:
        helix = desk_of(backend, known)
        call = await _find(backend.state, session_id, tool_call_id, wants_approval=wants_approval)
        root = await backend.state.load_state(call.root_session_id)
        outcome = await helix.submit_tool_result(session_id, call.tool_call_id, to_answer(call))
    place = Workplace(agents=agents or UNNAMED, store_url=url)
    name, sentence, code = _told(call, outcome, place)
    next_step = outcome.next if isinstance(outcome, AnswerAccepted) else None
    still_waiting = outcome.still_waiting if isinstance(outcome, AnswerAccepted) else None
    output.answer(
        {
            "session_id": session_id,
            "tool_call_id": call.tool_call_id,
            "outcome": name,
            "next": next_step,
            "still_waiting": still_waiting,
            "reason": outcome.reason if isinstance(outcome, AnswerRefused) else None,
            "call": plain(getattr(outcome, "call", call)),
        }
    )
    output.say(sentence)
    if agents is None and next_step == "resume":
        output.note(f"{UNNAMED} is where {root.agent_type!r} is defined: app.py, app.py:agents or app:agents.")
    return code


def option_or_text(call: PendingCall, text: str) -> JSON:
    """An answer as it was typed; where the question offers options, the option that reads so."""
    return next((option for option in options_of(call) if shown_json(option) == text), text)


def options_of(call: PendingCall) -> list[JSON]:
    """The answers that a question offers."""
    return cast("dict[str, Any]", call.input).get("options") or [] if call.kind == "question" else []


async def _find(
    store: SessionStateStore, session_id: str, tool_call_id: str | None, *, wants_approval: bool
) -> PendingCall:
    """The call that is named, whether it still waits or not, or the only one of its kind that waits in the session."""
    session = await store.load_state(session_id)
    if tool_call_id is not None:
        named = await store.get_pending_call(session_id, tool_call_id)
        if named is None:
            raise NoSuchCallError(session_id, f"no call {tool_call_id!r} waits; `helix pending list` shows what does.")
        return named
    page = await store.list_pending(PendingFilter(root_session_id=session.root_session_id), limit=200)
    fitting = [call for call in page.items if _fits(call, wants_approval=wants_approval)]
    if len(fitting) == 1:
        return fitting[0]
    kind = "approval" if wants_approval else "question or client tool"
    if not fitting:
        raise NoSuchCallError(session_id, f"no {kind} waits; `helix pending list` shows what does.")
    ids = ", ".join(f"{call.tool_call_id} ({call.tool_name})" for call in fitting)
    raise NoSuchCallError(session_id, f"several calls wait, say which: {ids}.")


def _fits(call: PendingCall, *, wants_approval: bool) -> bool:
    """Whether a decision, or else a result, can be given to a call; where nobody knows what it did, either."""
    return call.reason == UNKNOWN_OUTCOME or (call.kind == "approval") == wants_approval


def _told(call: PendingCall, outcome: AnswerOutcome, place: Workplace) -> tuple[str, str, ExitCode]:
    """The outcome by name, as sentences, and as an exit code."""
    match outcome:
        case AnswerAccepted(call=answered, next=next_step, still_waiting=count):
            return "accepted", f"Stored. {_warned(answered)}{_next(call, next_step, count, place)}", ExitCode.OK
        case AnswerAlreadyCompleted(call=PendingCall(state="dropped")):
            gone = "Too late: the session went on without an answer, and the call was given up."
            return "already_completed", gone, ExitCode.CONFLICT
        case AnswerAlreadyCompleted():
            return "already_completed", "Somebody was first: an earlier answer stands.", ExitCode.CONFLICT
        case AnswerLate(recorded=recorded):
            kept = "the model is told of it once" if recorded else "an earlier late answer is kept"
            return "late_answer_after_timeout", f"Too late: the run went on without it; {kept}.", ExitCode.CONFLICT
        case AnswerRefused(reason=reason):
            return "validation_error", f"Refused: {reason}.", ExitCode.FAILED
        case AnswerNotFound():
            raise SessionNotFoundError(call.root_session_id)


def _warned(call: PendingCall) -> str:
    """What somebody has to know who allowed a call to run that may have run before."""
    match call.answer:
        case ApprovalAnswer(approved=True) if call.reason == UNKNOWN_OUTCOME:
            return (
                f"{call.tool_name} was begun before, and nobody knows whether it took effect: it will run again, and "
                "may take effect a second time. "
            )
        case _:
            return ""


def _next(
    call: PendingCall, next_step: Literal["resume", "wait", "nothing"], still_waiting: int, place: Workplace
) -> str:
    match next_step:
        case "resume":
            return f"Go on with: {place.going_on('resume', call.root_session_id)}"
        case "wait":
            return f"{still_waiting} more to answer before everything goes on."
        case "nothing":
            return "A run is going that takes it up."


def _deadline(call: PendingCall, now: int) -> str:
    if call.deadline is None:
        return "none"
    left = call.deadline - now
    return f"in {shown_span(left)}" if left > 0 else f"{shown_span(left)} ago"
