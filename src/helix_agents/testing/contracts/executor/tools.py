"""Scenarios of tools that run here: in parallel, with state, and whatever may go wrong with one of them."""

import asyncio
import logging
import threading
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, BeforeValidator, computed_field, model_validator

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.client_tools import client_tool
from helix_agents.agent.context import RunContext, ToolContext
from helix_agents.agent.failures import FailRun, RetryTool, ToolFailed
from helix_agents.agent.hook_events import AfterToolEvent
from helix_agents.agent.hooks import Hooks
from helix_agents.agent.tools import tool
from helix_agents.domain.chunks import Custom, Output, StatePatch, StepCommitted, ToolEnd, ToolError, ToolStart
from helix_agents.domain.errors import InvalidStateError, StateSizeExceededError
from helix_agents.domain.messages import AssistantMessage, ToolMessage
from helix_agents.domain.pending import ToolAnswer
from helix_agents.domain.writes import Append, MergeWarning, Replace, StepWrites, WriteOp
from helix_agents.engine.services import EngineOptions
from helix_agents.llm.scripted import ScriptedModel, call, reply
from helix_agents.ports.state_store import StoreLimits
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.testing.contracts.executor.stage import (
    SESSION,
    Gate,
    OpenExecutor,
    ScenarioContract,
    chunks_of,
    completed,
    failed,
    result_at,
    scripted,
    spoken,
    suspended,
    transcript,
    within,
)


class MuteError(Exception):
    """An exception that cannot say what is wrong."""

    def __str__(self) -> str:
        raise TypeError("no words")


def _refuse(value: int) -> int:
    raise KeyError(value)


def _say_nothing(_: object) -> None:
    """Instructions that return nothing."""


def _end(value: int) -> int:
    raise ToolFailed(f"{value} is none of ours \ud800")


class Half(BaseModel):
    """A type whose own code breaks: pydantic passes on what it raises."""

    count: int = 0

    @computed_field
    @property
    def share(self) -> float:
        return 1 / self.count

    @model_validator(mode="after")
    def _not_seven(self) -> "Half":
        if self.count == 7:
            raise KeyError(self.count)
        return self


class Loose(BaseModel):
    """Notes that may be none at all."""

    notes: list[str] | None = []


class Shelf(BaseModel):
    """State that several tools work on."""

    notes: list[str] = []
    title: str = ""
    count: int = 0


@tool
async def add(ctx: ToolContext[Shelf], text: str) -> str:
    """Add a note."""
    ctx.state.notes.append(text)
    return f"{len(ctx.state.notes)} notes"


@tool
async def rename(ctx: ToolContext[Shelf], title: str) -> str:
    """Change the title."""
    ctx.state.title = title
    return title


@client_tool
def locate() -> str:
    """Where the client is."""
    raise NotImplementedError


def _agent(*script: Any, **fields: Any) -> AnyAgent:
    return scripted(script, fields, name="keeper", tools=[add, rename], state=Shelf)


def _both(name: str, argument: str, first: str, second: str) -> Any:
    return reply(calls=[call(name, {argument: first}), call(name, {argument: second})])


class ToolsContract(ScenarioContract):
    """A batch runs in parallel from one state, and no tool can break its run by accident."""

    async def test_parallel_tools_run_side_by_side(self, helix: Executor) -> None:
        gates = {"a": Gate(), "b": Gate()}

        @tool
        async def meet(mine: str, other: str) -> str:
            """Wait for the other one."""
            gates[mine].opened.set()
            await within(gates[other].opened.wait())
            return mine

        calls = [call("meet", {"mine": "a", "other": "b"}), call("meet", {"mine": "b", "other": "a"})]
        assert await completed(await helix.execute(_agent(reply(calls=calls), "Met.", tools=[meet]), "Go")) == "Met."

    async def test_appends_of_parallel_tools_all_arrive_in_call_order(self, helix: Executor) -> None:
        slow = Gate()

        @tool
        async def add_slowly(ctx: ToolContext[Shelf], text: str) -> str:
            """Add a note, later."""
            if text == "first":
                await within(slow.opened.wait())
            ctx.state.notes.append(text)
            slow.opened.set()
            return f"{len(ctx.state.notes)} notes"

        script = [_both("add_slowly", "text", "first", "second"), "Done."]
        await completed(await helix.execute(_agent(*script, tools=[add_slowly]), "Go", SESSION))
        assert (await helix.sessions.get(SESSION)).custom_state["notes"] == ["first", "second"]
        # Each started from the same committed state, and the history follows the model's order.
        assert (await spoken(helix))[2:4] == [
            "result add_slowly#call_1_1: 1 notes",
            "result add_slowly#call_1_2: 1 notes",
        ]

    async def test_the_later_of_two_conflicting_writes_wins_and_readers_are_warned(self, helix: Executor) -> None:
        handle = await helix.execute(_agent(_both("rename", "title", "one", "two"), "Done."), "Go", SESSION)
        chunks = await chunks_of(handle)
        assert (await helix.sessions.get(SESSION)).custom_state["title"] == "two"
        warnings = [chunk.warnings for chunk in chunks if isinstance(chunk, StepCommitted)]
        assert warnings[0] == (MergeWarning(key="title", tool_call_ids=("call_1_1", "call_1_2")),)

    async def test_a_state_given_at_the_start_reaches_the_tools_and_readers_follow_its_changes(
        self, helix: Executor
    ) -> None:
        agent = _agent(call("add", {"text": "new"}), "Done.")
        handle = await helix.execute(agent, "Go", SESSION, state={"notes": ["old"]})
        patches = [chunk.patch for chunk in await chunks_of(handle) if isinstance(chunk, StatePatch)]
        assert patches == [[{"op": "add", "path": "/notes/-", "value": "new"}]]
        assert (await helix.sessions.get(SESSION)).custom_state["notes"] == ["old", "new"]

    async def test_a_change_of_the_state_from_outside_survives_the_run_beside_it(
        self, helix: Executor, open_executor: OpenExecutor
    ) -> None:
        gate = Gate()

        @tool
        async def work(ctx: ToolContext[Shelf]) -> str:
            """Work."""
            await gate.wait()
            ctx.state.notes.append("from the tool")
            return "worked"

        handle = await helix.execute(_agent(call("work"), "Done.", tools=[work]), "Go", SESSION)
        await gate.until_reached()
        async with open_executor() as other:
            await other.sessions.update_state(SESSION, StepWrites(ops=(Replace(key="title", value="outside"),)))
            await other.sessions.update_state(SESSION, StepWrites(ops=(Append(key="notes", items=["outside"]),)))
        gate.opened.set()
        assert await completed(handle) == "Done."
        state = (await helix.sessions.get(SESSION)).custom_state
        assert (state["title"], state["notes"]) == ("outside", ["outside", "from the tool"])

    @pytest.mark.parametrize(
        ("write", "problem"),
        [
            (Replace(key="title", value=7), "title"),
            (Replace(key="notes", value="none"), "notes"),
            (Append(key="notes", items=[7]), "notes"),
            (Replace(key="tittle", value="misspelt"), "tittle: no such field"),
        ],
    )
    async def test_a_change_of_the_state_that_the_agent_could_not_read_is_refused(
        self, helix: Executor, write: WriteOp, problem: str
    ) -> None:
        agent = _agent("Hello.", "Hello again.")
        await completed(await helix.execute(agent, "Go", SESSION))
        before = await helix.sessions.get(SESSION)
        with pytest.raises(InvalidStateError, match=problem):
            await helix.sessions.update_state(SESSION, StepWrites(ops=(Replace(key="count", value=3), write)))
        assert await helix.sessions.get(SESSION) == before
        assert await completed(await helix.execute(agent, "Again", SESSION)) == "Hello again."

    async def test_what_a_tool_wrote_and_does_not_go_with_a_change_from_outside_is_a_failed_result(
        self, helix: Executor
    ) -> None:
        gate = Gate()

        @tool
        async def work(ctx: ToolContext[Loose]) -> str:
            """Work."""
            await gate.wait()
            if ctx.state.notes is None:
                ctx.state.notes = ["first"]
            ctx.state.notes.append("worked")
            return "worked"

        agent = _agent(call("work"), call("work"), "Done.", tools=[work], state=Loose)
        handle = await helix.execute(agent, "Go", SESSION)
        await gate.until_reached()
        await helix.sessions.update_state(SESSION, StepWrites(ops=(Replace(key="notes", value=None),)))
        gate.opened.set()
        assert await completed(handle) == "Done."
        said = await transcript(helix)
        assert "append needs a list under 'notes'" in str(result_at(said, 2).content)
        assert (result_at(said, 2).error, result_at(said, 4).content) == (True, "worked")
        assert (await helix.sessions.get(SESSION)).custom_state["notes"] == ["first", "worked"]

    async def test_a_state_that_others_made_too_large_meanwhile_stops_growing_and_the_run_goes_on(
        self, open_executor: OpenExecutor
    ) -> None:
        gate = Gate()

        @tool
        async def work(ctx: ToolContext[Shelf]) -> str:
            """Work."""
            await gate.wait()
            ctx.state.notes.append("x" * 300)
            return "worked"

        async with open_executor(limits=StoreLimits(state_bytes=500)) as helix:
            handle = await helix.execute(_agent(call("work"), "Done.", tools=[work]), "Go", SESSION)
            await gate.until_reached()
            await helix.sessions.update_state(SESSION, StepWrites(ops=(Append(key="notes", items=["y" * 300]),)))
            gate.opened.set()
            assert await completed(handle) == "Done."
            assert (await spoken(helix))[2] == f"error work#call_1_1: {StateSizeExceededError.code}"
            assert (await helix.sessions.get(SESSION)).custom_state["notes"] == ["y" * 300]

    @pytest.mark.parametrize("others", ["beside it", "from outside"])
    async def test_a_finishing_tool_whose_changes_are_refused_has_not_finished_the_run(
        self, open_executor: OpenExecutor, others: str
    ) -> None:
        gate, told = Gate(), list[str]()

        @tool(finish_with=True)
        async def publish(ctx: ToolContext[Shelf], text: str) -> str:
            """Publish."""
            if others == "from outside" and text != "small":
                await gate.wait()
            ctx.state.notes.append(text)
            return f"published {len(text)}"

        first = [call("publish", {"text": "x" * 300})]
        calls = [*first, call("add", {"text": "y" * 300})] if others == "beside it" else first
        script = [reply(calls=calls), call("publish", {"text": "small"})]
        hooks = Hooks(on_agent_complete=lambda ctx, event: told.append(str(event.output)))
        async with open_executor(limits=StoreLimits(state_bytes=500)) as helix:
            handle = await helix.execute(_agent(*script, tools=[add, publish], hooks=hooks), "Go", SESSION)
            if others == "from outside":
                await gate.until_reached()
                await helix.sessions.update_state(SESSION, StepWrites(ops=(Append(key="notes", items=["y" * 300]),)))
                gate.opened.set()
            assert await completed(handle) == "published 5"
            assert (await spoken(helix))[2] == f"error publish#call_1_1: {StateSizeExceededError.code}"
            assert (await helix.sessions.get(SESSION)).custom_state["notes"] == ["y" * 300, "small"]
            outputs = [chunk.output for chunk in await chunks_of(handle) if isinstance(chunk, Output)]
        assert told == outputs == ["published 5"]

    async def test_what_a_hook_writes_that_is_too_large_is_dropped_with_a_word_in_the_log(
        self, open_executor: OpenExecutor, caplog: pytest.LogCaptureFixture
    ) -> None:
        def grow(ctx: RunContext[Shelf], event: AfterToolEvent) -> None:
            ctx.state.notes.append("x" * 1_000)

        async with open_executor(limits=StoreLimits(state_bytes=500)) as helix:
            agent = _agent(call("rename", {"title": "small"}), "Done.", hooks=Hooks(after_tool=grow))
            assert await completed(await helix.execute(agent, "Go", SESSION)) == "Done."
            state = (await helix.sessions.get(SESSION)).custom_state
            assert (state["title"], state["notes"]) == ("small", [])
        (told,) = [record for record in caplog.records if getattr(record, "event", "") == "state.write_refused"]
        assert told.levelno == logging.WARNING
        assert "keys=('notes',)" in told.getMessage()

    async def test_a_sync_tool_runs_beside_the_event_loop(self, helix: Executor) -> None:
        threads: list[int] = []

        @tool
        def count(ctx: ToolContext[Shelf]) -> int:
            """Count."""
            threads.append(threading.get_ident())
            ctx.state.count += 1
            ctx.emit("counted", ctx.state.count)
            return ctx.state.count

        handle = await helix.execute(_agent(call("count"), "Done.", tools=[count]), "Go", SESSION)
        chunks = await chunks_of(handle)
        assert threads != [threading.get_ident()]
        assert (await helix.sessions.get(SESSION)).custom_state["count"] == 1
        names = [type(chunk) for chunk in chunks]
        assert names.index(ToolStart) < names.index(Custom) < names.index(ToolEnd)

    async def test_a_tool_that_takes_too_long_is_told_so_to_the_model(self, helix: Executor) -> None:
        @tool(timeout=0.02)
        async def stall() -> str:
            """Stall."""
            await asyncio.Event().wait()
            return "never"

        await completed(await helix.execute(_agent(call("stall"), "Gave up.", tools=[stall]), "Go", SESSION))
        assert (await spoken(helix))[2] == "error stall#call_1_1: tool_timeout"
        told = (await transcript(helix))[2]
        assert isinstance(told, ToolMessage)
        assert told.content == "Tool 'stall' did not finish in time: it may or may not have taken effect."

    @pytest.mark.parametrize("limit", [None, 60])
    async def test_what_a_function_waits_for_in_vain_is_its_own_problem(
        self, helix: Executor, limit: float | None
    ) -> None:
        @tool(timeout=limit)
        async def fetch() -> str:
            """Fetch."""
            raise TimeoutError("the library did not answer")

        await completed(await helix.execute(_agent(call("fetch"), "Gave up.", tools=[fetch]), "Go", SESSION))
        page = await helix.sessions.messages(SESSION)
        said = next(each.message for each in page.items if isinstance(each.message, ToolMessage))
        assert (said.code, said.content) == ("tool_execution_failed", "TimeoutError: the library did not answer")

    async def test_a_tool_may_ask_the_model_to_retry_as_often_as_it_has_retries(self, helix: Executor) -> None:
        @tool(retries=1)
        async def book(date: str) -> str:
            """Book."""
            if "-" not in date:
                raise RetryTool("say a date like 2026-05-01")
            return "booked"

        script = [call("book", {"date": "May"}), call("book", {"date": "2026-05-01"}), "Booked."]
        assert await completed(await helix.execute(_agent(*script, tools=[book]), "Go", SESSION)) == "Booked."
        assert result_at(await transcript(helix), 2).content == "say a date like 2026-05-01"
        worse = [call("book", {"date": "May"}), call("book", {"date": "June"}), "Never."]
        result = await failed(await helix.execute(_agent(*worse, tools=[book]), "Go", "s-2"))
        assert result.code == "tool_retries_exhausted"

    async def test_retries_are_counted_per_tool_and_turn(self, helix: Executor) -> None:
        @tool
        async def book(date: str) -> str:
            """Book."""
            raise RetryTool("another date")

        script = [call("book", {"date": "a"}), call("book", {"date": "b"}), "Later."] * 2
        agent = _agent(*script, tools=[book])
        assert await completed(await helix.execute(agent, "1", SESSION)) == "Later."
        assert await completed(await helix.execute(agent, "2", SESSION)) == "Later."

    async def test_a_tool_that_failed_for_good_costs_no_retry(self, helix: Executor) -> None:
        @tool(retries=0)
        async def find(number: int) -> str:
            """Find an invoice."""
            raise ToolFailed("no such invoice")

        script = [call("find", {"number": 1}), call("find", {"number": 2}), "None."]
        assert await completed(await helix.execute(_agent(*script, tools=[find]), "Go", SESSION)) == "None."
        assert (await spoken(helix))[2] == "error find#call_1_1: tool_failed"

    async def test_any_other_exception_is_an_error_the_model_sees_without_a_traceback(self, helix: Executor) -> None:
        @tool
        async def divide(ctx: ToolContext[Shelf]) -> float:
            """Divide."""
            ctx.state.title = "broken"
            return 1 / 0

        handle = await helix.execute(_agent(call("divide"), "Odd.", tools=[divide]), "Go", SESSION)
        errors = [chunk for chunk in await chunks_of(handle) if isinstance(chunk, ToolError)]
        assert [(error.code, error.error) for error in errors] == [
            ("tool_execution_failed", "ZeroDivisionError: division by zero")
        ]
        assert (await helix.sessions.get(SESSION)).custom_state["title"] == ""

    @pytest.mark.parametrize(
        ("raised", "text"),
        [
            (FileNotFoundError("caf\udce9.txt"), "FileNotFoundError: caf\\udce9.txt"),
            (MuteError(), "MuteError: no text, because of TypeError"),
            (ToolFailed(ValueError("no such invoice")), "no such invoice"),  # pyright: ignore[reportArgumentType]
            (ToolFailed("lost \ud800"), "lost \\ud800"),
            (RetryTool("say \ud800"), "say \\ud800"),
            (ValueError("\x1f" * 3_000_000), "ValueError: \x1f"),
        ],
        ids=["file name", "mute", "caught", "failed", "retry", "long"],
    )
    async def test_whatever_an_exception_says_is_an_error_the_model_sees(
        self, helix: Executor, raised: BaseException, text: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        # Not every reporter of tests can carry such a text.
        caplog.set_level(logging.CRITICAL, logger="helix_agents")

        @tool
        async def read() -> str:
            """Read."""
            raise raised

        assert await completed(await helix.execute(_agent(call("read"), "Odd.", tools=[read]), "Go", SESSION)) == "Odd."
        content = result_at(await transcript(helix), 2).content
        assert isinstance(content, str)
        assert content[: len(text)] == text
        assert len(content) < 1_000_000

    async def test_a_tool_may_fail_the_run(self, helix: Executor) -> None:
        @tool
        async def spend() -> str:
            """Spend."""
            raise FailRun("the budget is used up")

        result = await failed(await helix.execute(_agent(call("spend"), "Never.", tools=[spend]), "Go", SESSION))
        assert "the budget is used up" in result.error
        assert (await spoken(helix))[-1] == "error spend#call_1_1: tool_failed"

    async def test_an_unknown_tool_is_an_error_that_names_the_known_ones(self, helix: Executor) -> None:
        await completed(await helix.execute(_agent(call("fly", {"to": "Rome"}), "Sorry."), "Go", SESSION))
        assert (await spoken(helix))[2] == "error fly#call_1_1: unknown_tool"
        assert "add, rename" in result_at(await transcript(helix), 2).content

    async def test_a_model_that_keeps_calling_an_unknown_tool_fails_the_run(self, helix: Executor) -> None:
        result = await failed(await helix.execute(_agent(*[call("fly")] * 4), "Go", SESSION))
        assert result.code == "tool_retries_exhausted"

    async def test_malformed_arguments_are_an_error_beside_the_calls_that_were_fine(self, helix: Executor) -> None:
        calls = [call("add", '{"text": "x'), call("add", {"text": 5}), call("add", {"text": "good"})]
        await completed(await helix.execute(_agent(reply(calls=calls), "Done."), "Go", SESSION))
        assert (await spoken(helix))[2:5] == [
            "error add#call_1_1: invalid_arguments",
            "error add#call_1_2: invalid_arguments",
            "result add#call_1_3: 1 notes",
        ]
        asked = (await transcript(helix))[1]
        assert isinstance(asked, AssistantMessage)
        assert asked.tool_calls[0].arguments == '{"text": "x'

    async def test_a_call_that_was_cut_off_before_its_arguments_does_not_run(self, helix: Executor) -> None:
        @tool
        async def clear(only: str = "everything") -> str:
            """Clear what is named."""
            return f"cleared {only}"

        cut = reply(calls=[call("clear", {}), call("clear", {})], stop_reason="length")
        await completed(await helix.execute(_agent(cut, "Done.", tools=[clear]), "Go", SESSION))
        assert (await spoken(helix))[2:4] == [
            "result clear#call_1_1: cleared everything",
            "error clear#call_1_2: invalid_arguments",
        ]

    async def test_a_call_id_the_provider_repeats_is_made_unique(self, helix: Executor) -> None:
        twice = reply(calls=[call("add", {"text": "a"}, id="same"), call("add", {"text": "b"}, id="same")])
        odd = call("add", {"text": "c"}, id="ünique id!" + "x" * 80)
        handle = await helix.execute(_agent(twice, call("add", {"text": "d"}, id="same"), odd, "Done."), "Go", SESSION)
        chunks = await chunks_of(handle)
        results = [line.split(":")[0] for line in await spoken(helix) if line.startswith("result")]
        assert results[:3] == ["result add#same", "result add#same_1", "result add#same_2"]
        assert results[3] == "result add#_nique_id_" + "x" * 54
        # The calls of one step run in parallel, and so may start in any order.
        assert sorted(chunk.tool_call_id for chunk in chunks if isinstance(chunk, ToolStart)) == sorted(
            result.removeprefix("result add#") for result in results
        )
        assert (await helix.sessions.get(SESSION)).custom_state["notes"] == ["a", "b", "d", "c"]

    async def test_whatever_the_code_of_a_type_raises_is_told_to_the_model_and_the_run_goes_on(
        self, helix: Executor
    ) -> None:
        @tool
        async def take(count: Annotated[int, AfterValidator(_refuse)]) -> str:
            """Take."""
            return str(count)

        @tool
        async def choose(count: Annotated[int, AfterValidator(_end)]) -> str:
            """Choose."""
            return str(count)

        @tool
        async def halve() -> Half:
            """Give back what cannot be shown."""
            return Half()

        @tool
        async def stream() -> Any:
            """Give back what breaks when it is read."""
            return (_refuse(each) for each in range(3))

        @tool(output=Half)
        async def count() -> Any:
            """Give back what its type cannot check."""
            return {"count": 7}

        @tool
        async def spoil(ctx: ToolContext[Half]) -> str:
            """Leave a state that cannot be loaded again."""
            ctx.state.count = 7
            return "spoilt"

        @tool
        async def report(ctx: ToolContext[Half]) -> str:
            """Count what is no number."""
            ctx.record_usage("pages", float("nan"))
            return "reported"

        @tool
        async def shout(ctx: ToolContext[Half]) -> str:
            """Say what is no text."""
            ctx.emit("\ud800")
            return "shouted"

        tools = [take, choose, halve, stream, count, spoil, report, shout]
        calls = [call("take", {"count": 1}), call("choose", {"count": 1}), *[call(each.name) for each in tools[2:]]]
        agent = _agent(reply(calls=calls), "Go on.", tools=tools, state=Half)
        assert await completed(await helix.execute(agent, "Go", SESSION, state={"count": 1})) == "Go on."
        assert (await spoken(helix))[2:-1] == [
            "error take#call_1_1: invalid_arguments",
            "error choose#call_1_2: invalid_arguments",
            "error halve#call_1_3: tool_output_invalid",
            "error stream#call_1_4: tool_output_invalid",
            "error count#call_1_5: tool_output_invalid",
            "error spoil#call_1_6: tool_output_invalid",
            "error report#call_1_7: tool_execution_failed",
            "error shout#call_1_8: tool_execution_failed",
        ]

    async def test_an_argument_that_json_has_no_form_for_reaches_its_tool(self, helix: Executor) -> None:
        @tool
        async def weigh(data: Annotated[bytes, BeforeValidator(bytes.fromhex)]) -> int:
            """Weigh."""
            return len(data)

        agent = _agent(call("weigh", {"data": "fffe"}), "Two.", tools=[weigh])
        assert await completed(await helix.execute(agent, "Go", SESSION)) == "Two."
        assert (await spoken(helix))[2] == "result weigh#call_1_1: 2"

    async def test_what_instructions_and_stop_when_raise_fails_the_run_and_nothing_else(
        self, helix: Executor, caplog: pytest.LogCaptureFixture
    ) -> None:
        # Not every reporter of tests can carry such a text.
        caplog.set_level(logging.CRITICAL, logger="helix_agents")

        def decide(_: object) -> str:
            raise ToolFailed("not here \ud800")

        def leave(_: object) -> bool:
            raise SystemExit(3)

        unwritten = await helix.execute(_agent("Never.", instructions=decide), "Go", SESSION)
        assert (await failed(unwritten)).error == "ToolFailed: not here \\ud800"
        wordless = await helix.execute(_agent("Never.", instructions=_say_nothing), "Go", "wordless")
        assert "has to return a string" in (await failed(wordless)).error
        undecided = await helix.execute(_agent(call("add", {"text": "a"}), stop_when=decide), "Go", "undecided")
        assert (await failed(undecided)).error == "stop_when raised ToolFailed: not here \\ud800"
        left = await helix.execute(_agent(call("add", {"text": "a"}), stop_when=leave), "Go", "left")
        assert (await failed(left)).code == "stop_when_failed"

    async def test_a_result_that_is_too_large_is_a_failed_result(self, open_executor: OpenExecutor) -> None:
        @tool
        async def fetch() -> str:
            """Fetch."""
            return "x" * 2_000

        async with open_executor(options=EngineOptions(result_bytes=1_000)) as helix:
            await completed(await helix.execute(_agent(call("fetch"), "Less.", tools=[fetch]), "Go", SESSION))
            assert (await spoken(helix))[2] == "error fetch#call_1_1: tool_output_invalid"

    async def test_a_state_write_that_is_too_large_is_a_failed_result(self, open_executor: OpenExecutor) -> None:
        async with open_executor(limits=StoreLimits(state_bytes=500)) as helix:
            calls = [call("add", {"text": "x" * 1_000}), call("rename", {"title": "small"})]
            await completed(await helix.execute(_agent(reply(calls=calls), "Less."), "Go", SESSION))
            said = await spoken(helix)
            assert said[2].startswith("error add#call_1_1: ")
            assert said[3] == "result rename#call_1_2: small"
            state = (await helix.sessions.get(SESSION)).custom_state
            assert (state["notes"], state["title"]) == ([], "small")

    async def test_writes_that_are_too_large_together_are_kept_as_far_as_they_fit(
        self, open_executor: OpenExecutor
    ) -> None:
        async with open_executor(limits=StoreLimits(state_bytes=500)) as helix:
            calls = [call("add", {"text": letter * 200}) for letter in "abc"]
            script = [reply(calls=[*calls[:2], call("locate"), calls[2]]), reply(calls=calls[:1]), "Full."]
            agent = _agent(*script, tools=[add, locate])
            await suspended(await helix.execute(agent, "Go", SESSION))
            await helix.submit_tool_result(SESSION, "call_1_3", ToolAnswer(result="Rome"))
            assert await completed(await helix.resume(agent, SESSION)) == "Full."
            told = StateSizeExceededError.code
            assert [line for line in await spoken(helix) if line.startswith(("result", "error"))] == [
                "result add#call_1_1: 1 notes",
                "result add#call_1_2: 1 notes",
                "result locate#call_1_3: Rome",
                f"error add#call_1_4: {told}",
                f"error add#call_2_1: {told}",
            ]
            assert (await helix.sessions.get(SESSION)).custom_state["notes"] == ["a" * 200, "b" * 200]

    async def test_a_state_that_grew_too_large_by_many_small_writes_stops_growing_and_the_run_goes_on(
        self, open_executor: OpenExecutor
    ) -> None:
        async with open_executor(limits=StoreLimits(state_bytes=500)) as helix:
            script = [*[call("add", {"text": "x" * 200})] * 4, "Full."]
            assert await completed(await helix.execute(_agent(*script), "Go", SESSION)) == "Full."
            assert len((await helix.sessions.get(SESSION)).custom_state["notes"]) == 2

    async def test_a_reply_that_is_too_large_fails_the_run_with_a_reason(self, open_executor: OpenExecutor) -> None:
        async with open_executor(limits=StoreLimits(message_bytes=2_000)) as helix:
            handle = await helix.execute(_agent("x" * 3_000), "Go", SESSION)
            assert (await failed(handle)).code == StateSizeExceededError.code
            await chunks_of(handle)
            assert await spoken(helix) == ["user: Go"]

    async def test_an_input_that_is_too_large_is_refused_and_nothing_is_stored(
        self, open_executor: OpenExecutor
    ) -> None:
        async with open_executor(limits=StoreLimits(message_bytes=2_000)) as helix:
            with pytest.raises(StateSizeExceededError):
                await helix.execute(_agent("Never."), "x" * 3_000, SESSION)
            assert (await helix.sessions.list()).total == 0

    async def test_a_result_larger_than_a_message_of_the_store_is_a_failed_result(
        self, open_executor: OpenExecutor
    ) -> None:
        @tool
        async def fetch() -> str:
            """Fetch."""
            return "x" * 3_000

        async with open_executor(limits=StoreLimits(message_bytes=2_000)) as helix:
            handle = await helix.execute(_agent(call("fetch"), "Less.", tools=[fetch]), "Go", SESSION)
            assert await completed(handle) == "Less."
            assert (await spoken(helix))[2].startswith("error fetch#call_1_1: ")

    @pytest.mark.parametrize("side_by_side", [1, 2])
    async def test_a_tool_that_cancels_the_task_it_runs_in_has_failed(
        self, open_executor: OpenExecutor, side_by_side: int
    ) -> None:
        @tool
        async def give_up() -> str:
            """Give up."""
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
            return "never"

        wanted = reply(calls=[call("give_up")] * side_by_side)
        async with open_executor() as helix:
            model = ScriptedModel(lambda request: wanted if request.step == 1 else "Never mind.")
            handle = await helix.execute(_agent(model=model, tools=[give_up]), "Go", SESSION)
            assert await within(completed(handle)) == "Never mind."
            failures = [line for line in await spoken(helix) if line.startswith("error give_up")]
            assert len(failures) == side_by_side

    async def test_tools_run_at_most_as_many_at_once_as_the_executor_allows(self, open_executor: OpenExecutor) -> None:
        running = most = 0
        two_at_once = asyncio.Event()

        @tool
        async def work() -> str:
            """Work."""
            nonlocal running, most
            running += 1
            most = max(most, running)
            if running == 2:
                two_at_once.set()
            await within(two_at_once.wait())
            await asyncio.sleep(0.02)
            running -= 1
            return "done"

        async with open_executor(max_parallel_tools=2) as helix:
            script = [reply(calls=[call("work")] * 6), "Done."]
            await completed(await helix.execute(_agent(*script, tools=[work]), "Go", SESSION))
            assert most == 2
