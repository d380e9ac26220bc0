"""A step converts what is new: a session of a thousand steps converts each message once."""

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pydantic_ai.messages import ModelMessage, ModelRequest
from pydantic_ai.models.test import TestModel

from helix_agents.domain.messages import AssistantMessage, Message, Thinking, ToolCall, ToolMessage, UserMessage
from helix_agents.llm.pydantic_ai.conversations import Conversations
from helix_agents.llm.pydantic_ai.messages import MessageConverter
from tests.support.asking import question


def conversations(**options: Any) -> tuple[Conversations, MessageConverter]:
    converter = MessageConverter("test:model", TestModel())
    return Conversations(converter, **options), converter


def step(number: int) -> list[Message]:
    call = f"call_{number}"
    return [
        AssistantMessage(tool_calls=(ToolCall(id=call, name="search", arguments={"n": number}),)),
        ToolMessage(tool_call_id=call, tool_name="search", content=f"result {number}"),
    ]


def shown(history: list[ModelMessage]) -> list[list[str]]:
    """Each turn as its parts, in a line each."""
    return [[f"{part.part_kind} {getattr(part, 'content', '')}".strip() for part in turn.parts] for turn in history]


def test_a_thousand_steps_convert_every_message_once() -> None:
    kept, converter = conversations()
    messages: list[Message] = [UserMessage(content="hello")]
    for number in range(1_000):
        kept.history(question(*messages), None)
        assert converter.converted == len(messages)
        messages.extend(step(number))
    assert len(kept.history(question(*messages), None)) == 2_001
    assert converter.converted == 2_001


def test_the_history_is_the_same_whether_it_was_converted_at_once_or_bit_by_bit() -> None:
    messages = [UserMessage(content="hello"), *step(1), UserMessage(content="go on"), *step(2), *step(3)]
    bit_by_bit, _ = conversations()
    for length in range(1, len(messages) + 1):
        grown = bit_by_bit.history(question(*messages[:length]), None)
    at_once, _ = conversations()
    assert shown(grown) == shown(at_once.history(question(*messages), None))
    assert shown(grown)[2] == ["tool-return result 1", "user-prompt go on"]


def test_a_summary_in_place_of_the_oldest_messages_is_seen_in_the_middle_of_a_run() -> None:
    kept, _ = conversations()
    messages = [UserMessage(content="hello"), *step(1), *step(2)]
    kept.history(question(*messages), None)
    # As many messages as before, and the last of them is the same: only the first one is another.
    for begins in (1, 3):
        summarised = [UserMessage(content="in short", hidden=True), *messages[begins:]]
        at_once, _ = conversations()
        expected = shown(at_once.history(question(*summarised), None))
        assert shown(kept.history(question(*summarised), None)) == expected


def test_what_history_processors_changed_in_the_middle_is_seen_in_the_middle_of_a_run() -> None:
    kept, _ = conversations()
    messages = [UserMessage(content="hello"), *step(1), *step(2)]
    kept.history(question(*messages, chosen_from=messages), None)
    forgotten = ToolMessage(tool_call_id="call_1", tool_name="search", content="no longer shown")
    chosen = [*messages[:2], forgotten, *messages[3:]]
    at_once, _ = conversations()
    expected = shown(at_once.history(question(*chosen), None))
    assert shown(kept.history(question(*chosen, chosen_from=messages), None)) == expected


def test_an_agent_that_shows_everything_is_not_sent_what_the_agent_before_it_had_chosen() -> None:
    """A handoff within a run, to an agent that uses the same model."""
    kept, _ = conversations()
    messages: list[Message] = [UserMessage(content="hello"), *step(1), *step(2)]
    forgetting = [*messages[:2], replace(cast("ToolMessage", messages[2]), content="(forgotten)"), *messages[3:]]
    kept.history(question(*forgetting, chosen_from=messages), None)
    assert shown(kept.history(question(*messages, *step(3)), None))[2] == ["tool-return result 1"]


def test_a_new_run_of_the_same_session_converts_only_what_is_new() -> None:
    kept, converter = conversations()
    messages = [UserMessage(content="hello"), *step(1), AssistantMessage(text="done")]
    kept.history(question(*messages), None)
    kept.history(question(*messages, UserMessage(content="again"), run_id="r-2"), None)
    assert converter.converted == 5


def test_a_history_that_was_rewound_is_followed() -> None:
    kept, converter = conversations()
    told = [UserMessage(content="hello"), *step(1), *step(2), UserMessage(content="yes")]
    retold = [UserMessage(content="hello"), *step(1), *step(7), UserMessage(content="yes")]
    kept.history(question(*told), None)
    history = kept.history(question(*retold, run_id="r-2"), None)
    assert shown(history)[-1] == ["tool-return result 7", "user-prompt yes"]
    # What both have in common was kept.
    assert converter.converted == len(told) + 3


def test_a_history_that_was_cut_short_is_followed() -> None:
    kept, _ = conversations()
    told = [UserMessage(content="hello"), *step(1), *step(2)]
    kept.history(question(*told), None)
    assert shown(kept.history(question(*told[:1], run_id="r-2"), None)) == [["user-prompt hello"]]
    assert shown(kept.history(question(*told[:1], run_id="r-3"), "5m")) == [["user-prompt hello"]]


def test_a_history_that_broke_the_promise_to_grow_is_followed_too() -> None:
    kept, _ = conversations()
    kept.history(question(UserMessage(content="hello"), *step(1)), None)
    history = kept.history(question(UserMessage(content="hello"), *step(2)), None)
    assert shown(history)[-1] == ["tool-return result 2"]


def test_a_turn_that_was_cut_in_its_middle_is_made_anew() -> None:
    kept, _ = conversations()
    kept.history(question(UserMessage(content="one"), UserMessage(content="two")), None)
    history = kept.history(question(UserMessage(content="one"), UserMessage(content="three"), run_id="r-2"), None)
    assert shown(history) == [["user-prompt one", "user-prompt three"]]


def test_what_was_handed_out_does_not_change_when_the_session_goes_on() -> None:
    kept, _ = conversations()
    first = kept.history(question(UserMessage(content="one")), None)
    kept.history(question(UserMessage(content="one"), UserMessage(content="two")), None)
    assert shown(first) == [["user-prompt one"]]


def test_sessions_do_not_see_each_other() -> None:
    kept, _ = conversations()
    kept.history(question(UserMessage(content="mine"), session_id="s-1"), None)
    history = kept.history(question(UserMessage(content="yours"), session_id="s-2"), None)
    assert shown(history) == [["user-prompt yours"]]


def test_the_session_asked_about_longest_ago_is_forgotten_first() -> None:
    kept, converter = conversations(messages_kept=4)
    two = [UserMessage(content="hello"), AssistantMessage(text="yes")]
    for session in ("s-1", "s-2", "s-1", "s-3"):
        kept.history(question(*two, session_id=session), None)
    assert converter.converted == 6
    kept.history(question(*two, session_id="s-1"), None)
    assert converter.converted == 6
    kept.history(question(*two, session_id="s-2"), None)
    assert converter.converted == 8


def test_a_session_larger_than_the_bound_is_kept_while_it_is_the_latest() -> None:
    kept, converter = conversations(messages_kept=2)
    messages = [UserMessage(content="hello"), *step(1), *step(2)]
    kept.history(question(*messages), None)
    kept.history(question(*messages, *step(3)), None)
    assert converter.converted == 7


def test_the_mark_of_the_cache_is_never_remembered() -> None:
    kept, _ = conversations()
    messages = [UserMessage(content="hello"), *step(1)]
    marked = kept.history(question(*messages), "1h")
    assert isinstance(marked[-1], ModelRequest)
    assert len(marked[-1].parts) == 2
    assert shown(kept.history(question(*messages), None))[-1] == ["tool-return result 1"]


KINDS = st.sampled_from(
    [
        UserMessage(content="go on"),
        UserMessage(content="wait"),
        AssistantMessage(text="I see."),
        AssistantMessage(text="", thinking=(Thinking(text="Hm.", signature="c2ln"),)),
        AssistantMessage(text="Let me look.", tool_calls=(ToolCall(id="call_a", name="search"),)),
        ToolMessage(tool_call_id="call_a", tool_name="search", content="found"),
        ToolMessage(tool_call_id="call_a", tool_name="search", content="forgotten"),
    ]
)
HISTORIES = st.lists(KINDS, max_size=8).map(lambda rest: [UserMessage(content="hello"), *rest])


@given(st.lists(st.tuples(HISTORIES, st.sampled_from(["grows", "is chosen", "is of another run"])), max_size=6))
def test_what_was_kept_never_shows_in_what_is_sent(requests: list[tuple[list[Message], str]]) -> None:
    kept, _ = conversations()
    messages: list[Message] = [UserMessage(content="hello")]
    for number, (said, how) in enumerate(requests):
        whole = [*messages, *said] if how == "grows" else said
        fields = {"grows": {}, "is chosen": {"chosen_from": (*whole, *messages)}, "is of another run": {}}[how]
        run_id = f"another-{number}" if how == "is of another run" else "r-1"
        asked = question(*whole, run_id=run_id, **fields)
        fresh, _ = conversations()
        assert shown(kept.history(asked, "5m")) == shown(fresh.history(asked, "5m"))
        messages = whole if how != "is chosen" else messages
