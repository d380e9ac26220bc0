"""Scenarios of plain conversations: turn after turn, with text or structured output, within their limits."""

import asyncio
import threading
from typing import Any, cast

import pytest
from pydantic import BaseModel

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.client_tools import ask_human, client_tool
from helix_agents.agent.context import CompletedStep, RunContext, ToolContext
from helix_agents.agent.hook_events import AgentCompleteEvent, HookEvent
from helix_agents.agent.hooks import Hooks
from helix_agents.agent.tools import tool
from helix_agents.domain.errors import (
    AgentAlreadyRunningError,
    InvalidInputError,
    RunNotCompletedError,
)
from helix_agents.domain.messages import AssistantMessage, Text, UserMessage
from helix_agents.domain.pending import ToolAnswer
from helix_agents.llm.scripted import ScriptedModel, call, finish, reply
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.testing.contracts.executor.stage import (
    SESSION,
    OpenExecutor,
    PieceGate,
    ScenarioContract,
    completed,
    ended,
    failed,
    runs_of,
    scripted,
    spoken,
    suspended,
    transcript,
    within,
)


class Report(BaseModel):
    """What a structured agent hands in."""

    title: str
    pages: int = 1


@client_tool
def locate() -> str:
    """Where the client is."""
    raise NotImplementedError


@tool
def note(text: str) -> str:
    """Write something down."""
    return f"noted {text}"


def _agent(*script: Any, **fields: Any) -> AnyAgent:
    return scripted(script, fields, name="writer", tools=[note])


def _at_once(_: CompletedStep[Any]) -> bool:
    return True


def _broken(_: CompletedStep[Any]) -> bool:
    return bool(1 / 0)


class ConversationsContract(ScenarioContract):
    """A conversation continues for as many turns as its user likes, whichever process takes the next one."""

    async def test_a_turn_ends_with_the_last_text(self, helix: Executor) -> None:
        handle = await helix.execute(_agent(call("note", {"text": "a"}), "Done."), "Begin", SESSION)
        assert await within(handle.output()) == "Done."
        assert await spoken(helix) == [
            "user: Begin",
            "assistant: [note#call_1_1]",
            "result note#call_1_1: noted a",
            "assistant: Done.",
        ]

    async def test_one_call_runs_a_turn_and_returns_its_output(self, helix: Executor) -> None:
        script = [finish({"title": "Tides"}), finish({"title": "Ebb"}), call("locate")]
        reporter = Agent(name="reporter", model=ScriptedModel(script), tools=[locate], output=Report)
        assert await within(helix.run(reporter, "Write", SESSION)) == Report(title="Tides")
        assert await within(helix.run(reporter, "Again", SESSION)) == Report(title="Ebb")
        with pytest.raises(RunNotCompletedError, match="locate"):
            await within(helix.run(reporter, "Where are you?", SESSION))
        assert (await helix.sessions.runs(SESSION)).total == 3

    async def test_text_arrives_piece_by_piece(self, helix: Executor) -> None:
        gate = PieceGate(3)
        model = ScriptedModel(["A longer answer in pieces."], pace=gate)
        handle = await helix.execute(_agent(model=model), "Begin", SESSION)

        async def read() -> list[str]:
            pieces: list[str] = []
            async for piece in handle.text():
                pieces.append(piece)
                gate.opened.set()
            return pieces

        # Pieces that come faster than they are stored become one: here the model waits until the first was read.
        pieces = await within(read())
        assert "".join(pieces) == "A longer answer in pieces."
        assert len(pieces) > 1

    async def test_another_process_takes_the_next_turn(self, helix: Executor, open_executor: OpenExecutor) -> None:
        assert await completed(await helix.execute(_agent("One.", "Two."), "1", SESSION)) == "One."
        async with open_executor() as other:
            assert await completed(await other.execute(_agent("One.", "Two."), "2", SESSION)) == "Two."
            assert await spoken(other) == ["user: 1", "assistant: One.", "user: 2", "assistant: Two."]

    async def test_there_is_one_run_record_per_turn_and_each_knows_the_one_before(self, helix: Executor) -> None:
        agent = _agent("One.", "Two.", "Three.")
        handles = [await helix.execute(agent, "1", SESSION)]
        await completed(handles[0])
        for message in ("2", "3"):
            handles.append(await helix.execute(agent, message, SESSION))
            await completed(handles[-1])
        runs = await runs_of(helix)
        assert [run.turn for run in runs] == [1, 2, 3]
        assert [run.run_id for run in runs] == [handle.run_id for handle in handles]
        assert [run.previous_run_id for run in runs] == [None, handles[0].run_id, handles[1].run_id]
        assert {run.status for run in runs} == {"completed"}
        assert all(run.ended_at is not None for run in runs)

    async def test_each_turn_has_a_fresh_budget_and_counts_its_own_steps(self, helix: Executor) -> None:
        agent = _agent(call("note", {"text": "a"}), "One.", call("note", {"text": "b"}), "Two.", max_steps=2)
        await completed(await helix.execute(agent, "1", SESSION))
        await completed(await helix.execute(agent, "2", SESSION))
        assert [run.step_count for run in await runs_of(helix)] == [2, 2]

    async def test_a_handle_of_an_earlier_turn_still_tells_how_that_one_ended(self, helix: Executor) -> None:
        agent = _agent("One.", "Two.")
        first = await helix.execute(agent, "1", SESSION)
        await completed(first)
        await completed(await helix.execute(agent, "2", SESSION))
        assert await completed(first) == "One."

    async def test_a_handle_may_be_waited_for_in_another_event_loop(self, helix: Executor) -> None:
        gate, asked, told = PieceGate(1), threading.Event(), threading.Event()
        agent = _agent(model=ScriptedModel(["First things first."], pace=gate))
        handle = await helix.execute(agent, "Hi", SESSION)
        await gate.until_reached()

        async def wait() -> None:
            asyncio.get_running_loop().call_soon(asked.set)
            await handle.result()
            told.set()

        threading.Thread(target=lambda: asyncio.run(wait()), daemon=True).start()
        assert await asyncio.to_thread(asked.wait, 10)
        gate.opened.set()
        assert await asyncio.to_thread(told.wait, 10)

    async def test_structured_output_is_handed_in_and_acknowledged(self, helix: Executor) -> None:
        agent = _agent(reply("Here.", calls=[finish({"title": "Tides", "pages": 3})]), output=Report)
        assert await completed(await helix.execute(agent, "Write", SESSION)) == Report(title="Tides", pages=3)
        assert await spoken(helix) == [
            "user: Write",
            "assistant: Here.[__finish__#call_1_1]",
            'result __finish__#call_1_1: {"acknowledged":true}',
        ]

    async def test_a_completed_structured_conversation_goes_on(
        self, helix: Executor, open_executor: OpenExecutor
    ) -> None:
        script = [finish({"title": "First"}), call("note", {"text": "x"}), finish({"title": "Second"})]
        await completed(await helix.execute(_agent(*script, output=Report), "1", SESSION))
        async with open_executor() as other:
            handle = await other.execute(_agent(*script, output=Report), "2", SESSION)
            assert await completed(handle) == Report(title="Second")
            assert (await spoken(other))[2:4] == ['result __finish__#call_1_1: {"acknowledged":true}', "user: 2"]

    async def test_a_reply_without_the_output_is_reminded_of_it(self, helix: Executor) -> None:
        agent = _agent("Thinking aloud.", "Still.", finish({"title": "At last"}), output=Report)
        assert await completed(await helix.execute(agent, "Write", SESSION)) == Report(title="At last")
        assert await spoken(helix) == [
            "user: Write",
            "assistant: Thinking aloud.",
            "hidden: output_reminder",
            "assistant: Still.",
            "hidden: output_reminder",
            "assistant: [__finish__#call_3_1]",
            'result __finish__#call_3_1: {"acknowledged":true}',
        ]

    async def test_a_model_that_never_hands_in_fails_the_run(self, helix: Executor) -> None:
        agent = _agent("One.", "Two.", "Three.", "Four.", output=Report)
        assert (await failed(await helix.execute(agent, "Write", SESSION))).code == "output_missing"
        assert (await spoken(helix)).count("hidden: output_reminder") == 2

    async def test_an_output_can_be_read_while_it_is_written(
        self, helix: Executor, open_executor: OpenExecutor
    ) -> None:
        gate = PieceGate(6)
        script = [reply("Let me see.", calls=[finish({"title": "Tides", "pages": 3})])]
        agent = _agent(model=ScriptedModel(script, pace=gate), output=Report)
        async with open_executor() as other:
            await helix.execute(agent, "Write", SESSION)
            await gate.until_reached()
            handle = await other.get_handle(agent, SESSION)
            assert handle is not None
            drafts = handle.partial_output()
            first = await within(anext(drafts))
            assert first != {"title": "Tides", "pages": 3}
            assert first.items() <= {"title": "Tides"}.items()
            gate.opened.set()
            assert [draft async for draft in drafts][-1] == {"title": "Tides", "pages": 3}

    async def test_a_text_can_be_read_while_it_is_written(self, helix: Executor) -> None:
        gate = PieceGate(2)
        agent = _agent(model=ScriptedModel(["Done, all of it."], pace=gate))
        handle = await helix.execute(agent, "Write", SESSION)
        drafts = handle.partial_output()
        await gate.until_reached()
        assert await within(anext(drafts)) == "Done, al"
        gate.opened.set()
        assert [draft async for draft in drafts][-1] == "Done, all of it."

    async def test_malformed_output_is_corrected(self, helix: Executor) -> None:
        agent = _agent(finish({"pages": "many"}), finish("{not json"), finish({"title": "Good"}), output=Report)
        assert await completed(await helix.execute(agent, "Write", SESSION)) == Report(title="Good")
        assert [line for line in await spoken(helix) if line.startswith("error")] == [
            "error __finish__#call_1_1: invalid_arguments",
            "error __finish__#call_2_1: invalid_arguments",
        ]

    async def test_output_that_stays_malformed_fails_the_run(self, helix: Executor) -> None:
        agent = _agent(*[finish({"pages": "many"})] * 4, output=Report)
        assert (await failed(await helix.execute(agent, "Write", SESSION))).code == "output_invalid"
        assert len([line for line in await spoken(helix) if line.startswith("error")]) == 3

    async def test_output_that_is_handed_in_counts_however_often_the_model_tried(self, helix: Executor) -> None:
        tries = [finish({"pages": "many"}), finish({"title": "Good"}), finish({"title": "Good"})]
        agent = _agent(reply(calls=tries), output=Report, output_retries=0, retries=0)
        assert await completed(await helix.execute(agent, "Write", SESSION)) == Report(title="Good")

    async def test_a_run_that_reaches_max_steps_fails_and_retry_goes_on_with_a_fresh_budget(
        self, helix: Executor, open_executor: OpenExecutor
    ) -> None:
        def looping() -> AnyAgent:
            return _agent(*[call("note", {"text": "again"})] * 3, "Done.", max_steps=2)

        handle = await helix.execute(looping(), "Begin", SESSION)
        result = await failed(handle)
        assert (result.code, result.retryable) == ("max_steps", True)
        async with open_executor() as other:
            again = await other.retry(looping(), SESSION)
            assert await completed(again) == "Done."
            assert (await spoken(other)).count("user: Begin") == 1
            runs = await runs_of(other)
            assert [(run.status, run.step_count) for run in runs] == [("failed", 2), ("completed", 2)]
            assert runs[1].previous_run_id == handle.run_id

    async def test_stop_when_ends_the_turn_after_the_step_it_judged(self, helix: Executor) -> None:
        seen: list[int] = []

        def enough(step: CompletedStep[Any]) -> bool | str:
            seen.append(step.number)
            return "enough notes" if step.number == 2 and step.called("note") else False

        agent = _agent(*[reply("Noting.", calls=[call("note", {"text": "x"})])] * 3, stop_when=enough)
        assert await completed(await helix.execute(agent, "Begin", SESSION)) == "Noting."
        assert seen == [1, 2]
        assert (await runs_of(helix))[0].completion_reason == "enough notes"
        assert (await spoken(helix))[-1] == "result note#call_2_1: noted x"

    async def test_stop_when_sees_the_state_as_the_step_leaves_it(self, helix: Executor) -> None:
        class Notes(BaseModel):
            notes: list[str] = []

        def begin(ctx: RunContext[Notes, Any], event: HookEvent) -> None:
            ctx.state.notes.append(event.hook)

        @tool
        async def add(ctx: ToolContext[Notes], text: str) -> str:
            """Add a note."""
            ctx.state.notes.append(text)
            return text

        seen: list[list[str]] = []

        def look(step: CompletedStep[Notes]) -> bool:
            seen.append(list(step.state.notes))
            return True

        hooks = Hooks(on_agent_start=begin, before_llm_call=begin)
        given: dict[str, Any] = {"tools": [add], "state": Notes, "hooks": hooks, "stop_when": look}
        agent = _agent(reply("Noting.", calls=[call("add", {"text": "x"})]), **given)
        await completed(await helix.execute(agent, "Begin", SESSION))
        assert seen == [["on_agent_start", "before_llm_call", "x"]]
        assert (await helix.sessions.get(SESSION)).custom_state == {"notes": seen[0]}

    async def test_stop_when_knows_what_a_step_took_that_waited_for_somebody(self, helix: Executor) -> None:
        took: list[int] = []

        def count(step: CompletedStep[Any]) -> bool:
            took.append(step.usage.total)
            return False

        agent = _agent(
            call("ask_human", {"question": "Why?"}, id="why"), "I see.", tools=[ask_human()], stop_when=count
        )
        await suspended(await helix.execute(agent, "Begin", SESSION))
        await helix.submit_tool_result(SESSION, "why", ToolAnswer(result="Because."))
        handle = await helix.resume(agent, SESSION)
        assert await completed(handle) == "I see."
        assert len(took) == 1
        assert took[0] > 0

    async def test_stop_when_comes_before_max_steps(self, helix: Executor) -> None:
        agent = _agent(reply("Noting.", calls=[call("note", {"text": "x"})]), max_steps=1, stop_when=_at_once)
        assert await completed(await helix.execute(agent, "Begin", SESSION)) == "Noting."

    async def test_stop_when_before_the_output_is_a_failure(self, helix: Executor) -> None:
        agent = _agent(call("note", {"text": "x"}), output=Report, stop_when=_at_once)
        assert (await failed(await helix.execute(agent, "Begin", SESSION))).code == "stopped_without_output"

    async def test_a_stop_when_that_raises_fails_the_run_after_the_step_it_judged(self, helix: Executor) -> None:
        agent = _agent(call("note", {"text": "x"}), "Never.", stop_when=_broken)
        assert (await failed(await helix.execute(agent, "Begin", SESSION))).code == "stop_when_failed"
        assert (await spoken(helix))[-1] == "result note#call_1_1: noted x"

    async def test_a_finishing_tool_ends_the_run_after_all_others_and_sees_their_state(self, helix: Executor) -> None:
        order: list[str] = []

        class Notes(BaseModel):
            notes: list[str] = []

        @tool
        async def add(ctx: ToolContext[Notes], text: str) -> str:
            """Add a note."""
            order.append(text)
            ctx.state.notes.append(text)
            return text

        @tool(finish_with=True)
        async def publish(ctx: ToolContext[Notes]) -> Report:
            """Publish what was noted."""
            order.append("publish")
            return Report(title=" ".join(ctx.state.notes), pages=len(ctx.state.notes))

        calls = [call("publish"), call("add", {"text": "a"}), call("add", {"text": "b"})]
        agent = _agent(reply("All.", calls=calls), tools=[add, publish], state=Notes, output=Report)
        assert await completed(await helix.execute(agent, "Go", SESSION)) == Report(title="a b", pages=2)
        assert order[-1] == "publish"
        assert [line.partition(":")[0] for line in await spoken(helix)][2:] == [
            "result publish#call_1_1",
            "result add#call_1_2",
            "result add#call_1_3",
        ]

    async def test_finishing_tools_run_one_after_another_and_the_first_in_call_order_is_the_output(
        self, helix: Executor
    ) -> None:
        running = 0

        @tool(finish_with=True)
        async def publish(title: str) -> Report:
            """Publish."""
            nonlocal running
            running += 1
            assert running == 1
            running -= 1
            return Report(title=title)

        calls = [call("publish", {"title": "A"}), call("publish", {"title": "B"})]
        agent = _agent(reply(calls=calls), tools=[publish], output=Report)
        assert await completed(await helix.execute(agent, "Go", SESSION)) == Report(title="A")

    async def test_a_finishing_tool_that_fails_lets_the_run_go_on(self, helix: Executor) -> None:
        @tool(finish_with=True)
        async def publish(title: str) -> Report:
            """Publish."""
            if title == "bad":
                raise ValueError("no such title")
            return Report(title=title)

        script = [call("publish", {"title": "bad"}), call("publish", {"title": "good"})]
        agent = _agent(*script, tools=[publish], output=Report)
        assert await completed(await helix.execute(agent, "Go", SESSION)) == Report(title="good")

    async def test_messages_may_have_parts_be_hidden_and_come_several_at_once(self, helix: Executor) -> None:
        model = ScriptedModel(["Seen."])
        parts = UserMessage(content=(Text(text="Look"),), metadata={"from": "web"})
        await completed(
            await helix.execute(_agent(model=model), [UserMessage(content="context", hidden=True), parts], SESSION)
        )
        assert list(model.requests[0].messages) == [UserMessage(content="context", hidden=True), parts]

    @pytest.mark.parametrize(
        "given",
        [
            ["One", "two"],
            {"role": "user", "content": "Hello"},
            [AssistantMessage(text="Hello")],
            UserMessage(content=cast("tuple[Text]", ("Hello",))),
            "",
            " \n",
            [UserMessage(content="Hello"), UserMessage(content=(Text(text=" "),))],
            UserMessage(content=()),
        ],
        ids=["texts", "dict", "assistant", "part", "empty", "blank", "blank part", "no parts"],
    )
    async def test_what_is_no_message_is_refused_and_the_session_stays_readable(
        self, helix: Executor, given: Any
    ) -> None:
        agent = Agent(name="writer", model=ScriptedModel(["Fine.", "Fine again."]))
        await completed(await helix.execute(agent, "Hello", SESSION))
        with pytest.raises(InvalidInputError):
            await helix.execute(agent, given, SESSION)
        with pytest.raises(InvalidInputError):
            await helix.execute(agent, given, "s-2")
        with pytest.raises(InvalidInputError):
            await helix.resume(agent, SESSION, mode="with_message", message=given)
        assert (await helix.sessions.list()).total == 1
        assert await completed(await helix.execute(agent, "Hello", SESSION)) == "Fine again."
        assert len(await transcript(helix)) == 4

    async def test_a_session_with_metadata_that_could_not_be_read_again_is_not_begun(self, helix: Executor) -> None:
        agent = Agent(name="writer", model=ScriptedModel(["Fine."]))
        with pytest.raises(InvalidInputError, match="metadata"):
            await helix.execute(agent, "Hello", SESSION, metadata=cast("dict[str, str]", {"order": 5}))
        assert (await helix.sessions.list()).total == 0

    async def test_the_same_call_with_an_idempotency_key_gives_the_same_turn(
        self, helix: Executor, open_executor: OpenExecutor
    ) -> None:
        agent = _agent("One.", "Two.")
        first = await helix.execute(agent, "1", SESSION, idempotency_key="k-1")
        await completed(first)
        async with open_executor() as other:
            again = await other.execute(_agent("One.", "Two."), "1", SESSION, idempotency_key="k-1")
            assert again.run_id == first.run_id
            assert await completed(again) == "One."
            assert len(await runs_of(other)) == 1

    async def test_a_call_made_twice_at_once_with_a_key_begins_one_turn(
        self, helix: Executor, open_executor: OpenExecutor
    ) -> None:
        async with open_executor() as other:
            for turn, key in enumerate(("k-1", "k-2"), 1):
                agents = [_agent("One.", "Two."), _agent("One.", "Two.")]
                pairs = zip((helix, other), agents, strict=True)
                begun = await asyncio.gather(
                    *(each.execute(agent, key, SESSION, idempotency_key=key) for each, agent in pairs)
                )
                assert len({handle.run_id for handle in begun}) == 1
                assert {await completed(handle) for handle in begun} == {"One." if turn == 1 else "Two."}
                assert len(await runs_of(helix)) == turn

    async def test_a_key_is_known_however_much_the_turn_said_and_when_its_message_is_hidden(
        self, helix: Executor
    ) -> None:
        many = reply(calls=[call("note", {"text": str(number)}) for number in range(60)])
        agent = _agent(many, "Done.", "Again.")
        message = UserMessage(content="Go", hidden=True)
        first = await helix.execute(agent, [UserMessage(content="Go"), message], SESSION, idempotency_key="k")
        assert await completed(first) == "Done."
        again = await helix.execute(agent, [UserMessage(content="Go"), message], SESSION, idempotency_key="k")
        assert again.run_id == first.run_id

    async def test_a_key_is_known_while_its_message_waits_behind_open_calls(self, helix: Executor) -> None:
        gate = PieceGate(1)
        agent = _agent(reply(calls=[call("locate")]), "Never mind.", tools=[locate])
        await suspended(await helix.execute(agent, "Where?", SESSION))
        held = _agent(model=ScriptedModel([reply(calls=[call("locate")]), "Never mind."], pace=gate), tools=[locate])
        first = await helix.execute(held, "Leave it.", SESSION, idempotency_key="k")
        again = await helix.execute(held, "Leave it.", SESSION, idempotency_key="k")
        assert again.run_id == first.run_id
        gate.opened.set()
        assert await completed(first) == "Never mind."

    async def test_one_call_may_bring_its_own_model_and_state(self, helix: Executor) -> None:
        agent = _agent("From the agent's model.")
        handle = await helix.execute(agent, "1", SESSION, model=ScriptedModel(["From another."], name="other"))
        assert await completed(handle) == "From another."
        assert [each.source_name for each in (await handle.usage()).sources] == ["other"]

    async def test_an_executor_runs_at_most_as_many_turns_at_once_as_it_may(self, open_executor: OpenExecutor) -> None:
        gate, told = PieceGate(1), list[str]()

        async def heard(ctx: RunContext, event: AgentCompleteEvent) -> None:
            told.append(ctx.session_id)

        async with open_executor(max_running=1) as helix:
            first = await helix.execute(_agent(model=ScriptedModel(["One."], pace=gate)), "1", "s-1")
            await gate.until_reached()
            own: dict[str, Any] = {"model": ScriptedModel(["Two."]), "hooks": Hooks(on_agent_complete=heard)}
            second = await helix.execute(_agent("Not asked."), "2", "s-2", **own)
            assert [run.step_count for run in await runs_of(helix, "s-2")] == [0]
            gate.opened.set()
            assert [await completed(first), await completed(second)] == ["One.", "Two."]
        # The model and hooks that a call passes are used when its turn comes.
        assert told == ["s-2"]

    async def test_a_session_has_one_turn_at_a_time(self, helix: Executor, open_executor: OpenExecutor) -> None:
        gate = PieceGate(1)
        handle = await helix.execute(_agent(model=ScriptedModel(["One."], pace=gate)), "1", SESSION)
        await gate.until_reached()
        async with open_executor() as other:
            with pytest.raises(AgentAlreadyRunningError):
                await other.execute(_agent("One."), "2", SESSION)
        gate.opened.set()
        assert await completed(handle) == "One."

    async def test_asking_for_the_output_of_a_run_that_did_not_complete_says_why(self, helix: Executor) -> None:
        handle = await helix.execute(_agent("One.", output=Report, output_retries=0), "1", SESSION)
        with pytest.raises(RunNotCompletedError) as refused:
            await within(handle.output())
        assert "output_missing" in str(refused.value)

    async def test_what_a_run_used_adds_up(self, helix: Executor) -> None:
        @tool
        async def spend(ctx: ToolContext) -> str:
            """Spend."""
            ctx.record_usage("credits", 3)
            return "spent"

        handle = await helix.execute(_agent(call("spend"), "Done.", tools=[spend]), "Go", SESSION)
        await ended(handle)
        usage = await handle.usage()
        assert usage.tokens.total > 0
        assert {(source.source_type, source.source_name) for source in usage.sources} >= {
            ("tokens", "scripted"),
            ("tool", "spend"),
            ("custom", "credits"),
        }
