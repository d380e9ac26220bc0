"""What the transcript tells of the turn so far: whether a tool has answered yet."""

from typing import Any

from helix_agents.domain.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from helix_agents.engine.steps.corrections import (
    INVALID_ARGUMENTS,
    OUTPUT_REMINDER,
    RETRY_REQUESTED,
    UNKNOWN_TOOL,
    WAKEUP,
    Corrections,
)
from helix_agents.engine.steps.news import news_message

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


def test_news_in_the_middle_of_a_turn_forgets_nothing_and_news_that_wake_a_session_begin_a_turn() -> None:
    wrong, news = told(INVALID_ARGUMENTS), news_message("The mode has changed.")
    # As a process reads it that takes over in the middle of the turn.
    corrections = Corrections([UserMessage(content="Go."), CALLED, wrong, CALLED, told(), news, CALLED, wrong])
    assert (corrections.of("search"), corrections.answered) == (2, True)
    transcript: list[Message] = [UserMessage(content="Go."), CALLED, wrong, CALLED, told()]
    before = Corrections(transcript)
    assert before.answered
    transcript += [news_message("The mode has changed.", WAKEUP), CALLED, wrong]
    for corrections in (before, Corrections(transcript)):
        assert (corrections.of("search"), corrections.answered) == (1, False)
