"""What makes a transcript legal for a provider: every tool call is followed by its result."""

from collections.abc import Iterable, Sequence

from helix_agents.domain.ids import StepId, ToolCallId
from helix_agents.domain.messages import AssistantMessage, Message, ToolCall, ToolMessage
from helix_agents.domain.staging import StagedChange

NOT_EXECUTED = "not_executed"


def unanswered_calls(messages: Iterable[Message]) -> tuple[ToolCall, ...]:
    """The calls of these messages that no later message answers, in call order."""
    open_calls: dict[str, ToolCall] = {}
    for message in messages:
        if isinstance(message, AssistantMessage):
            open_calls.update((call.id, call) for call in message.tool_calls)
        elif isinstance(message, ToolMessage):
            open_calls.pop(message.tool_call_id, None)
    return tuple(open_calls.values())


def not_executed(calls: Iterable[ToolCall], code: str = NOT_EXECUTED) -> tuple[ToolMessage, ...]:
    """A result for each call that says it never ran."""
    return tuple(
        ToolMessage(
            tool_call_id=call.id,
            tool_name=call.name,
            content="This call was not executed.",
            error=True,
            code=code,
        )
        for call in calls
    )


def cut_short(tool_call_id: ToolCallId, tool_name: str, code: str) -> ToolMessage:
    """A result for a call that was begun, or may have been, and that nobody waits for any more."""
    return ToolMessage(
        tool_call_id=tool_call_id,
        tool_name=tool_name,
        content="This call was cut short: it may or may not have taken effect.",
        error=True,
        code=code,
    )


def open_tail(newest_first: Iterable[Message]) -> tuple[ToolCall, ...]:
    """The unanswered calls at the end of a transcript, reading backwards only as far as the last reply."""
    tail: list[Message] = []
    for message in newest_first:
        tail.append(message)
        if not isinstance(message, ToolMessage):
            break
    return unanswered_calls(reversed(tail))


def open_step(newest_first: Sequence[Message]) -> StepId | None:
    """The step whose calls are open at the end of a transcript, if its reply tells."""
    last = next((message for message in newest_first if not isinstance(message, ToolMessage)), None)
    return last.id if isinstance(last, AssistantMessage) and open_tail(newest_first) else None


def missing_results(
    newest_first: Iterable[Message], held: Iterable[StagedChange] = (), *, by: int | None = None
) -> tuple[ToolMessage, ...]:
    """The results to append to a transcript that is cut here: those that a suspended step held, by this time if one is
    given, and "not executed" for the rest. What is staged with writes is not a result yet."""
    known = {
        change.tool_call_id: change.message
        for change in held
        if isinstance(change.message, ToolMessage) and not change.writes and (by is None or change.staged_at <= by)
    }
    return tuple(known.get(call.id) or not_executed((call,))[0] for call in open_tail(newest_first))


def heal(messages: Sequence[Message]) -> tuple[ToolMessage, ...]:
    """The results to append so that a transcript that ends in open calls is legal again."""
    return not_executed(open_tail(reversed(messages)))
