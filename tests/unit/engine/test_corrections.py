"""What the transcript tells of the turn so far: whether a tool has answered yet."""

from typing import Any

from helix_agents.domain.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from helix_agents.engine.steps.corrections import (
    INVALID_ARGUMENTS,
    OUTPUT_REMINDER,
    RETRY_REQUESTED,
    UNKNOWN_TOOL,
    Corrections,
)

CALLED = AssistantMessage(tool_calls=(ToolCall(id="c", name="search"),))


def told(code: str | None = None, **fields: Any) -> ToolMessage:
    return ToolMessage(tool_call_id="c", tool_name="search", content="", error=code is not None, code=code, **fields)


def test_a_result_is_an_answer_and_so_is_a_failure_but_not_what_sends_the_model_back() -> None:
    for code in (INVALID_ARGUMENTS, UNKNOWN_TOOL, RETRY_REQUESTED):
        assert not Corrections([UserMessage(content="Go."), CALLED, told(code)]).answered
    for code in (None, "tool_failed", "denied"):
        assert Corrections([UserMessage(content="Go."), CALLED, told(code)]).answered


def test_answers_count_from_the_message_that_began_the_turn() -> None:
    transcript: list[Message] = [UserMessage(content="Go."), CALLED, told(), AssistantMessage(text="Done.")]
    corrections = Corrections(transcript)
    assert corrections.answered
    transcript.append(UserMessage(content="Again."))
    assert not corrections.answered
    assert not Corrections(transcript).answered
    transcript += [CALLED, told()]
    assert corrections.answered


def test_a_reminder_begins_no_turn() -> None:
    reminder = UserMessage(content="Hand it in.", hidden=True, metadata={"helix": OUTPUT_REMINDER})
    assert Corrections([UserMessage(content="Go."), CALLED, told(), AssistantMessage(text="So."), reminder]).answered
