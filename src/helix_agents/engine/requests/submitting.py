"""Incoming answers: checked against the tool they are for, then stored once."""

import msgspec

from helix_agents.agent.registry import AgentRegistry
from helix_agents.domain.door import check_input
from helix_agents.domain.errors import HelixError, InvalidInputError, UnstorableValueError
from helix_agents.domain.parts import in_plain
from helix_agents.domain.pending import (
    AnsweredElsewhere,
    AnswerOutcome,
    AnswerRefused,
    ApprovalAnswer,
    KnownAnswer,
    PendingCall,
    SubmitAnswer,
    ToolAnswer,
)
from helix_agents.domain.records import encode
from helix_agents.engine.children.meant_agents import find_agent
from helix_agents.engine.log import log_event
from helix_agents.engine.remote.stops import is_elsewhere
from helix_agents.ports.state_store import SessionStateStore

MAX_ERROR_BYTES = 8_192


async def submit(
    store: SessionStateStore, agents: AgentRegistry, submission: SubmitAnswer, *, max_result_bytes: int
) -> AnswerOutcome:
    """Store an answer; this is a durable write and nothing else.

    Raises:
        InvalidInputError: it is not an answer, or contradicts itself.
    """
    submission = msgspec.structs.replace(submission, answer=checked_answer(submission.answer))
    call = await store.get_pending_call(submission.session_id, submission.tool_call_id)
    found = submission.answer if call is None else await _checked(store, agents, call, submission, max_result_bytes)
    if isinstance(found, str):
        problem = found
        log_event("client_tool.validation_failed", tool_call_id=submission.tool_call_id, reason=problem)
        return AnswerRefused(reason=problem)
    submission = msgspec.structs.replace(submission, answer=found)
    outcome = await store.submit_answer(await _moving_expiry(store, agents, call, submission))
    log_event("client_tool.submitted", tool_call_id=submission.tool_call_id, outcome=type(outcome).__name__)
    return outcome


def checked_answer(given: KnownAnswer) -> KnownAnswer:
    """An answer as it is stored, if it says one thing.

    Raises:
        InvalidInputError: it is not an answer, or contradicts itself.
    """
    answer = _in_json(given)
    cure = "give ApprovalAnswer(approved=…) or ToolAnswer(result=…)"
    check_input(answer, ToolAnswer | ApprovalAnswer | AnsweredElsewhere, "answer", cure)
    _check_says_one_thing(answer)
    return answer


def _in_json(answer: KnownAnswer) -> KnownAnswer:
    """The answer with images and files of a Python program in the form in which other clients send them. Whether they
    are shown as such, the tool decides."""
    if not isinstance(answer, ToolAnswer):
        return answer
    try:
        return msgspec.structs.replace(answer, result=in_plain(answer.result), in_parts=False)
    except UnstorableValueError as problem:
        raise InvalidInputError("answer", str(problem)) from problem


def _check_says_one_thing(answer: KnownAnswer) -> None:
    match answer:
        case ToolAnswer(result=result, error=str()) if result is not None:
            raise InvalidInputError("answer", "it has a result and an error; a call has one or the other")
        case ApprovalAnswer(approved=False, edited_input=dict()):
            problem = "it denies the call and edits its input; approve the call with that input, or leave the input out"
            raise InvalidInputError("answer", problem)
        case _:
            pass


async def _moving_expiry(
    store: SessionStateStore, agents: AgentRegistry, call: PendingCall | None, submission: SubmitAnswer
) -> SubmitAnswer:
    """The answer, with a new expiry for its session, which lives on because someone takes part in it."""
    if call is None:
        return submission
    root = await store.load_state(call.root_session_id)
    agent = agents.of_session(root)
    ttl = agent.session_ttl_ms if agent is not None else None
    if ttl is None or root.expires_at is None:
        return submission
    return msgspec.structs.replace(submission, expires_at=store.now_ms() + ttl)


async def _checked(
    store: SessionStateStore,
    agents: AgentRegistry,
    call: PendingCall,
    submission: SubmitAnswer,
    max_result_bytes: int,
) -> KnownAnswer | str:
    """The answer as it is stored, or why it cannot be used. Answers that are no longer expected are left for the store
    to judge."""
    answer = submission.answer
    if call.state not in ("waiting", "expired"):
        return answer
    problem = _too_large(answer, max_result_bytes)
    if problem is not None:
        return problem
    session = await store.load_state(call.session_id)
    if is_elsewhere(session):
        # The other service knows the tool; an agent of the same name here is a different one.
        return answer
    agent = await find_agent(store, agents, session)
    tool = agent.find_tool(call.tool_name) if agent is not None else None
    if tool is None:
        return answer
    try:
        match answer:
            case ToolAnswer(error=None, result=result) if tool.kind != "server":
                given = tool.check_output(result, call.input)
                return ToolAnswer(result=given.content, in_parts=True) if given.in_parts else answer
            case ApprovalAnswer(approved=True, edited_input=dict() as edited):
                tool.parse(edited)
            case _:
                pass
    except HelixError as problem:
        return str(problem)
    return answer


def _too_large(answer: KnownAnswer, max_result_bytes: int) -> str | None:
    match answer:
        case ToolAnswer(error=str() as error) if len(error.encode()) > MAX_ERROR_BYTES:
            return f"the error text has more than {MAX_ERROR_BYTES} bytes"
        case ToolAnswer(result=result) if len(encode(result)) > max_result_bytes:
            return f"the result has more than {max_result_bytes} bytes"
        case ApprovalAnswer(reason=str() as reason) if len(reason.encode()) > MAX_ERROR_BYTES:
            return f"the reason has more than {MAX_ERROR_BYTES} bytes"
        case ApprovalAnswer(edited_input=dict() as edited) if len(encode(edited)) > max_result_bytes // 2:
            # It is stored beside the call's result; too large, it would have that refused after the tool ran.
            return f"the edited input has more than {max_result_bytes // 2} bytes"
        case _:
            return None
