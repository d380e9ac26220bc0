"""Replies that are not whole: a result says so, and reasoning that was signed goes back to who signed it."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from helix_agents import Agent, Completed, Executor, Interrupted, ScriptedModel, ToolMessage, UserMessage, tool
from helix_agents.domain.messages import AssistantMessage, Thinking
from helix_agents.llm.script import reply
from helix_agents.ports.llm import (
    ModelEvent,
    ModelRequest,
    ReplyDone,
    ThinkingPiece,
    ToolArgumentsPiece,
    ToolCallEnded,
    ToolCallStarted,
)
from helix_agents.testing import call


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_a_last_word_that_was_cut_off_is_told_from_one_that_is_whole(reason: Any):
    writer = Agent(name="writer", model=ScriptedModel([reply("The tide is", stop_reason=reason), "The tide is high."]))
    async with Executor.open("memory://", agents=[writer]) as helix:
        cut = await (await helix.execute(writer, "Tides?", "s-1")).result()
        assert isinstance(cut, Completed)
        assert (cut.output, cut.reason) == ("The tide is", reason)
        whole = await (await helix.execute(writer, "Go on.", "s-1")).result()
        assert isinstance(whole, Completed)
        assert (whole.output, whole.reason) == ("The tide is high.", "finished")
        assert [run.completion_reason for run in (await helix.sessions.runs("s-1")).items] == ["finished", reason]


@pytest.mark.parametrize("arguments", [{}, '{"text": "The tide', "["])
async def test_a_call_that_was_cut_off_is_told_so_and_not_that_its_json_is_wrong(arguments: Any):
    """A model that is told of a mistake in its JSON writes the same again, and is cut off again."""

    @tool
    async def publish(text: str = "") -> str:
        """Publish a text."""
        return "published"

    cut = reply(calls=[call("publish", {"text": "The moon."}), call("publish", arguments)], stop_reason="length")
    writer = Agent(name="writer", model=ScriptedModel([cut, "Done."]), tools=[publish])
    async with Executor.open("memory://", agents=[writer]) as helix:
        await (await helix.execute(writer, "Tides?", "s-1")).output()
        said = [stored.message for stored in (await helix.sessions.messages("s-1")).items]
    results = {each.tool_call_id: str(each.content) for each in said if isinstance(each, ToolMessage)}
    assert results["call_1_1"] == "published"
    assert "cut off at its token limit before the arguments were complete" in results["call_1_2"]


async def test_a_rule_that_ends_a_run_is_its_reason():
    steps = ScriptedModel([call("nothing"), "Never."])
    writer = Agent(name="writer", model=steps, stop_when=lambda step: "enough")
    async with Executor.open("memory://", agents=[writer]) as helix:
        ended = await (await helix.execute(writer, "Tides?")).result()
        assert isinstance(ended, Completed)
        assert ended.reason == "enough"


class Thinker:
    """Thinks, calls a tool, and then takes its time; the second time it answers."""

    name = "thinker"

    def __init__(self) -> None:
        self.requests: list[ModelRequest] = []
        self.has_called = asyncio.Event()

    async def ask(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        self.requests.append(request)
        if len(self.requests) > 1:
            yield ReplyDone(reply=AssistantMessage(text="Done."))
            return
        yield ThinkingPiece(delta="The moon ")
        yield ThinkingPiece(delta="pulls.")
        yield ThinkingPiece(done=True, signature="signed-1")
        yield ThinkingPiece(delta="And the sun", done=True, signature="signed-2")
        yield ToolCallStarted(id="c-1", name="look")
        yield ToolArgumentsPiece(id="c-1", delta="{}")
        yield ToolCallEnded(id="c-1")
        yield ThinkingPiece(delta="So I")
        self.has_called.set()
        await asyncio.Event().wait()


async def test_reasoning_that_was_signed_stays_with_a_reply_that_was_stopped():
    """Anthropic refuses a call without the reasoning that led to it."""
    model = Thinker()
    writer = Agent(name="writer", model=model)
    async with Executor.open("memory://", agents=[writer]) as helix, asyncio.timeout(30):
        run = await helix.execute(writer, "Tides?", "s-1")
        await model.has_called.wait()
        await run.interrupt()
        assert isinstance(await run.result(), Interrupted)
        await (await helix.execute(writer, [UserMessage(content="Go on")], "s-1")).result()
    cut = next(each for each in model.requests[1].messages if isinstance(each, AssistantMessage))
    assert [each.name for each in cut.tool_calls] == ["look"]
    assert cut.thinking == (
        Thinking(text="The moon pulls.", signature="signed-1"),
        Thinking(text="And the sun", signature="signed-2"),
    )
