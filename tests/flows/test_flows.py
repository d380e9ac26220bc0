"""What the function of a flow may do, what it is given, and what it is told when it cannot go on."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr, computed_field

from helix_agents import (
    Agent,
    AnyAgent,
    Budget,
    CallFailedError,
    Completed,
    DefinitionError,
    EngineOptions,
    Executor,
    Failed,
    FailRun,
    FlowRun,
    Image,
    Interrupted,
    OutcomeUnknown,
    RetryTool,
    ScriptedModel,
    Suspended,
    Text,
    ToolAnswer,
    ToolContext,
    ToolFailed,
    UserMessage,
    client_tool,
    flow,
    tool,
)
from helix_agents.flows.replay import MOST_AT_ONCE
from helix_agents.testing import call


class Place(BaseModel):
    """Somewhere."""

    name: str
    tags: list[str] = []


@dataclass
class Pair:
    """Two numbers."""

    left: int
    right: int


@tool
async def double(number: int) -> int:
    """Double a number."""
    return 2 * number


@tool
def place(name: str, tags: list[str] | None = None) -> Place:
    """Find a place."""
    return Place(name=name, tags=tags or [])


@tool
async def pair(left: int, *, right: int) -> Pair:
    """Make a pair."""
    return Pair(left, right)


@tool
async def who(ctx: ToolContext, suffix: str) -> str:
    """Say whose run it is."""
    return f"{ctx.agent}{suffix}"


@tool
async def fail(how: str) -> str:
    """Fail."""
    match how:
        case "finally":
            raise ToolFailed("no such thing")
        case "once more":
            raise RetryTool("try again")
        case "run":
            raise FailRun("enough")
        case _:
            raise ValueError("a bug")


@tool
async def picture() -> Image:
    """Draw."""
    return Image.of(b"pixels", "image/png")


@client_tool
def locate(street: str) -> Place:
    """Ask the client where that is."""
    raise NotImplementedError


@tool
async def hang() -> str:
    """Never answer."""
    await asyncio.Event().wait()
    return "never"


async def result_of(agent: AnyAgent, message: Any = "Go", **settings: Any) -> Any:
    async with Executor.open("memory://", agents=[agent], **settings) as helix:
        async with asyncio.timeout(30):
            return await (await helix.execute(agent, message, "s-1")).result()


async def output_of(agent: AnyAgent, message: Any = "Go") -> Any:
    result = await result_of(agent, message)
    assert isinstance(result, Completed), result
    return result.output  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


async def failure_of(agent: AnyAgent, message: Any = "Go") -> Failed:
    result = await result_of(agent, message)
    assert isinstance(result, Failed), result
    return result


async def test_results_are_what_the_tools_returned() -> None:
    @flow(tools=[double, place, pair, who, picture])
    async def collect(run: FlowRun) -> str:
        """Collect."""
        found = [
            await run.call(double, 2),
            await run.call(place, "Rome", tags=["old"]),
            await run.call(pair, 1, right=2),
            await run.call(who, suffix="!"),
        ]
        drawn: Any = await run.call(picture)
        return f"{found} {type(drawn).__name__}"

    assert await output_of(collect) == "[4, Place(name='Rome', tags=['old']), Pair(left=1, right=2), 'collect!'] Image"


@pytest.mark.parametrize(
    ("wanted", "returned"),
    [(int, 3), (list[int], [1, 2]), (Place, Place(name="Rome")), (dict[str, int], {"a": 1}), (None, None), (str, "x")],
)
async def test_what_the_function_returns_is_the_output(wanted: Any, returned: Any) -> None:
    async def give(run: FlowRun) -> Any:
        """Give."""
        return returned

    give.__annotations__["return"] = wanted
    assert await output_of(flow(give)) == returned


async def test_an_output_of_another_type_than_promised_fails_the_run() -> None:
    @flow
    async def give(run: FlowRun) -> int:
        """Give."""
        return "three"  # type: ignore[return-value]  # pyright: ignore[reportReturnType]

    failure = await failure_of(give)
    assert failure.code == "flow_failed"
    assert (
        "TypeError: it returned 'three', which is not what it promises: Input should be a valid integer"
        in failure.error
    )


async def test_an_output_that_cannot_be_read_back_fails_at_once() -> None:
    class Odd(BaseModel):
        number: int = Field(validation_alias="in", serialization_alias="out")

    class Counted(BaseModel):
        model_config = ConfigDict(extra="forbid")
        numbers: list[int]

        @computed_field
        @property
        def total(self) -> int:
            return sum(self.numbers)

    async def give(run: FlowRun) -> Any:
        """Give."""
        return Counted(numbers=[1, 2])

    give.__annotations__["return"] = Counted
    assert await output_of(flow(give)) == Counted(numbers=[1, 2])

    async def give_odd(run: FlowRun) -> Any:
        """Give."""
        return Odd.model_validate({"in": 1})

    give_odd.__annotations__["return"] = Odd
    failure = await failure_of(flow(give_odd))
    assert failure.code == "flow_failed"
    assert "its type does not accept what it writes as JSON itself: in: Field required" in failure.error


async def test_what_is_no_tool_and_no_agent_is_told_how_it_becomes_one() -> None:
    async def double(number: int) -> int:
        return 2 * number

    untyped: Any = double

    @flow
    async def compute(run: FlowRun) -> str:
        """Compute."""
        return await run.call(untyped, 3)

    assert (await failure_of(compute)).error.endswith(
        "Flow 'compute': it calls double, which is not a tool; decorate it with @tool, and add it to tools=[…]."
    )
    name: Any = "writer"

    @flow
    async def write(run: FlowRun) -> str:
        """Write."""
        return await run.ask(name, "Write")

    assert (await failure_of(write)).error.endswith(
        "Flow 'write': it asks 'writer', which is not an Agent; give the agent itself, and add it to agents=[…]."
    )


async def test_a_text_is_promised_and_nothing_else_is_taken_for_one() -> None:
    @flow
    async def forget(run: FlowRun) -> str:
        """Forget to return."""
        return None  # type: ignore[return-value]  # pyright: ignore[reportReturnType]

    assert (await failure_of(forget)).error == ("Flow 'forget' failed: TypeError: it returned None, but promises a str")

    @flow
    async def anything(run: FlowRun) -> Any:
        """Return data."""
        return {"a": [1, None]}

    assert await output_of(anything) == {"a": [1, None]}


async def test_the_message_is_read_as_the_function_takes_it() -> None:
    @flow
    async def as_text(run: FlowRun, message: str) -> str:
        """Take a text."""
        return message

    @flow
    async def as_place(run: FlowRun, where: Place) -> str:
        """Take a place."""
        return where.name

    @flow
    async def as_message(run: FlowRun, message: UserMessage) -> str:
        """Take it all."""
        return f"{len(message.content)} {run.message is message} {run.session_id}"

    parts = [UserMessage(content=(Text(text="Look:"), Image.of(b"pixels", "image/png"), Text(text="nice")))]
    assert await output_of(as_text, "hello") == "hello"
    assert await output_of(as_text, parts) == "Look:\nnice"
    assert await output_of(as_text, [UserMessage(content="one"), UserMessage(content="two")]) == "two"
    assert await output_of(as_place, '{"name": "Rome"}') == "Rome"
    assert await output_of(as_message, parts) == "3 True s-1"
    assert await output_of(as_text, []) == ""
    failure = await failure_of(as_place, "Rome, please")
    assert failure.code == "flow_input_invalid"
    assert failure.error.startswith("Flow 'as_place' cannot start with this message: ")


async def test_of_several_messages_without_an_answer_the_last_visible_one_counts() -> None:
    @flow
    async def as_text(run: FlowRun, message: str) -> str:
        """Take a text."""
        if message == "fail":
            raise ValueError("no")
        return f"{message} after {[each.content for each in run.history if isinstance(each, UserMessage)]}"

    several = [UserMessage(content="one"), UserMessage(content="two"), UserMessage(content="context", hidden=True)]
    assert await output_of(as_text, several) == "two after ['one', 'context']"
    async with Executor.open("memory://", agents=[as_text]) as helix:
        assert isinstance(await (await helix.execute(as_text, "fail", "s-1")).result(), Failed)
        assert await helix.run(as_text, "go", session_id="s-1") == "go after ['fail']"


async def test_pictures_and_texts_come_back_as_the_tool_returned_them() -> None:
    drawn = Image.of(b"pixels", "image/png")

    @tool
    async def pictures(count: int) -> list[Image]:
        """Draw several."""
        return [drawn] * count

    @tool
    async def page() -> tuple[str, Image]:
        """Write and draw."""
        return "below", drawn

    @tool
    async def frame(picture: Image) -> Image:
        """Frame a picture."""
        return picture

    @flow(tools=[pictures, page, frame])
    async def album(run: FlowRun) -> str:
        """Collect pictures."""
        assert [len(await run.call(pictures, count)) for count in range(3)] == [0, 1, 2]
        assert await run.call(page) == ("below", drawn)
        assert await run.call(frame, drawn) == drawn
        return "all there"

    assert await output_of(album) == "all there"


async def test_each_message_starts_the_function_anew_and_it_may_read_what_came_before() -> None:
    @flow(tools=[double])
    async def count(run: FlowRun, message: str) -> str:
        """Count."""
        await run.call(double, 1)
        return f"{message} after {len(run.history)}"

    async with Executor.open("memory://", agents=[count]) as helix:
        assert [await helix.run(count, word, session_id="s-1") for word in ("one", "two")] == [
            "one after 0",
            "two after 4",
        ]


async def test_every_way_to_wait_for_several_calls_works() -> None:
    @flow(tools=[double, fail])
    async def wait(run: FlowRun) -> str:
        """Wait."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run.call(double, number)) for number in (1, 2)]
        done, _ = await asyncio.wait([asyncio.ensure_future(run.call(double, number)) for number in (3, 4)])
        mixed = await asyncio.gather(run.call(double, 5), run.call(fail, "finally"), return_exceptions=True)
        queue: asyncio.Queue[int] = asyncio.Queue()

        async def produce() -> None:
            for number in (6, 7):
                await queue.put(await run.call(double, number))

        producer = asyncio.create_task(produce())
        queued = [await queue.get(), await queue.get()]
        await producer
        await asyncio.sleep(0)
        return f"{[t.result() for t in tasks]} {sorted(t.result() for t in done)} {mixed[0]} {mixed[1]} {queued}"

    assert await output_of(wait) == "[2, 4] [6, 8] 10 fail failed (tool_failed): no such thing [12, 14]"


async def test_more_calls_than_a_step_may_make_are_made_in_several() -> None:
    @flow(tools=[double])
    async def many(run: FlowRun) -> int:
        """Make many calls."""
        return sum(await asyncio.gather(*(run.call(double, number) for number in range(2 * MOST_AT_ONCE + 3))))

    async with Executor.open("memory://", agents=[many]) as helix:
        assert await helix.run(many, "Go", session_id="s-1") == sum(range(2 * MOST_AT_ONCE + 3)) * 2
        messages = (await helix.sessions.messages("s-1", limit=200)).items[::-1]
        replies = [len(each.message.tool_calls) for each in messages if each.message.role == "assistant"]
        assert replies == [MOST_AT_ONCE, MOST_AT_ONCE, 3, 1]


async def test_a_function_starts_once_in_a_process_and_again_where_its_turn_goes_on(tmp_path: Path) -> None:
    starts: list[str] = []

    def counting() -> AnyAgent:
        @flow(tools=[double, locate])
        async def counting(run: FlowRun) -> int:
            """Count."""
            starts.append("started")
            total = sum([await run.call(double, number) for number in range(5)])
            await run.call(locate, street="Via Appia")
            return total + sum([await run.call(double, number) for number in range(5)])

        return counting

    url = f"sqlite:///{tmp_path}/flows.db"
    async with Executor.open(url, agents=[first := counting()]) as helix:
        result = await (await helix.execute(first, "Go", "s-1")).result()
        assert isinstance(result, Suspended)
        assert starts == ["started"]
    async with Executor.open(url, agents=[second := counting()]) as helix:
        answer = ToolAnswer(result={"name": "Rome"})
        await helix.submit_tool_result("s-1", result.pending[0].tool_call_id, answer)
        assert await (await helix.resume(second, "s-1")).output() == 40
        assert starts == ["started", "started"]


async def test_a_function_that_had_to_make_room_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helix_agents.flows.kept.MESSAGES_KEPT", 1)

    @flow(tools=[double])
    async def count(run: FlowRun, word: str) -> str:
        """Count."""
        return f"{word} {sum([await run.call(double, number) for number in range(4)])}"

    async with Executor.open("memory://", agents=[count]) as helix:
        said = await asyncio.gather(*(helix.run(count, f"{at}", session_id=f"s-{at}") for at in range(5)))
        assert said == [f"{at} 12" for at in range(5)]


async def test_a_call_that_fails_is_an_exception_with_the_code_of_the_tools_error() -> None:
    @flow(tools=[fail, place])
    async def catch(run: FlowRun) -> str:
        """Catch."""
        told: list[str] = []
        for how in ("finally", "once more", "by accident", "once more", "once more", "once more"):
            try:
                await run.call(fail, how)
            except CallFailedError as problem:
                told.append(f"{problem.why}: {problem.message}")
        try:
            await run.call(place, name=3)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
        except CallFailedError as problem:
            told.append(problem.why)
        return "; ".join(dict.fromkeys(told))

    assert await output_of(catch) == (
        "tool_failed: no such thing; retry_requested: try again; tool_execution_failed: ValueError: a bug; "
        "invalid_arguments"
    )


async def test_a_tool_and_a_function_may_fail_the_run() -> None:
    @flow(tools=[fail])
    async def give_up(run: FlowRun, how: str) -> str:
        """Give up."""
        if how == "itself":
            raise FailRun("enough")
        return await run.call(fail, how)

    assert (await failure_of(give_up, "run")).code == "tool_failed_run"
    by_itself = await failure_of(give_up, "itself")
    assert (by_itself.code, by_itself.error) == ("hook_failed_run", "enough")
    uncaught = await failure_of(give_up, "finally")
    assert (uncaught.code, uncaught.error) == (
        "flow_failed",
        "Flow 'give_up' failed: CallFailedError: fail failed (tool_failed): no such thing",
    )


async def test_what_is_meant_for_tools_is_an_ordinary_failure_of_a_function() -> None:
    @flow
    async def confuse(run: FlowRun) -> str:
        """Raise what tools raise."""
        raise ToolFailed("no such thing")

    failure = await failure_of(confuse)
    assert (failure.code, failure.error) == ("flow_failed", "Flow 'confuse' failed: ToolFailed: no such thing")


async def test_a_failure_that_a_function_handled_with_calls_is_not_undone_by_a_retry() -> None:
    noted: list[str] = []

    @tool
    async def note(word: str) -> str:
        """Note."""
        noted.append(word)
        if word == "work":
            raise ToolFailed("no")
        return word

    @flow(tools=[note])
    async def tidy(run: FlowRun) -> str:
        """Clean up."""
        try:
            return await run.call(note, "work")
        finally:
            await run.call(note, "clean up")

    async with Executor.open("memory://", agents=[tidy]) as helix:
        first = await (await helix.execute(tidy, "Go", "s-1")).result()
        again = await (await helix.retry(tidy, "s-1")).result()
        assert isinstance(first, Failed)
        assert isinstance(again, Failed)
        assert first.error == again.error
    assert noted == ["work", "clean up"]


@pytest.mark.parametrize("how", ["itself", "from", "group", "unrelated"])
async def test_a_retry_repeats_the_failures_that_an_exception_stands_for(how: str) -> None:
    tried: list[str] = []

    @tool
    async def attempt(word: str) -> str:
        """Succeed the second time."""
        tried.append(word)
        if tried.count(word) == 1:
            raise ToolFailed("no")
        return word

    @flow(tools=[attempt])
    async def several(run: FlowRun) -> str:
        """Try two things, and do without one of them."""
        needed, spare = await asyncio.gather(
            run.call(attempt, "needed"), run.call(attempt, "spare"), return_exceptions=True
        )
        if isinstance(needed, BaseException):
            match how:
                case "itself":
                    raise needed
                case "from":
                    raise ValueError("there is no needed") from needed
                case "group":
                    raise BaseExceptionGroup("there is no needed", [needed])
                case _:
                    raise ValueError("there is no needed")
        return f"{needed} {isinstance(spare, CallFailedError)}"

    async with Executor.open("memory://", agents=[several]) as helix:
        assert isinstance(await (await helix.execute(several, "Go", "s-1")).result(), Failed)
        again = await (await helix.retry(several, "s-1")).result()
    if how == "unrelated":
        assert isinstance(again, Failed)
        assert sorted(tried) == ["needed", "spare"]
    else:
        assert isinstance(again, Completed)
        assert again.output == "needed True"
        assert sorted(tried) == ["needed", "needed", "spare"]


async def test_a_retry_does_not_repeat_a_call_that_may_have_taken_effect() -> None:
    sent: list[str] = []

    @tool(effect="once", unknown_outcome="fail")
    async def send(word: str) -> str:
        """Send."""
        sent.append(word)
        raise OutcomeUnknown("no answer")

    @flow(tools=[send])
    async def post(run: FlowRun) -> str:
        """Post something."""
        return await run.call(send, "letter")

    async with Executor.open("memory://", agents=[post]) as helix:
        first = await (await helix.execute(post, "Go", "s-1")).result()
        again = await (await helix.retry(post, "s-1")).result()
        assert isinstance(first, Failed)
        assert isinstance(again, Failed)
        assert "(outcome_unknown)" in again.error
    assert sent == ["letter"]


@pytest.mark.parametrize(
    ("becomes", "told"),
    [
        ("raise", "and now raises KeyError: 'gone'"),
        ("return", "and now returns"),
        ("wait", "and now makes no call"),
        ("call", 'and now calls double({"number":2})'),
    ],
)
async def test_a_changed_function_is_told_what_it_does_now(becomes: str, told: str) -> None:
    does = "call first"

    @flow(tools=[double, locate])
    async def change(run: FlowRun) -> str:
        """Change."""
        match does:
            case "raise":
                raise KeyError("gone")
            case "return":
                return "early"
            case "wait":
                await asyncio.Event().wait()
            case _:
                await run.call(double, 1 if does == "call first" else 2)
        await run.call(locate, street="Via Appia")
        return "never"

    async with Executor.open("memory://", agents=[change]) as helix:
        result = await (await helix.execute(change, "Go", "s-1")).result()
        assert isinstance(result, Suspended)
        does = becomes
        await helix.submit_tool_result("s-1", result.pending[0].tool_call_id, ToolAnswer(result={"name": "Rome"}))
        failure = await (await helix.resume(change, "s-1")).result()
        assert isinstance(failure, Failed)
        assert failure.code == "flow_changed"
        assert f'it had called double({{"number":1}}), {told}' in failure.error


async def test_many_sessions_at_once_start_their_function_once_each() -> None:
    starts: list[str] = []

    @flow(tools=[double])
    async def count(run: FlowRun, word: str) -> str:
        """Count."""
        starts.append(word)
        return f"{word} {sum([await run.call(double, number) for number in range(4)])}"

    async with Executor.open("memory://", agents=[count]) as helix:
        said = await asyncio.gather(*(helix.run(count, f"{at}", session_id=f"s-{at}") for at in range(150)))
    assert said == [f"{at} 12" for at in range(150)]
    assert len(starts) == 150


async def test_an_agent_that_is_among_the_tools_is_asked_with_the_settings_given_there() -> None:
    late = Agent(name="late", model=ScriptedModel([call("hang"), "never"]), tools=[hang])
    asked = late.as_tool(description="Asks someone slow.", timeout=0.05)

    @flow(tools=[asked])
    async def patient(run: FlowRun) -> str:
        """Ask for an answer in time."""
        try:
            return await run.ask(late, "Hurry")
        except CallFailedError as problem:
            return problem.why

    async with Executor.open("memory://", agents=[patient], options=EngineOptions(cancel_grace_seconds=0.001)) as helix:
        assert await helix.run(patient, "Go", session_id="s-1") == "sub_agent_timeout"


@tool(effect="once")
async def ring(bell: str) -> str:
    """Ring a bell."""
    return f"rang {bell}"


def ringer(*script: Any) -> Any:
    return Agent(name="ringer", description="Rings.", model=ScriptedModel([*script, "Done."]), tools=[ring]).as_tool()


@pytest.mark.parametrize(
    ("begins_with", "below", "said"),
    [
        (None, (ring, ringer()), "answered the second time"),
        (call("subagent__ringer", {"message": "Go"}), (ring, ringer()), "answered the second time"),
        (call("ring", {"bell": "a"}), (ring,), "run_stopped"),
        (call("subagent__ringer", {"message": "Go"}), (ringer(call("ring", {"bell": "b"})),), "run_stopped"),
    ],
)
async def test_an_agent_that_a_stop_cut_short_is_asked_again_if_all_it_did_may_be_repeated(
    begins_with: Any, below: tuple[Any, ...], said: str
) -> None:
    times: list[str] = []
    started = asyncio.Event()

    @tool
    async def work() -> str:
        """Take very long the first time."""
        times.append("begun")
        started.set()
        return await hang() if len(times) == 1 else "done"

    begins = () if begins_with is None else (begins_with,)
    model = ScriptedModel([*begins, call("work"), "answered the second time"])
    worker = Agent(name="worker", model=model, tools=[work, *below])

    @flow(agents=[worker])
    async def patient(run: FlowRun) -> str:
        """Ask for an answer."""
        try:
            return await run.ask(worker, "Hurry")
        except CallFailedError as problem:
            return problem.why

    async with Executor.open("memory://", agents=[patient], options=EngineOptions(cancel_grace_seconds=0.001)) as helix:
        handle = await helix.execute(patient, "Go", "s-1")
        async with asyncio.timeout(30):
            await started.wait()
        await handle.interrupt()
        assert isinstance(await handle.result(), Interrupted)
        assert await (await helix.resume(patient, "s-1")).output() == said
        assert len(times) == (1 if said == "run_stopped" else 2)


@pytest.mark.may_block("the function thinks in a thread of its own")
async def test_a_run_does_not_wait_for_its_function_when_it_is_stopped() -> None:
    entered, left, go_on = threading.Event(), threading.Event(), threading.Event()
    starts: list[str] = []

    @flow(tools=[double])
    async def ponder(run: FlowRun) -> int:
        """Think for long between two calls."""
        starts.append("started")
        number = await run.call(double, 1)
        if len(starts) == 1:
            entered.set()
            go_on.wait(30)
            left.set()
        return await run.call(double, number)

    async with Executor.open("memory://", agents=[ponder]) as helix:
        handle = await helix.execute(ponder, "Go", "s-1")
        assert await asyncio.to_thread(entered.wait, 30)
        await handle.interrupt()
        assert isinstance(await handle.result(), Interrupted)
        resumed = await helix.resume(ponder, "s-1")
        assert await resumed.output() == 4
        go_on.set()
        assert await asyncio.to_thread(left.wait, 30)
        assert await helix.run(ponder, "Again", session_id="s-1") == 4


async def test_a_secret_is_refused_because_the_tool_would_get_a_mask() -> None:
    class Login(BaseModel):
        name: str
        passwords: list[SecretStr]

    @tool
    async def enter(login: Login, hint: str = "") -> str:
        """Enter."""
        return login.passwords[0].get_secret_value() if login.passwords else hint

    @flow(tools=[enter])
    async def walk(run: FlowRun, word: str) -> str:
        """Walk in."""
        return await run.call(enter, Login(name="Ann", passwords=[SecretStr(word)] if word == "open" else []), "*" * 10)

    assert await output_of(walk, "knock") == "*" * 10
    failure = await failure_of(walk, "open")
    assert "Tool 'enter' cannot be given these arguments: a secret is not written down" in failure.error


async def test_a_picture_is_an_output_like_any_other() -> None:
    @flow
    async def draw(run: FlowRun) -> Image:
        """Draw."""
        return Image.of(b"pixels", "image/png")

    @flow(agents=[draw])
    async def show(run: FlowRun) -> str:
        """Show a picture."""
        return f"{(await run.ask(draw, 'Go')).media_type}"

    assert await output_of(draw) == Image.of(b"pixels", "image/png")
    assert await output_of(show) == "image/png"


async def test_a_function_that_wants_to_end_the_process_ends_its_run() -> None:
    @flow(tools=[double])
    async def leave(run: FlowRun) -> str:
        """Leave."""
        raise SystemExit(await run.call(double, 1))

    assert (await failure_of(leave)).error == "Flow 'leave' failed: SystemExit: 2"


async def test_only_the_function_itself_makes_calls() -> None:
    runs: list[FlowRun] = []

    @tool
    async def reach() -> int:
        """Call from inside a tool."""
        return await runs[0].call(double, 1)

    @flow(tools=[double, reach])
    async def lend(run: FlowRun) -> str:
        """Give the run away."""
        runs.append(run)
        return f"{await run.call(reach)}"

    assert "'double' is called from outside its function" in (await failure_of(lend)).error


async def test_a_result_that_is_not_what_the_tool_promises_is_a_failed_call() -> None:
    @flow(tools=[locate])
    async def ask(run: FlowRun) -> str:
        """Ask the client."""
        return (await run.call(locate, street="Via Appia")).name

    async with Executor.open("memory://", agents=[ask]) as helix:
        result = await (await helix.execute(ask, "Go", "s-1")).result()
        assert isinstance(result, Suspended)
        assert result.pending[0].input == {"street": "Via Appia"}
        answer = ToolAnswer(result={"name": "Rome"})
        await helix.submit_tool_result("s-1", result.pending[0].tool_call_id, answer)
        assert await (await helix.resume(ask, "s-1")).output() == "Rome"


async def _sleeps(run: FlowRun) -> str:
    await asyncio.sleep(0.1)
    return "never"


async def _times_out(run: FlowRun) -> str:
    async with asyncio.timeout(1):
        return f"{await run.call(double, 1)}"


async def _asks_the_time(run: FlowRun) -> str:
    return str(asyncio.get_running_loop().time())


async def _uses_a_thread(run: FlowRun) -> str:
    return await asyncio.to_thread(str, "never")


async def _waits_for_nothing(run: FlowRun) -> str:
    await asyncio.Event().wait()
    return "never"


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (_sleeps, "it waits for time to pass"),
        (_times_out, "it asks what time it is"),
        (_asks_the_time, "it asks what time it is"),
        (_uses_a_thread, "it starts a thread"),
        (_waits_for_nothing, "it waits in line "),
    ],
)
async def test_a_function_that_waits_for_something_else_is_told_what_to_do(
    function: Callable[..., Any], told: str
) -> None:
    failure = await failure_of(flow(name="lazy", tools=[double])(function))
    assert failure.code == "flow_stuck"
    assert failure.error.startswith(f"Flow 'lazy' cannot go on: {told}")


async def test_a_function_is_let_go_of_without_making_calls_or_noise(capsys: pytest.CaptureFixture[str]) -> None:
    ended: list[str] = []

    @flow(tools=[double, locate])
    async def tidy(run: FlowRun) -> str:
        """Clean up."""
        background = asyncio.create_task(run.call(double, 3))
        try:
            await run.call(locate, street="Via Appia")
        finally:
            ended.append("ended")
            await run.call(double, 4)
        return f"{await background}"

    async with Executor.open("memory://", agents=[tidy]) as helix:
        result = await (await helix.execute(tidy, "Go", "s-1")).result()
        assert isinstance(result, Suspended)
        answer = ToolAnswer(result={"name": "Rome"})
        await helix.submit_tool_result("s-1", result.pending[0].tool_call_id, answer)
        assert await (await helix.resume(tidy, "s-1")).output() == "6"
        numbers = [
            call.arguments
            for each in (await helix.sessions.messages("s-1")).items
            if each.message.role == "assistant"
            for call in each.message.tool_calls
            if call.name == "double"
        ]
    assert sorted(map(str, numbers)) == ["{'number': 3}", "{'number': 4}"]
    assert capsys.readouterr().err == ""


async def test_a_flow_calls_only_what_it_was_given() -> None:
    other = Agent(name="other", model=ScriptedModel(["no"]))

    @flow
    async def reach(run: FlowRun, whom: str) -> str:
        """Reach out."""
        return f"{await run.call(double, 1)}" if whom == "tool" else await run.ask(other, "Hello")

    told = "Flow 'reach': it calls 'double', which is not among its tools; add it to tools=[…]."
    assert told in (await failure_of(reach, "tool")).error
    told = "it asks 'other', which is not among its agents; add it to agents=[…]."
    assert told in (await failure_of(reach, "agent")).error


def test_a_function_that_cannot_be_a_flow_is_refused_when_it_is_defined() -> None:
    def plain(run: FlowRun) -> str:
        return "no"

    async def untyped(run: FlowRun):  # type: ignore[no-untyped-def]
        return "no"

    async def greedy(run: FlowRun, one: str, two: str) -> str:
        return "no"

    async def odd(run: FlowRun, message: asyncio.Lock) -> str:
        return "no"

    define: Any = flow

    async def topical(topic: str) -> str:
        return "no"

    async def named(run: FlowRun, *, topic: str) -> str:
        return "no"

    async def hidden(run: FlowRun, topic: "Unheard") -> str:  # type: ignore[name-defined]  # noqa: F821  # pyright: ignore[reportUndefinedVariable, reportUnknownParameterType]
        return "no"

    for function, told in (
        (topical, "'topic' is something else; write \\(run: FlowRun, message\\)"),
        (named, "its function takes the run and, if it wants it, the message"),
        (hidden, "define them at module level"),
        (plain, "a flow is made from an async function"),
        (untyped, "its function does not say what it returns"),
        (greedy, "its function takes the run and, if it wants it, the message"),
        (odd, "its message cannot be read as message"),
    ):
        with pytest.raises(DefinitionError, match=told):
            define(function)


def test_a_tool_that_works_on_a_state_is_refused() -> None:
    @tool
    async def remember(ctx: ToolContext[Place], tag: str) -> str:
        """Remember."""
        ctx.state.tags.append(tag)
        return tag

    with pytest.raises(DefinitionError, match="'remember' works on a state, which a flow has not"):

        @flow(tools=[remember])
        async def forget(run: FlowRun) -> str:  # pyright: ignore[reportUnusedFunction]
            """Forget."""
            return await run.call(remember, "tag")


def test_a_tool_that_ends_the_turn_is_refused() -> None:
    @tool(finish_with=True)
    async def finish(number: int) -> int:
        """Finish."""
        return number

    with pytest.raises(DefinitionError, match="'finish' has finish_with=True and would end the turn"):

        @flow(tools=[finish])
        async def early(run: FlowRun) -> int:  # pyright: ignore[reportUnusedFunction]
            """End early."""
            return await run.call(finish, 1)


async def test_only_whom_a_flow_asks_costs_something() -> None:
    writer = Agent(name="writer", model=ScriptedModel(["Words."]), prices=lambda *_: 0.25)

    @flow(agents=[writer], budget=Budget(cost_usd=1))
    async def spend(run: FlowRun) -> str:
        """Spend."""
        return await run.ask(writer, "Write")

    async with Executor.open("memory://", agents=[spend]) as helix:
        handle = await helix.execute(spend, "Go", "s-1")
        assert await handle.output() == "Words."
        spent = (await helix.sessions.get("s-1")).spent
        assert spent is not None
        assert spent.total.cost_usd == 0.25
