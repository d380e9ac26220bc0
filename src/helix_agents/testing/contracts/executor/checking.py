"""Scenarios of output checks: no run completes with what a check refuses, and the model learns why."""

import asyncio
import logging
from typing import Any

import pytest
from pydantic import BaseModel

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.context import CompletedStep, RunContext, ToolContext
from helix_agents.agent.failures import FailRun, RetryOutput, ToolFailed
from helix_agents.agent.hook_events import AfterLLMCallEvent
from helix_agents.agent.hooks import Hooks
from helix_agents.agent.tools import tool
from helix_agents.domain.chunks import Custom, TextDelta
from helix_agents.domain.messages import ToolMessage, UserMessage
from helix_agents.domain.rendering import surviving
from helix_agents.domain.usage import TokenCount
from helix_agents.llm.scripted import ScriptedModel, call, finish, reply
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.testing.contracts.executor.family import delegate
from helix_agents.testing.contracts.executor.handing_over import hand_to
from helix_agents.testing.contracts.executor.stage import (
    SESSION,
    ScenarioContract,
    chunks_of,
    completed,
    failed,
    interrupted,
    result_at,
    scripted,
    spoken,
    transcript,
)

TEN = TokenCount(prompt=8, completion=2, total=10)


class Report(BaseModel):
    """What a structured agent hands in."""

    title: str
    sources: list[str] = []


class Desk(BaseModel):
    """What a writer has on the desk."""

    banned: list[str] = ["secret"]


@tool
def note(text: str) -> str:
    """Write something down."""
    return f"noted {text}"


@tool
def ban(ctx: ToolContext[Desk], word: str) -> str:
    """Ban a word."""
    ctx.state.banned.append(word)
    return f"banned {word}"


async def discreet(ctx: RunContext[Desk, Any], output: str) -> None:
    """No banned word may be said."""
    for word in ctx.state.banned:
        if word in output.lower():
            raise RetryOutput(f"do not say {word!r}")


def sourced(ctx: RunContext[Any, Any], output: Report) -> None:
    """A report names its sources."""
    assert isinstance(output, Report)
    if not output.sources:
        raise RetryOutput("name your sources")


def _agent(*script: Any, **fields: Any) -> AnyAgent:
    defaults: dict[str, Any] = {"output_checks": [discreet], "state": Desk}
    return scripted(script, fields, name="writer", description="Writes.", tools=[note, ban], **defaults)


def _reporter(*script: Any, **fields: Any) -> AnyAgent:
    return _agent(*script, **{"output": Report, "output_checks": [sourced], **fields})


class CheckingContract(ScenarioContract):
    """A check accepts an output, sends the model back, or fails the run. Without an answer, nothing is accepted."""

    async def test_a_text_that_a_check_refuses_is_not_the_output(self, helix: Executor) -> None:
        agent = _agent("The secret is out.", "Nothing to report.")
        assert await completed(await helix.execute(agent, "Write", SESSION)) == "Nothing to report."
        assert await spoken(helix) == [
            "user: Write",
            "assistant: The secret is out.",
            "hidden: output_reminder",
            "assistant: Nothing to report.",
        ]
        told = (await transcript(helix))[2]
        assert isinstance(told, UserMessage)
        assert told.content == "Your reply was not accepted: do not say 'secret'"

    async def test_an_output_that_a_check_refuses_is_handed_in_again(self, helix: Executor) -> None:
        agent = _reporter(finish({"title": "Tides"}), finish({"title": "Tides", "sources": ["a book"]}))
        output = await completed(await helix.execute(agent, "Write", SESSION))
        assert output == Report(title="Tides", sources=["a book"])
        assert (await spoken(helix))[2] == "error __finish__#call_1_1: retry_requested"
        assert result_at(await transcript(helix), 2).content == "name your sources"

    async def test_a_check_sees_the_state_that_the_steps_before_have_left(self, helix: Executor) -> None:
        agent = _agent(call("ban", {"word": "tide"}), "The tide is low.", "The water is low.")
        assert await completed(await helix.execute(agent, "Write", SESSION)) == "The water is low."

    async def test_checks_are_asked_in_order_up_to_the_first_that_refuses(self, helix: Executor) -> None:
        asked: list[str] = []

        def first(ctx: RunContext[Any, Any], output: str) -> None:
            asked.append(f"first {output}")
            if output == "One.":
                raise RetryOutput("not that")

        async def second(ctx: RunContext[Any, Any], output: str) -> None:
            asked.append(f"second {output}")
            ctx.record_usage("judge", amount=3)

        agent = _agent("One.", "Two.", output_checks=[first, second])
        handle = await helix.execute(agent, "Write", SESSION)
        assert await completed(handle) == "Two."
        assert asked == ["first One.", "first Two.", "second Two."]
        used = {source.source_name: source.amount for source in (await handle.usage()).sources}
        assert used["judge"] == 3

    @pytest.mark.parametrize("structured", [False, True], ids=["a text", "handed in"])
    async def test_what_stays_refused_fails_the_run(self, helix: Executor, structured: bool) -> None:
        unsourced = finish({"title": "Tides"})
        agent = _reporter(*[unsourced] * 4) if structured else _agent(*["The secret."] * 4)
        result = await failed(await helix.execute(agent, "Write", SESSION))
        assert result.code == "output_invalid"
        assert ("name your sources" if structured else "do not say 'secret'") in result.error
        assert len([each for each in await transcript(helix) if each.role == "assistant"]) == 3

    async def test_who_goes_on_after_a_refused_text_knows_why_it_was_refused(self, helix: Executor) -> None:
        model = ScriptedModel(["The secret.", "All quiet."])
        agent = _agent(model=model, output_retries=0)
        assert (await failed(await helix.execute(agent, "Write", SESSION))).code == "output_invalid"
        assert await completed(await helix.retry(agent, SESSION)) == "All quiet."
        told = model.requests[-1].messages[-1]
        assert isinstance(told, UserMessage)
        assert told.content == "Your reply was not accepted: do not say 'secret'"
        agent = _agent("The secret.", "All quiet.", max_steps=1)
        assert (await failed(await helix.execute(agent, "Write", "other"))).code == "max_steps"
        assert await spoken(helix, "other") == ["user: Write", "assistant: The secret.", "hidden: output_reminder"]
        assert await completed(await helix.retry(agent, "other")) == "All quiet."

    @pytest.mark.parametrize("structured", [False, True], ids=["a text", "handed in"])
    async def test_what_checks_change_in_the_state_is_part_of_the_step_also_if_they_refuse(
        self, helix: Executor, structured: bool
    ) -> None:
        def only_once(ctx: RunContext[Desk, Any], output: Any) -> None:
            ctx.state.banned.append(f"check {ctx.step}")
            if len(ctx.state.banned) < 3:
                raise RetryOutput("once more")

        async def last(ctx: RunContext[Desk, Any], output: Any) -> None:
            ctx.state.banned.append(f"after {len(ctx.state.banned)}")

        script = [finish({"title": str(number)}) if structured else str(number) for number in range(2)]
        agent = _agent(*script, output=Report if structured else None, output_checks=[only_once, last])
        output = await completed(await helix.execute(agent, "Write", SESSION))
        assert output == (Report(title="1") if structured else "1")
        session = await helix.sessions.get(SESSION)
        assert session.custom_state == {"banned": ["secret", "check 1", "check 2", "after 3"]}

    async def test_a_state_that_its_type_refuses_accepts_nothing(self, helix: Executor) -> None:
        def spoil(ctx: RunContext[Desk, Any], output: Any) -> None:
            ctx.state.banned = 3  # pyright: ignore[reportAttributeAccessIssue]

        result = await failed(await helix.execute(_agent("One.", output_checks=[spoil]), "Write", SESSION))
        assert result.code == "output_check_failed"
        assert (await helix.sessions.get(SESSION)).custom_state in ({}, {"banned": ["secret"]})

    async def test_checks_may_tell_readers_something(self, helix: Executor) -> None:
        def sync(ctx: RunContext[Any, Any], output: str) -> None:
            ctx.emit("checked", {"by": "sync"})
            ctx.record_usage("judge", amount=2)

        async def later(ctx: RunContext[Any, Any], output: str) -> None:
            ctx.emit("checked", {"by": "async"})

        handle = await helix.execute(_agent("One.", output_checks=[sync, later]), "Write", SESSION)
        assert await completed(handle) == "One."
        told = [chunk.data for chunk in await chunks_of(handle) if isinstance(chunk, Custom)]
        assert told == [{"by": "sync"}, {"by": "async"}]
        assert [source.amount for source in (await handle.usage()).sources if source.source_name == "judge"] == [2]

    @pytest.mark.parametrize("structured", [False, True], ids=["a text", "handed in"])
    async def test_a_reason_that_cannot_be_stored_as_it_is_reaches_the_model_escaped(
        self, helix: Executor, structured: bool
    ) -> None:
        def picky(ctx: RunContext[Any, Any], output: Any) -> None:
            if ctx.step == 1:
                raise RetryOutput("not \ud800, please")

        script = [finish({"title": "One"}), finish({"title": "Two"})] if structured else ["One.", "Two."]
        agent = _agent(*script, output=Report if structured else None, output_checks=[picky])
        await completed(await helix.execute(agent, "Write", SESSION))
        told = (await transcript(helix))[2]
        assert isinstance(told, UserMessage | ToolMessage)
        assert str(told.content).endswith("not \\ud800, please")

    async def test_a_check_that_cancels_itself_accepts_nothing(self, helix: Executor) -> None:
        async def gone(ctx: RunContext[Any, Any], output: str) -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

        result = await failed(await helix.execute(_agent("One.", output_checks=[gone]), "Write", SESSION))
        assert result.code == "output_check_failed"

    async def test_corrections_are_counted_anew_in_the_next_turn(self, helix: Executor) -> None:
        agent = _agent("Secret.", "Secret!", "One.", "Secret.", "Secret!", "Two.")
        assert await completed(await helix.execute(agent, "1", SESSION)) == "One."
        assert await completed(await helix.execute(agent, "2", SESSION)) == "Two."

    async def test_calls_beside_a_refused_output_have_their_results(self, helix: Executor) -> None:
        both = reply(calls=[call("note", {"text": "a"}), finish({"title": "Tides"})])
        agent = _reporter(both, finish({"title": "Tides", "sources": ["a"]}))
        await completed(await helix.execute(agent, "Write", SESSION))
        assert (await spoken(helix))[2:4] == [
            "result note#call_1_1: noted a",
            "error __finish__#call_1_2: retry_requested",
        ]

    @pytest.mark.parametrize("structured", [False, True], ids=["a text", "handed in"])
    async def test_a_check_may_fail_the_run_and_nothing_of_the_reply_is_kept(
        self, helix: Executor, structured: bool
    ) -> None:
        def forbid(ctx: RunContext[Any, Any], output: Any) -> None:
            raise FailRun("against the rules")

        words = "The forbidden words."
        calls = [call("note", {"text": "a"}), finish({"title": "Tides"})] if structured else []
        agent = _agent(
            reply(words, calls=calls, usage=TEN), output=Report if structured else None, output_checks=[forbid]
        )
        handle = await helix.execute(agent, "Write", SESSION)
        result = await failed(handle)
        assert (result.code, result.error, result.retryable) == ("output_refused", "against the rules", False)
        assert await spoken(helix) == ["user: Write"]
        assert (await handle.usage()).tokens == TEN
        left = surviving(await chunks_of(handle))
        assert not any(isinstance(chunk, TextDelta) for chunk in left)
        allowed = _agent(*["Fine."] * 2)
        assert await completed(await helix.execute(allowed, "Again", SESSION)) == "Fine."

    async def test_a_check_that_breaks_accepts_nothing_and_a_retry_asks_it_again(
        self, helix: Executor, caplog: pytest.LogCaptureFixture
    ) -> None:
        broken = [True]

        def check(ctx: RunContext[Any, Any], output: str) -> None:
            if broken:
                raise ConnectionError("the judge is away")

        agent = _agent("One.", output_checks=[check])
        with caplog.at_level(logging.INFO, "helix_agents"):
            result = await failed(await helix.execute(agent, "Write", SESSION))
        assert (result.code, result.retryable) == ("output_check_failed", True)
        assert result.error == "ConnectionError: the judge is away"
        assert "output_check.failed" in [getattr(record, "event", "") for record in caplog.records]
        broken.clear()
        assert await completed(await helix.retry(agent, SESSION)) == "One."

    @pytest.mark.parametrize(
        ("returned", "raised", "error"),
        [
            (False, None, "TypeError: The output check 'check' returned a bool; it accepts by returning nothing"),
            (None, ToolFailed("no"), "ToolFailed: no"),
            (None, SystemExit(3), "RuntimeError: The output check 'check' raised SystemExit(3)"),
        ],
        ids=["a value", "a decision for tools", "an exit"],
    )
    async def test_what_is_no_answer_of_a_check_accepts_nothing(
        self, helix: Executor, returned: Any, raised: BaseException | None, error: str
    ) -> None:
        async def check(ctx: RunContext[Any, Any], output: str) -> Any:
            if raised is not None:
                raise raised
            return returned

        result = await failed(await helix.execute(_agent("One.", output_checks=[check]), "Write", SESSION))
        assert result.code == "output_check_failed"
        assert result.error.startswith(error)

    async def test_a_refused_text_does_not_become_the_output_because_the_run_is_stopped_there(
        self, helix: Executor
    ) -> None:
        def at_once(step: CompletedStep[Any]) -> bool:
            return True

        result = await failed(await helix.execute(_agent("Secret.", stop_when=at_once), "Write", SESSION))
        assert result.code == "stopped_without_output"
        result = await failed(await helix.execute(_agent("Secret.", max_steps=1), "Write", "other"))
        assert result.code == "max_steps"

    async def test_a_slow_check_is_cut_by_an_interrupt_and_the_text_is_kept(self, helix: Executor) -> None:
        begun = asyncio.Event()

        async def slow(ctx: RunContext[Any, Any], output: str) -> None:
            begun.set()
            if output == "One.":
                await asyncio.Event().wait()

        agent = _agent("One.", "Two.", output_checks=[slow])
        handle = await helix.execute(agent, "Write", SESSION)
        await begun.wait()
        await helix.interrupt(SESSION, "enough")
        assert (await interrupted(handle)).reason == "enough"
        assert await spoken(helix) == ["user: Write", "assistant: One. (interrupt)"]
        assert await completed(await helix.resume(agent, SESSION)) == "Two."

    async def test_a_sub_agents_output_is_checked_where_it_is_made(self, helix: Executor) -> None:
        child = _agent("The secret.", "All quiet.")
        boss = scripted([delegate("writer", "Write"), "Thanks."], {}, name="boss", tools=[child.as_tool()])
        assert await completed(await helix.execute(boss, "Go", SESSION)) == "Thanks."
        assert (await spoken(helix))[2] == "result subagent__writer#call_1_1: All quiet."

    async def test_what_a_sub_agent_is_forbidden_to_say_reaches_neither_its_parent_nor_readers(
        self, helix: Executor
    ) -> None:
        def forbid(ctx: RunContext[Any, Any], output: str) -> None:
            raise FailRun("against the rules")

        child = _agent(reply("The forbidden words.", usage=TEN), output_checks=[forbid])
        boss = scripted([delegate("writer", "Write"), "Thanks."], {}, name="boss", tools=[child.as_tool()])
        handle = await helix.execute(boss, "Go", SESSION)
        assert await completed(handle) == "Thanks."
        assert (await spoken(helix))[2] == "error subagent__writer#call_1_1: sub_agent_failed"
        said = [chunk.delta for chunk in surviving(await chunks_of(handle)) if isinstance(chunk, TextDelta)]
        assert "".join(said) == "Thanks."
        assert "forbidden" not in str(await transcript(helix))
        assert (await handle.usage()).tokens.total >= 10

    async def test_who_takes_over_a_conversation_checks_what_it_says(self, helix: Executor) -> None:
        script = [hand_to("writer"), "The secret.", "All quiet."]
        desk = scripted(script, {}, name="desk", handoffs=[_agent(*script)])
        assert await completed(await helix.execute(desk, "Go", SESSION)) == "All quiet."

    async def test_a_hook_that_fails_a_run_after_its_reply_does_not_hide_what_it_cost(self, helix: Executor) -> None:
        def spent(ctx: RunContext[Any, Any], event: AfterLLMCallEvent) -> None:
            raise FailRun("enough")

        agent = _agent(reply("One.", usage=TEN), hooks=Hooks(after_llm_call=spent))
        handle = await helix.execute(agent, "Write", SESSION)
        assert (await failed(handle)).code == "hook_failed_run"
        assert (await handle.usage()).tokens == TEN
