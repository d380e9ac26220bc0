"""What a model is shown of a conversation that was summarised, and where the next summary may cut it."""

from hypothesis import given
from hypothesis import strategies as st

from helix_agents.domain.messages import AssistantMessage, Image, Message, Text, ToolCall, ToolMessage, UserMessage
from helix_agents.domain.parts import in_json
from helix_agents.domain.queued import STEERED
from helix_agents.domain.summaries import Summarised, summarised_by, summary_message
from helix_agents.engine.steps.corrections import INVALID_ARGUMENTS, Corrections
from helix_agents.engine.steps.shown import TOKENS_PER_FILE, Shown, about_tokens
from helix_agents.testing.contracts.executor.stage import assert_legal


def exchange(calls: int, size: int) -> list[Message]:
    """A reply with so many calls and their results."""
    ids = [f"call_{number}" for number in range(calls)]
    return [
        AssistantMessage(text="x" * size, tool_calls=tuple(ToolCall(id=each, name="search") for each in ids)),
        *(ToolMessage(tool_call_id=each, tool_name="search", content="y" * size) for each in ids),
    ]


SIZES = st.integers(0, 400)
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("user"), SIZES, st.just(0)),
        st.tuples(st.just("exchange"), SIZES, st.integers(0, 3)),
        st.tuples(st.just("summary"), SIZES, st.just(0)),
    ),
    max_size=30,
)


def grow(transcript: list[Message], shown: Shown, move: tuple[str, int, int]) -> None:
    kind, size, calls = move
    if kind == "user":
        transcript.append(UserMessage(content="u" * size))
    elif kind == "exchange":
        transcript.extend(exchange(calls, size))
    else:
        shown.follow()
        until = shown.cut(size)
        if until is not None:
            transcript.append(summary_message("In short.", shown.summarised(until)))


@given(MOVES)
def test_what_is_shown_is_legal_loses_nothing_and_is_the_same_for_who_comes_later(moves: list[tuple[str, int, int]]):
    transcript: list[Message] = [UserMessage(content="Go.")]
    shown = Shown(transcript)
    for move in moves:
        grow(transcript, shown, move)
        messages = shown.follow()
        assert_legal(messages)
        assert messages == Shown(list(transcript)).follow()
        assert shown.tokens == sum(map(about_tokens, messages))
        plain = [each for each in transcript if summarised_by(each) is None]
        summarised = summarised_by(messages[0])
        if summarised is None:
            assert messages == plain
            continue
        # The summary stands for exactly what is not shown any more, and nothing of that is half there.
        hidden = [each for each in transcript[: summarised.messages] if summarised_by(each) is None]
        assert messages[1:] == plain[len(hidden) :]
        assert summarised.replies == sum(isinstance(each, AssistantMessage) for each in hidden)
        assert [each for each in messages if summarised_by(each)] == messages[:1]


def test_the_last_exchange_stays_whatever_its_size():
    transcript = [UserMessage(content="Go."), *exchange(1, 10), *exchange(3, 4_000)]
    shown = Shown(transcript)
    shown.follow()
    assert shown.cut(0) == 3
    assert shown.cut(100_000) == 1


def test_results_that_the_model_has_not_read_stay_whatever_was_said_after_them():
    begins: list[Message] = [UserMessage(content="Go."), *exchange(1, 10), *exchange(3, 4_000)]
    for later in (
        UserMessage(content="In German.", metadata={"helix": STEERED}),
        UserMessage(content="A companion is done.", hidden=True),
    ):
        shown = Shown([*begins, later, later])
        shown.follow()
        assert shown.cut(0) == 3
        shown = Shown([*begins, AssistantMessage(text="Well."), later])
        shown.follow()
        assert shown.cut(0) == len(begins) + 1


def test_a_summary_alone_is_not_summarised_again():
    transcript: list[Message] = [UserMessage(content="Go."), *exchange(1, 10)]
    shown = Shown(transcript)
    shown.follow()
    until = shown.cut(0)
    assert until == 1
    transcript.append(summary_message("In short.", shown.summarised(until)))
    shown.follow()
    assert shown.cut(0) is None


def test_a_provider_is_believed_unless_it_cannot_be_true():
    transcript = [UserMessage(content="u" * 4_000)]
    shown = Shown(transcript)
    shown.follow()
    assert shown.tokens == 1_004
    shown.was_read(0)
    shown.was_read(12)
    assert shown.tokens == 1_004
    shown.was_read(700)
    transcript.append(UserMessage(content="u" * 400))
    shown.follow()
    assert shown.tokens == 700 + 104


def test_a_picture_counts_as_a_picture_and_not_as_its_bytes():
    picture = Image(url="data:image/png;base64," + "A" * 1_000_000)
    assert about_tokens(UserMessage(content=(Text(text="Look:"), picture))) < TOKENS_PER_FILE + 10
    content, in_parts = in_json((Text(text="Look:"), picture))
    seen = ToolMessage(tool_call_id="c", tool_name="look", content=content, in_parts=in_parts)
    assert TOKENS_PER_FILE < about_tokens(seen) < TOKENS_PER_FILE + 10


def test_a_summary_in_the_middle_of_a_turn_forgets_no_correction():
    wrong = ToolMessage(tool_call_id="c", tool_name="search", content="no", error=True, code=INVALID_ARGUMENTS)
    call = AssistantMessage(tool_calls=(ToolCall(id="c", name="search"),))
    summary = summary_message("In short.", Summarised(messages=1, replies=0))
    transcript = [UserMessage(content="Go."), call, wrong, summary, call, wrong]
    assert Corrections(transcript).of("search") == 2


def test_a_count_of_what_was_chosen_among_the_messages_is_believed() -> None:
    shown = Shown([UserMessage(content="hello"), *exchange(1, 4_000)])
    whole = sum(map(about_tokens, shown.follow()))
    # So few tokens could not be the whole conversation, but they are what was left of it.
    shown.was_read(20)
    assert shown.tokens == whole
    shown.was_read(20, [UserMessage(content="hello")])
    assert shown.tokens == 20
