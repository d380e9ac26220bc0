"""What history processors show of a conversation, and which of them an agent refuses."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from helix_agents import Agent, ForgetToolResults, LastTurns, Message, RunContext, ScriptedModel, UserMessage
from helix_agents.agent.history import FORGOTTEN, processed
from helix_agents.domain.errors import DefinitionError
from helix_agents.domain.messages import AssistantMessage, Image, ToolCall, ToolMessage
from helix_agents.domain.parts import in_json
from helix_agents.domain.queued import QueuedTurn, taken_in
from helix_agents.domain.summaries import Summarised, summary_message

CTX: RunContext[Any, Any] = cast("RunContext[Any, Any]", None)
LONG = "All about tides. " * 20


def turns(count: int, *, result: str = LONG) -> list[Message]:
    """So many turns, each with one call."""
    said: list[Message] = []
    for number in range(count):
        call = ToolCall(id=f"call_{number}", name="search" if number % 2 else "read")
        said += [
            UserMessage(content=f"question {number}"),
            AssistantMessage(tool_calls=(call,)),
            ToolMessage(tool_call_id=call.id, tool_name=call.name, content=result),
            AssistantMessage(text=f"answer {number}"),
        ]
    return said


def shown_results(processor: ForgetToolResults, messages: Sequence[Message]) -> str:
    shown = processor(CTX, messages)
    assert len(shown) == len(messages)
    results = [each for each in shown if isinstance(each, ToolMessage)]
    return "".join("-" if each.content == FORGOTTEN else "x" for each in results)


def test_a_forgotten_image_is_gone_even_if_its_address_is_short() -> None:
    content, in_parts = in_json((Image(url="https://a.b/c"),))
    seen = ToolMessage(tool_call_id="call_1", tool_name="look", content=content, in_parts=in_parts)
    call = AssistantMessage(tool_calls=(ToolCall(id="call_1", name="look"),))
    said = [UserMessage(content="Look"), call, seen, AssistantMessage(text="I see.")]
    *_, shown, _ = ForgetToolResults(keep=0, batch=1)(CTX, said)
    assert isinstance(shown, ToolMessage)
    assert (shown.content, shown.parts) == (FORGOTTEN, ())


@pytest.mark.parametrize(
    ("results", "expected"), [(0, ""), (2, "xx"), (4, "xxxx"), (5, "---xx"), (7, "---xxxx"), (8, "------xx")]
)
def test_old_results_are_forgotten_in_batches(results: int, expected: str) -> None:
    assert shown_results(ForgetToolResults(keep=2, batch=3), turns(results)) == expected


def test_only_results_that_are_meant_and_worth_it_are_forgotten() -> None:
    assert shown_results(ForgetToolResults(keep=0, batch=1, tools=["read"]), turns(4)) == "-x-x"
    assert shown_results(ForgetToolResults(keep=0, batch=1), turns(4, result="ok")) == "xxxx"


def test_what_the_model_has_not_read_yet_is_never_forgotten() -> None:
    said = turns(4)
    assert shown_results(ForgetToolResults(keep=0, batch=1), said[:-1]) == "---x"
    calls = tuple(ToolCall(id=f"new_{number}", name="search") for number in range(4))
    results = [ToolMessage(tool_call_id=each.id, tool_name=each.name, content=LONG) for each in calls]
    asked: list[Message] = [*said, UserMessage(content="more"), AssistantMessage(tool_calls=calls), *results]
    assert shown_results(ForgetToolResults(keep=1, batch=1), asked) == "----xxxx"


def test_a_turn_may_begin_with_several_messages() -> None:
    said = turns(2)
    memory = UserMessage(content="Ann likes tea.", hidden=True)
    several: list[Message] = [memory, UserMessage(content="Look at this."), UserMessage(content="What is it?")]
    assert LastTurns(turns=1)(CTX, [*said, *several]) == several
    assert LastTurns(turns=2)(CTX, [*said, *several]) == [*said[4:], *several]
    summary = summary_message("In short.", Summarised(messages=4, replies=2))
    assert LastTurns(turns=1)(CTX, [summary, *several]) == [summary, *several]


def test_what_steers_a_turn_belongs_to_it() -> None:
    said = turns(2)
    sent = QueuedTurn(session_id="s-1", run_id="r-1", messages=(UserMessage(content="Be quick."),), steers=True)
    steered = [*said[:-1], *taken_in([sent])]
    assert LastTurns(turns=1)(CTX, steered) == steered[4:]
    assert LastTurns(turns=2)(CTX, steered) == steered


def test_the_last_turns_are_shown_behind_a_summary() -> None:
    said = turns(3)
    assert LastTurns(turns=3)(CTX, said) == said
    assert LastTurns(turns=1)(CTX, said) == said[8:]
    hidden = UserMessage(content="a note", hidden=True)
    assert LastTurns(turns=1)(CTX, [*said, hidden]) == [*said[8:], hidden]
    summary = summary_message("In short.", Summarised(messages=4, replies=2))
    assert LastTurns(turns=1)(CTX, [summary, *said[4:]]) == [summary, *said[8:]]


def generator(ctx: RunContext[Any, Any], messages: Sequence[Message]) -> Iterator[Message]:
    yield from messages


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (ForgetToolResults(keep=1), "is not a list"),
        ("all", "is not a list"),
        ([LastTurns], r"call it, as in LastTurns\(…\)"),
        ([3], "which is not a function"),
        ([generator], "'generator' is a generator"),
    ],
)
def test_what_cannot_process_a_history_is_refused_when_the_agent_is_defined(given: Any, why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        Agent(name="reader", model=ScriptedModel(["Hi."]), history_processors=given)


@pytest.mark.parametrize(
    ("kind", "settings", "why"),
    [
        (ForgetToolResults, {"keep": -1}, "keep=-1"),
        (ForgetToolResults, {"keep": 1, "batch": 0}, "batch=0"),
        (ForgetToolResults, {"keep": 1, "tools": "read"}, "is not a list of tool names"),
        (LastTurns, {"turns": 0}, "turns=0"),
    ],
)
def test_settings_that_could_not_work_are_refused(kind: Any, settings: dict[str, Any], why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        kind(**settings)


class _Run:
    agent = "reader"


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        (None, "returned a NoneType; it has to return a list of messages"),
        ("text", "returned a str"),
        (["text"], "returned a list with a str"),
        ([], "returned no message"),
    ],
)
async def test_what_a_processor_must_not_return_is_told_with_its_name(returned: Any, why: str) -> None:
    def choose(ctx: Any, messages: Any) -> Any:
        return returned

    with pytest.raises((TypeError, ValueError), match=f"The history processor 'choose' of 'reader' {why}"):
        await processed([choose], cast("Any", _Run()), turns(1))
