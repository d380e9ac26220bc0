"""Whatever is picked from a transcript can be shown to a provider."""

from hypothesis import given
from hypothesis import strategies as st

from helix_agents.domain.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from helix_agents.domain.transcript import as_shown
from helix_agents.testing.contracts.executor.stage import assert_legal


def conversation(turns: list[list[int]]) -> list[Message]:
    """A legal transcript: for each turn a question, and replies with so many calls."""
    said: list[Message] = []
    for turn, replies in enumerate(turns):
        said.append(UserMessage(content=f"question {turn}"))
        for reply, calls in enumerate(replies):
            ids = [f"call_{turn}_{reply}_{number}" for number in range(calls)]
            asked = tuple(ToolCall(id=each, name="search") for each in ids)
            said.append(AssistantMessage(text=f"reply {turn} {reply}", tool_calls=asked))
            said.extend(ToolMessage(tool_call_id=each, tool_name="search", content=each) for each in ids)
    return said


TURNS = st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=4)


GO_ON = UserMessage(content="Go on.")


@given(TURNS)
def test_a_legal_transcript_is_shown_as_it_is(turns: list[list[int]]) -> None:
    asked = [*conversation(turns), GO_ON]
    assert as_shown(asked) == asked


@given(TURNS, st.data())
def test_any_choice_in_any_order_is_legal_and_keeps_what_was_said(turns: list[list[int]], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(conversation(turns)), unique_by=repr))
    shown = as_shown(chosen)
    assert_legal(shown)
    assert isinstance(shown[0], UserMessage)
    assert not isinstance(shown[-1], AssistantMessage)
    spoken = [each for each in chosen if not isinstance(each, ToolMessage)]
    assert [each for each in shown if each in spoken] == spoken


def test_a_result_that_is_left_out_is_replaced_and_one_without_its_call_is_left_out() -> None:
    question, asked, first, second = conversation([[2]])
    left_out = ToolMessage(
        tool_call_id="call_0_0_0", tool_name="search", content="The result of this call is not shown."
    )
    assert as_shown([question, asked, second]) == [question, asked, left_out, second]
    begins = UserMessage(content="The beginning of this conversation is not shown.", hidden=True)
    assert as_shown([first, second]) == [begins]
    assert as_shown([asked, second, first]) == [begins, asked, first, second]


def test_a_conversation_whose_end_is_left_out_does_not_end_in_a_reply() -> None:
    question, reply = conversation([[0]])
    left_out = UserMessage(content="What was said last is not shown.", hidden=True)
    assert as_shown([question, reply]) == [question, reply, left_out]
