"""What makes a transcript legal for a provider: every tool call is followed by its result."""

from collections.abc import Iterable, Sequence
from typing import cast

import msgspec

from helix_agents.domain.effects import Effect
from helix_agents.domain.ids import StepId, ToolCallId
from helix_agents.domain.messages import (
    EDITED_INPUT,
    HELD_SINCE,
    AssistantMessage,
    Message,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from helix_agents.domain.pending import PendingCall, unknown_since
from helix_agents.domain.records import decode, encode
from helix_agents.domain.staging import StagedChange
from helix_agents.domain.sub_sessions import SubSessionRef

NOT_EXECUTED = "not_executed"
RUN_STOPPED = "run_stopped"
OUTCOME_UNKNOWN = "outcome_unknown"

HANDOFF = "handoff__"
"""Prefix of the tools with which an agent hands its conversation over."""

PERHAPS = "it may or may not have taken effect"


def hands_over(message: Message) -> bool:
    """Whether another agent has the conversation from this message on."""
    return isinstance(message, ToolMessage) and not message.error and message.tool_name.startswith(HANDOFF)


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


def cut_short(tool_call_id: ToolCallId, tool_name: str, code: str, how: str = "This call was cut short") -> ToolMessage:
    """A result for a call that was started, or may have been, and whose result is no longer awaited."""
    return ToolMessage(
        tool_call_id=tool_call_id,
        tool_name=tool_name,
        content=f"{how}: {PERHAPS}.",
        error=True,
        code=code,
    )


def was_never_begun(message: ToolMessage) -> bool:
    """Whether a stop kept a call from running; one that was cut short while it ran has the same code."""
    return message.code in (NOT_EXECUTED, RUN_STOPPED) and not was_cut_short(message)


def was_cut_short(message: ToolMessage) -> bool:
    """Whether a call was stopped while it ran."""
    return message.code == RUN_STOPPED and str(message.content).endswith(f"{PERHAPS}.")


def outcome_unknown(tool_call_id: ToolCallId, tool_name: str) -> ToolMessage:
    """A result for a call that must not run twice, was started, and whose outcome is unknown."""
    return cut_short(tool_call_id, tool_name, OUTCOME_UNKNOWN, "The outcome of this call is unknown")


def open_tail(newest_first: Iterable[Message]) -> tuple[ToolCall, ...]:
    """The unanswered calls at the end of a transcript, reading backwards only as far as the last reply."""
    tail: list[Message] = []
    for message in newest_first:
        tail.append(message)
        if not isinstance(message, ToolMessage):
            break
    return unanswered_calls(reversed(tail))


def open_step(newest_first: Sequence[Message]) -> StepId | None:
    """The step whose calls are open at the end of a transcript, if its reply names it."""
    last = next((message for message in newest_first if not isinstance(message, ToolMessage)), None)
    return last.id if isinstance(last, AssistantMessage) and open_tail(newest_first) else None


def held_results(staged: Iterable[StagedChange]) -> dict[ToolCallId, ToolMessage]:
    """The results held by a step that is not complete yet, each with the time since when. A change that is staged with
    writes is not a result yet."""
    return {
        change.tool_call_id: _known_since(change.message, change.staged_at)
        for change in staged
        if isinstance(change.message, ToolMessage) and not change.writes
    }


def missing_results(
    newest_first: Sequence[Message],
    held: Iterable[StagedChange] = (),
    *,
    later: Iterable[Message] = (),
    children: Iterable[SubSessionRef] = (),
    questions: Iterable[PendingCall] = (),
    effects: Iterable[Effect] = (),
    by: int | None = None,
) -> tuple[ToolMessage, ...]:
    """The results to append to a transcript that is cut here: for each open call what is known (at the time `by`, if
    given), and "not executed" if nothing is.

    In increasing precedence: a call that one of the `children` works on was cut short; a call that the ledger has
    started, or that `questions` were about, has an unknown outcome; the result that the ledger has; and a result that
    the step held, which is staged while the step is open and is among the messages that follow (`later`) when the step
    is over.
    """
    step_id = open_step(newest_first)
    calls = {call.id: call for call in open_tail(newest_first)}
    begun = tuple(effects)
    facts = [
        *(
            _known_since(cut_short(call.id, call.name, RUN_STOPPED), ref.created_at)
            for ref in children
            if (call := calls.get(ref.tool_call_id)) is not None
        ),
        *(_known_since(outcome_unknown(effect.tool_call_id, effect.tool_name), effect.begun_at) for effect in begun),
        *(
            _known_since(_asked_about(row), since)
            for row in questions
            if step_id in (None, row.step_id) and (since := unknown_since(row)) is not None
        ),
        *(
            _known_since(message, effect.finished_at or effect.begun_at)
            for effect in begun
            if (message := _recorded(effect)) is not None
        ),
        *only_held(message for message in later if isinstance(message, ToolMessage)),
        *held_results(held).values(),
    ]
    known = {fact.tool_call_id: fact for fact in facts if by is None or _since(fact) <= by}
    return tuple(known.get(call.id) or not_executed((call,))[0] for call in calls.values())


def _recorded(effect: Effect) -> ToolMessage | None:
    """What the ledger keeps about a call that ended, as far as the transcript needs it."""
    match effect:
        case Effect(state="done", result={"message": message}):
            return decode(encode(message), ToolMessage)
        case _:
            return None


def _asked_about(row: PendingCall) -> ToolMessage:
    """What is known about a call while a person is asked what happened to it."""
    unknown = outcome_unknown(row.tool_call_id, row.tool_name)
    return msgspec.structs.replace(unknown, metadata={EDITED_INPUT: row.input}) if row.edited else unknown


def _known_since(message: ToolMessage, at: int) -> ToolMessage:
    return msgspec.structs.replace(message, metadata={**message.metadata, HELD_SINCE: at})


def _since(known: ToolMessage) -> int:
    return cast("int", known.metadata[HELD_SINCE])


def only_held(results: Iterable[ToolMessage]) -> tuple[ToolMessage, ...]:
    """The results that became known while their step was open."""
    return tuple(result for result in results if isinstance(result.metadata.get(HELD_SINCE), int))


def heal(messages: Sequence[Message]) -> tuple[ToolMessage, ...]:
    """The results to append so that a transcript that ends in open calls is legal again."""
    return not_executed(open_tail(reversed(messages)))


_BEGINNING_NOT_SHOWN = UserMessage(content="The beginning of this conversation is not shown.", hidden=True)
_END_NOT_SHOWN = UserMessage(content="What was said last is not shown.", hidden=True)


def as_shown(chosen: Iterable[Message]) -> list[Message]:
    """Messages that were picked from a transcript, made legal again: a result without its call is left out, a call
    without its result gets a note in its place, the first message is a user's, and the last is no reply: many models
    would refuse to go on with it."""
    shown: list[Message] = []
    results: dict[ToolCallId, ToolMessage] = {}
    for message in chosen:
        if isinstance(message, ToolMessage):
            if message.tool_call_id in results:
                results[message.tool_call_id] = message
            continue
        shown.extend(results.values())
        calls = message.tool_calls if isinstance(message, AssistantMessage) else ()
        results = {call.id: _result_not_shown(call) for call in calls}
        if not shown and not isinstance(message, UserMessage):
            shown.append(_BEGINNING_NOT_SHOWN)
        shown.append(message)
    shown.extend(results.values())
    if shown and isinstance(shown[-1], AssistantMessage):
        shown.append(_END_NOT_SHOWN)
    return shown or [_BEGINNING_NOT_SHOWN]


def _result_not_shown(call: ToolCall) -> ToolMessage:
    return ToolMessage(tool_call_id=call.id, tool_name=call.name, content="The result of this call is not shown.")
