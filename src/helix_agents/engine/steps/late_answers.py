"""Answers that came after a run had given up on them: the next run tells its model, once."""

from contextlib import suppress

import msgspec

from helix_agents.domain.errors import HelixError
from helix_agents.domain.messages import AssistantMessage, ToolMessage, UserMessage, parts_in
from helix_agents.domain.paging import MAX_LIMIT, whole_list
from helix_agents.domain.parts import in_words
from helix_agents.domain.pending import ApprovalAnswer, PendingCall, PendingFilter, ToolAnswer
from helix_agents.domain.records import JSON, encode
from helix_agents.domain.transcript import NOT_EXECUTED
from helix_agents.engine.desk import Note
from helix_agents.engine.scope import RunScope
from helix_agents.engine.steps.corrections import LATE_ANSWER


async def with_late_answers(scope: RunScope, beginning: Note) -> Note:
    """The opening note of a run, extended by a hidden message for each answer that the model has not heard of.

    The transcript tells which ones it has heard of: after a rewind to before such a message the model is told again,
    and after a rewind to before the call it is not.
    """
    is_root = scope.session.root_session_id == scope.session.session_id
    # Only a root can tell from its own record that nothing was ever answered or timed out.
    if is_root and not scope.session.completed_client_tool_calls:
        return beginning
    given_up = {
        message.tool_call_id
        for message in scope.transcript
        if isinstance(message, ToolMessage) and message.code != NOT_EXECUTED
    }
    if not given_up:
        return beginning
    where, store = PendingFilter(session_id=scope.session.session_id, states=("consumed",)), scope.services.store
    done_with = await whole_list(lambda offset: store.list_pending(where, offset=offset, limit=MAX_LIMIT))
    replies = (message for message in scope.transcript if isinstance(message, AssistantMessage))
    made_in = {call.id: reply.id for reply in replies for call in reply.tool_calls}
    late = {
        call.tool_call_id: _late_notice(scope, call)
        for call in done_with
        # A call of the same id may have been given up before a rewind.
        if call.late_answer is not None and made_in.get(call.tool_call_id) in (None, call.step_id)
    }
    told = {message.content for message in scope.transcript if isinstance(message, UserMessage) and message.hidden}
    due = {call_id: notice for call_id, notice in late.items() if call_id in given_up and notice.content not in told}
    return msgspec.structs.replace(beginning, notices=tuple(due.values()), late_answers=tuple(due))


def _late_notice(scope: RunScope, call: PendingCall) -> UserMessage:
    text = f"A late answer to call {call.tool_call_id} of {call.tool_name} has come: {_in_words(scope, call)}"
    return UserMessage(content=text, hidden=True, metadata={"helix": LATE_ANSWER})


def _in_words(scope: RunScope, call: PendingCall) -> str:
    match call.late_answer:
        case ToolAnswer(error=str() as error):
            return f"it failed: {error}"
        case ToolAnswer(result=str() as text):
            return text
        case ToolAnswer(result=result):
            return _result_in_words(scope, call, result)
        case ApprovalAnswer(approved=approved, reason=reason):
            decided = "it was approved" if approved else "it was not approved"
            return f"{decided}; it was not carried out" + (f" ({reason})" if reason else "")
        case _:
            return "it was given elsewhere"


def _result_in_words(scope: RunScope, call: PendingCall, result: JSON) -> str:
    """A result that nothing has checked yet: an answer that came late is stored as it was given."""
    tool = scope.agent.find_tool(call.tool_name)
    if tool is not None and tool.kind != "server":
        with suppress(HelixError):
            given = tool.check_output(result, call.input)
            if given.in_parts:
                return in_words(parts_in(given.content))
    return encode(result).decode()
