"""What makes a transcript legal for a provider: every tool call is followed by its result."""

from collections.abc import Iterable, Sequence

import msgspec

from helix_agents.domain.ids import StepId, ToolCallId
from helix_agents.domain.messages import HELD_SINCE, AssistantMessage, Message, ToolCall, ToolMessage
from helix_agents.domain.staging import StagedChange
from helix_agents.domain.sub_sessions import SubSessionRef

NOT_EXECUTED = "not_executed"
RUN_STOPPED = "run_stopped"


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


def held_results(staged: Iterable[StagedChange]) -> dict[ToolCallId, ToolMessage]:
    """The results that a step which is not whole yet holds, each with the time since when. What is staged with writes
    is not a result yet."""
    return {
        change.tool_call_id: msgspec.structs.replace(
            change.message, metadata={**change.message.metadata, HELD_SINCE: change.staged_at}
        )
        for change in staged
        if isinstance(change.message, ToolMessage) and not change.writes
    }


def missing_results(
    newest_first: Iterable[Message],
    held: Iterable[StagedChange] = (),
    *,
    later: Iterable[Message] = (),
    children: Iterable[SubSessionRef] = (),
    by: int | None = None,
) -> tuple[ToolMessage, ...]:
    """The results to append to a transcript that is cut here: those that its last step held, by this time if one is
    given, "cut short" for calls that one of its `children` had begun to work on by then, and "not executed" for the
    rest.

    What a step holds is staged while it is open, and stands among the messages that follow, its `later` ones, when it
    is over.
    """
    begun = {ref.tool_call_id for ref in children if by is None or ref.created_at <= by}
    known = {message.tool_call_id: message for message in later if isinstance(message, ToolMessage)}
    known |= held_results(held)
    return tuple(
        message
        if (message := known.get(call.id)) is not None and _was_held(message, by)
        else _without_result(call, begun=call.id in begun)
        for call in open_tail(newest_first)
    )


def _without_result(call: ToolCall, *, begun: bool) -> ToolMessage:
    return cut_short(call.id, call.name, RUN_STOPPED) if begun else not_executed((call,))[0]


def only_held(results: Iterable[ToolMessage]) -> tuple[ToolMessage, ...]:
    """Those of the results that a step held."""
    return tuple(result for result in results if HELD_SINCE in result.metadata)


def _was_held(result: ToolMessage, by: int | None) -> bool:
    since = result.metadata.get(HELD_SINCE)
    return since is not None and (by is None or since <= by)


def heal(messages: Sequence[Message]) -> tuple[ToolMessage, ...]:
    """The results to append so that a transcript that ends in open calls is legal again."""
    return not_executed(open_tail(reversed(messages)))
