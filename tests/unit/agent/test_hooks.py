"""Hooks run at fixed points, in a fixed order, and can neither break a run nor half-change its state."""

import asyncio
import inspect
import re
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import pytest
from pydantic import BaseModel

from helix_agents.agent import hook_events, hooks
from helix_agents.agent.agent import Agent
from helix_agents.agent.context import RunContext, RunInfo, RunLink
from helix_agents.agent.failures import FailRun, ToolFailed
from helix_agents.agent.hook_events import (
    AfterToolEvent,
    AgentStartEvent,
    AroundToolEvent,
    BeforeToolEvent,
    HookEvent,
    MessageEvent,
    TextDeltaEvent,
)
from helix_agents.agent.hooks import HOOK_NAMES, HookFailure, HookOrder, Hooks, ordered
from helix_agents.agent.state_draft import StateDraft
from helix_agents.domain.errors import DefinitionError, InvalidStateError
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.writes import Append, Replace
from helix_agents.llm.scripted import ScriptedModel

EVENTS = {event.hook: event for event in HookEvent.__subclasses__()}
START = AgentStartEvent(turn=1, input=(UserMessage(content="hi"),))
BEFORE_TOOL = BeforeToolEvent(tool_name="search", tool_call_id="c1", input={})


class Notes(BaseModel):
    log: list[str] = []
    count: int = 0


def context(**state: Any) -> RunContext[Notes]:
    draft = StateDraft.of(Notes, Notes(**state).model_dump())
    return RunContext(session_id="s", run_id="r", step=1, agent="writer", deps=None, link=RunLink(draft=draft))


def unexpected(failure: HookFailure) -> None:
    pytest.fail(f"{failure.hook} raised {failure.error!r}")


def noting(word: str) -> Hooks[Notes]:
    return Hooks(on_agent_start=lambda ctx, event: ctx.state.log.append(word))


# ---- the table


def test_there_is_one_record_and_one_method_per_hook() -> None:
    assert set(EVENTS) == set(HOOK_NAMES)
    for name, event in EVENTS.items():
        words = re.sub(r"^on_", "", name).split("_")
        assert event.__name__.lower() == "".join(words) + "event"
        assert get_annotation(getattr(Hooks, name), "event") is event
        assert name in inspect.signature(Hooks).parameters
        assert event.__doc__


def get_annotation(function: Callable[..., Any], parameter: str) -> Any:
    return inspect.signature(function).parameters[parameter].annotation


def test_the_table_tells_every_field_of_every_record() -> None:
    told: dict[str, tuple[str, tuple[str, ...]]] = {}
    last = ""
    for hook, record, fields in re.findall(
        r"^\| (\w*) +\| (\w*) +\| ([\w, ]+?) +\|$", hooks.__doc__ or "", re.MULTILINE
    ):
        # A row without a name goes on with the fields of the one above it.
        last = hook or last
        told[last] = (record or told[last][0], (*told.get(last, ("", ()))[1], *fields.split(", ")))
    assert told == {name: (event.__name__, event.__struct_fields__) for name, event in EVENTS.items()}


def test_every_record_is_frozen_and_takes_keywords_only() -> None:
    for event in EVENTS.values():
        assert event.__struct_config__.frozen
        assert event.__match_args__ == ()
    assert all(name.endswith("Event") for name, found in vars(hook_events).items() if found in EVENTS.values())


# ---- running them


async def test_hooks_may_be_methods_or_functions_sync_or_async() -> None:
    class Audit(Hooks[Notes]):
        async def on_agent_start(self, ctx: RunContext[Notes], event: AgentStartEvent) -> None:
            await asyncio.sleep(0)
            ctx.state.log.append(f"method {event.turn}")

        def on_message(self, ctx: RunContext[Notes], event: MessageEvent) -> None:
            ctx.state.log.append("message")

    async def function(ctx: RunContext[Notes], event: AgentStartEvent) -> None:
        ctx.state.log.append(f"function {event.turn}")

    ctx = context()
    order = HookOrder([Audit(), Hooks(on_agent_start=function), noting("lambda")])
    await order.fire(ctx, START, unexpected)
    await order.fire(ctx, MessageEvent(message=UserMessage(content="hi")), unexpected)
    assert ctx.state.log == ["method 1", "function 1", "lambda", "message"]


async def test_the_order_is_parent_executor_agent_call() -> None:
    ctx = context()
    order = ordered(
        call=noting("call"),
        agent=[noting("agent 1"), noting("agent 2")],
        executor=noting("executor"),
        parent=(noting("grandparent"), noting("parent")),
    )
    await order.fire(ctx, START, unexpected)
    assert ctx.state.log == ["grandparent", "parent", "executor", "agent 1", "agent 2", "call"]


async def test_nothing_is_run_and_nothing_is_read_where_nobody_wrote_a_hook() -> None:
    class Audit(Hooks):
        def before_tool(self, ctx: RunContext, event: BeforeToolEvent) -> None: ...

    order = ordered(agent=Audit(), call=Hooks(on_text_delta=lambda ctx, event: None))
    assert [name for name in HOOK_NAMES if order.wants(name)] == ["before_tool", "on_text_delta"]
    assert not any(HookOrder().wants(name) for name in HOOK_NAMES)
    draft = StateDraft.of(Notes, {"log": "unreadable"})
    ctx: RunContext = RunContext(session_id="s", run_id="r", step=1, agent="a", deps=None, link=RunLink(draft=draft))
    await order.fire(ctx, START, unexpected)
    await order.fire(ctx, BEFORE_TOOL, unexpected)


async def test_a_hook_on_every_token_gets_no_state() -> None:
    seen: list[Any] = []
    info = RunInfo(session_id="s", run_id="r", step=1, agent="a")
    order = ordered(call=Hooks(on_text_delta=lambda ctx, event: seen.append((ctx, event.delta))))
    await order.fire(info, TextDeltaEvent(delta="Hel"), unexpected)
    assert seen == [(info, "Hel")]


# ---- when they fail


@pytest.mark.parametrize("error", [ValueError("no"), ToolFailed("not here"), SystemExit(1)])
async def test_a_hook_that_raises_is_reported_its_changes_are_dropped_and_the_others_run(error: BaseException) -> None:
    def breaks(ctx: RunContext[Notes], event: AgentStartEvent) -> None:
        ctx.state.log.append("half")
        ctx.state.count = 7
        raise error

    failures: list[HookFailure] = []
    ctx = context(log=["stored"])
    order = HookOrder([noting("first"), Hooks(on_agent_start=breaks), noting("last")])
    await order.fire(ctx, START, failures.append)
    assert ctx.link.draft.writes().ops == (Append(key="log", items=["first", "last"]),)
    [failure] = failures
    assert failure.hook == "on_agent_start"
    assert failure.function.endswith("breaks")
    assert failure.error is error or failure.error.__cause__ is error


async def test_a_hook_that_leaves_an_impossible_state_is_reported_and_its_changes_are_dropped() -> None:
    def spoils(ctx: RunContext[Notes], event: AgentStartEvent) -> None:
        ctx.state.count = "many"  # pyright: ignore[reportAttributeAccessIssue]

    failures: list[HookFailure] = []
    ctx = context(count=3)
    await HookOrder([Hooks(on_agent_start=spoils), noting("after")]).fire(ctx, START, failures.append)
    assert isinstance(failures[0].error, InvalidStateError)
    assert ctx.state.count == 3
    assert ctx.link.draft.writes().ops == (Append(key="log", items=["after"]),)


@pytest.mark.parametrize("in_a_group", [False, True])
async def test_a_hook_can_fail_the_run_and_those_after_it_do_not_run(in_a_group: bool) -> None:
    async def refuses(ctx: RunContext[Notes], event: AgentStartEvent) -> None:
        try:
            if in_a_group:
                raise BaseExceptionGroup("work", [FailRun("over budget")])
            raise FailRun("over budget")
        except Exception:
            pytest.fail("swallowed")

    ctx = context()
    order = HookOrder([noting("before"), Hooks(on_agent_start=refuses), noting("after")])
    with pytest.raises(FailRun) as failed:
        await order.fire(ctx, START, unexpected)
    assert failed.value.reason == "over budget"
    assert ctx.state.log == ["before"]


async def test_a_cancelled_run_cancels_its_hooks() -> None:
    async def waits(ctx: RunContext[Notes], event: AgentStartEvent) -> None:
        await asyncio.Event().wait()

    running = asyncio.create_task(HookOrder([Hooks(on_agent_start=waits)]).fire(context(), START, unexpected))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_changes_of_hooks_and_of_the_tool_between_them_are_one_set_of_writes() -> None:
    ctx = context(log=["stored"])
    order = HookOrder([Hooks(before_tool=lambda ctx, event: ctx.state.log.append("before"))])
    await order.fire(ctx, BEFORE_TOOL, unexpected)
    ctx.state.log.append("tool")
    ctx.state.count = 1
    assert ctx.link.draft.writes("c1").ops == (
        Append(key="log", items=["before", "tool"], tool_call_id="c1"),
        Replace(key="count", value=1, tool_call_id="c1"),
    )


# ---- what is refused at definition


def test_a_misspelt_hook_is_refused_with_the_right_name() -> None:
    with pytest.raises(DefinitionError, match="no hook 'on_tool_start'; did you mean 'on_agent_start'"):

        class Audit(Hooks):
            def on_tool_start(self, ctx: RunContext, event: AgentStartEvent) -> None: ...

    with pytest.raises(TypeError, match="on_tool_start"):
        Hooks(on_tool_start=print)  # pyright: ignore[reportCallIssue]


def test_a_set_of_hooks_may_have_other_methods_and_its_own_constructor() -> None:
    class Audit(Hooks):
        def __init__(self, where: str) -> None:
            self.where = where

        def write(self) -> None: ...

        def on_message(self, ctx: RunContext, event: MessageEvent) -> None: ...

    audit = Audit("log")
    assert audit.implemented("on_message") is not None
    assert audit.implemented("on_agent_start") is None


# ---- around the work


def test_a_hook_around_something_is_a_plain_generator_that_has_a_known_name() -> None:
    async def asynchronous(ctx: RunInfo, event: AroundToolEvent) -> AsyncGenerator[None]:
        yield

    def plain(ctx: RunInfo, event: AroundToolEvent) -> Generator[None, AfterToolEvent, None]:
        yield

    given: Any = asynchronous
    with pytest.raises(DefinitionError, match="around_tool is async; write a plain generator function"):
        Agent(name="a", model=ScriptedModel(["Hi."]), hooks=Hooks(around_tool=given))
    Agent(name="a", model=ScriptedModel(["Hi."]), hooks=Hooks(around_tool=plain))
    with pytest.raises(DefinitionError, match="did you mean 'around_tool'"):
        type("Typo", (Hooks,), {"around_tols": plain})


def test_hooks_around_something_begin_in_order_and_end_in_reverse() -> None:
    heard: list[str] = []

    def around(name: str) -> Hooks[Any, Any]:
        def work(ctx: RunInfo, event: AroundToolEvent) -> Generator[None, AfterToolEvent, None]:
            heard.append(f"{name} begins")
            yield
            heard.append(f"{name} ends")

        return Hooks(around_tool=work)

    info = RunInfo(session_id="s", run_id="r", step=1, agent="a")
    order = HookOrder([around("outer"), Hooks(around_tool=lambda ctx, event: None), around("inner")])
    event = AroundToolEvent(tool_name="search", tool_call_id="c1", input={})
    with order.around(info, event, unexpected) as surroundings:
        assert not surroundings.begun
        surroundings.begin()
        heard.append("work")
        surroundings.outcome = START
    assert heard == ["outer begins", "inner begins", "work", "inner ends", "outer ends"]


async def test_an_object_that_stands_in_several_places_is_told_once() -> None:
    told: list[str] = []
    everywhere: Hooks[Any, Any] = Hooks(on_agent_start=lambda ctx, event: told.append("told"))
    order = ordered(parent=everywhere, executor=everywhere, agent=[everywhere], call=everywhere)
    await order.fire(context(), START, unexpected)
    assert told == ["told"]
