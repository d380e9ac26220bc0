"""What waits for people: listing it, and storing their answers, from the command line."""

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

# Placeholder for the agents if an answer was given without naming any: a store does not know which module defines them.
UNNAMED = "MODULE:AGENTS"


class NoSuchCallError(CallerError):
    """The call to answer does not exist, or it is unclear which one is meant."""

    code = "not_found"
    session_id: str
    problem: str

    def __str__(self) -> str:
        return f"Session {self.session_id!r}: {self.problem}"


async def list_pending(output: Output, url: str, *, offset: int, limit: int, **where: Any) -> None:
    """List what waits, across all sessions."""
    async with open_stored(url) as backend:
        page = await backend.state.list_pending(PendingFilter(**where), offset=offset, limit=limit)
        now = backend.state.now_ms()
    output.answer(plain_page(page))
    output.table(
        ("session", "call", "kind", "waiting", "deadline", "tool", "input"),
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
        output.note(
            f"Replace {UNNAMED} with the place that defines {root.agent_type!r}: app.py, app.py:agents or app:agents."
        )
    return code


def option_or_text(call: PendingCall, text: str) -> JSON:
    """An answer as it was typed; if the question offers options, the option that reads the same."""
    return next((option for option in options_of(call) if shown_json(option) == text), text)


def options_of(call: PendingCall) -> list[JSON]:
    """The answers that a question offers."""
    return cast("dict[str, Any]", call.input).get("options") or [] if call.kind == "question" else []


async def _find(
    store: SessionStateStore, session_id: str, tool_call_id: str | None, *, wants_approval: bool
) -> PendingCall:
    """The named call, whether it still waits or not; without a name, the session's only waiting call of its kind."""
    session = await store.load_state(session_id)
    if tool_call_id is not None:
        named = await store.get_pending_call(session_id, tool_call_id)
        if named is None:
            raise NoSuchCallError(session_id, f"no call {tool_call_id!r} is waiting; see `helix pending list`.")
        return named
    page = await store.list_pending(PendingFilter(root_session_id=session.root_session_id), limit=200)
    fitting = [call for call in page.items if _fits(call, wants_approval=wants_approval)]
    if len(fitting) == 1:
        return fitting[0]
    kind = "approval" if wants_approval else "question or client tool"
    if not fitting:
        raise NoSuchCallError(session_id, f"no {kind} is waiting; see `helix pending list`.")
    ids = ", ".join(f"{call.tool_call_id} ({call.tool_name})" for call in fitting)
    raise NoSuchCallError(session_id, f"several calls are waiting; name one of them: {ids}.")


def _fits(call: PendingCall, *, wants_approval: bool) -> bool:
    """Whether a call takes a decision, or a result; one whose outcome is unknown takes either."""
    return call.reason == UNKNOWN_OUTCOME or (call.kind == "approval") == wants_approval


def _told(call: PendingCall, outcome: AnswerOutcome, place: Workplace) -> tuple[str, str, ExitCode]:
    """The outcome by name, in sentences, and as an exit code."""
    match outcome:
        case AnswerAccepted(call=answered, next=next_step, still_waiting=count):
            return "accepted", f"Stored. {_warned(answered)}{_next(call, next_step, count, place)}", ExitCode.OK
        case AnswerAlreadyCompleted(call=PendingCall(state="dropped")):
            gone = "Too late: the session continued without an answer, and the call was given up."
            return "already_completed", gone, ExitCode.CONFLICT
        case AnswerAlreadyCompleted():
            return "already_completed", "Already answered: the earlier answer is kept.", ExitCode.CONFLICT
        case AnswerLate(recorded=recorded):
            kept = "the model is told about it once" if recorded else "an earlier late answer is kept"
            return "late_answer_after_timeout", f"Too late: the run continued without it; {kept}.", ExitCode.CONFLICT
        case AnswerRefused(reason=reason):
            return "validation_error", f"Refused: {reason}.", ExitCode.FAILED
        case AnswerNotFound():
            raise SessionNotFoundError(call.root_session_id)


def _warned(call: PendingCall) -> str:
    """A warning for a person who approved a call that may already have run."""
    match call.answer:
        case ApprovalAnswer(approved=True) if call.reason == UNKNOWN_OUTCOME:
            return (
                f"{call.tool_name} was started before, and it is unknown whether it took effect: it will run again and "
                "may take effect a second time. "
            )
        case _:
            return ""


def _next(
    call: PendingCall, next_step: Literal["resume", "wait", "nothing"], still_waiting: int, place: Workplace
) -> str:
    match next_step:
        case "resume":
            return f"Continue with: {place.going_on('resume', call.root_session_id)}"
        case "wait":
            return f"{still_waiting} more to answer before the session continues."
        case "nothing":
            return "An active run will use it."


def _deadline(call: PendingCall, now: int) -> str:
    if call.deadline is None:
        return "none"
    left = call.deadline - now
    return f"in {shown_span(left)}" if left > 0 else f"{shown_span(left)} ago"
