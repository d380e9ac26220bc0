"""Scenarios of agents that delegate to other agents: what children are given, and what their parents get back."""

import asyncio
import logging
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel, model_validator
from pydantic.errors import PydanticUserError

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.client_tools import client_tool
from helix_agents.agent.context import RunContext, RunInfo
from helix_agents.agent.failures import FailRun
from helix_agents.agent.hook_events import AfterSubAgentEvent, AgentSuspendedEvent, BeforeSubAgentEvent, HookEvent
from helix_agents.agent.hooks import Hooks
from helix_agents.agent.sub_agents import sub_agent_tool
from helix_agents.agent.tools import tool
from helix_agents.domain.chunks import StepDiscarded, SubagentEnd, SubagentStart, TextDelta, ToolEnd, ToolError
from helix_agents.domain.errors import ModelRefusedError, ModelUnavailableError
from helix_agents.domain.messages import ToolMessage
from helix_agents.domain.pending import AnswerRefused, ApprovalAnswer, ToolAnswer
from helix_agents.domain.rendering import surviving
from helix_agents.engine.services import EngineOptions
from helix_agents.llm.scripted import ScriptedModel, call, finish, reply
from helix_agents.ports.backend import Backend
from helix_agents.ports.llm import ModelEvent, TextPiece
from helix_agents.ports.state_store import StoreLimits
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.testing.contracts.executor.family import (
    Diary,
    agent,
    assert_well_told,
    children,
    delegate,
    deploy,
    lead,
    only_child,
    statuses,
    told,
    worker,
)
from helix_agents.testing.contracts.executor.stage import (
    SESSION,
    OpenExecutor,
    ScenarioContract,
    chunks_of,
    completed,
    failed,
    spoken,
    suspended,
    transcript,
)


def _picking(kind: type) -> Any:
    """A client tool that answers with a value of this type."""

    def pick() -> Any:
        """Pick one."""

    pick.__annotations__["return"] = kind
    return client_tool(pick)


class WornOut(BaseModel):
    """A state whose type is broken once it `is_worn`, which no other deploy's state repairs: opening a run with it
    fails."""

    is_worn: ClassVar[bool] = False
    age: int = 0

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_was_stored(cls, data: Any) -> Any:
        if data and cls.is_worn:
            raise PydanticUserError("worn out", code=None)
        return data


class Verdict(BaseModel):
    """What a reviewer hands in."""

    good: bool
    why: str


class Task(BaseModel):
    """What a reviewer is given."""

    title: str
    pages: int = 1


class Heavy(BaseModel):
    """More than a small store accepts."""

    text: str = "x" * 2_000


def boss(*delegations: Any, tools: list[Any], **fields: Any) -> AnyAgent:
    """Delegates once, and then is done."""
    return agent("boss", reply("Go. ", calls=list(delegations)), "Fine.", tools=tools, **fields)


class SubAgentsContract(ScenarioContract):
    """A delegated call is its own conversation; the parent sees its result, and readers see all of it."""

    async def test_the_last_text_of_a_child_is_the_result_of_the_call(self, helix: Executor, parts: Backend) -> None:
        handle = await helix.execute(
            boss(delegate("worker", "Do it", id="c"), tools=[worker(pauses=False).as_tool()]), "Hi", SESSION
        )
        assert await completed(handle) == "Fine."
        assert (await spoken(helix))[2] == "result subagent__worker#c: Deployed."
        (ref,) = await children(parts)
        assert (ref.status, ref.result, ref.tool_call_id, ref.mode) == ("completed", "Deployed.", "c", "ephemeral")
        assert (await spoken(helix, ref.sub_session_id))[0] == "user: Do it"

    async def test_a_structured_output_is_the_result_and_a_declared_input_is_what_the_child_is_told(
        self, helix: Executor, parts: Backend
    ) -> None:
        reviewer = agent("reviewer", finish({"good": True, "why": "short"}), output=Verdict)
        tools = [sub_agent_tool(reviewer, input=Task)]
        calls = [call("subagent__reviewer", {"title": "Tides"}, id="c"), call("subagent__reviewer", {}, id="d")]
        await completed(await helix.execute(boss(*calls, tools=tools), "Hi", SESSION))
        assert (await spoken(helix))[2:4] == [
            'result subagent__reviewer#c: {"good":true,"why":"short"}',
            "error subagent__reviewer#d: invalid_arguments",
        ]
        assert (await spoken(helix, await only_child(parts)))[0] == 'user: {"title":"Tides","pages":1}'

    async def test_a_child_inherits_user_and_expiry_and_nothing_else(self, helix: Executor, parts: Backend) -> None:
        child = worker(pauses=False)
        parent = boss(delegate("worker"), tools=[child.as_tool()])
        state = {"done": ["by the parent"]}
        given: dict[str, Any] = {"user_id": "ann", "expires_in": 3_600, "tags": ["t"], "metadata": {"k": "v"}}
        await completed(await helix.execute(parent, "Hi", SESSION, state=state, **given))
        root, below = await helix.sessions.get(SESSION), await helix.sessions.get(await only_child(parts))
        assert (below.user_id, below.expires_at) == ("ann", root.expires_at)
        assert (below.parent_session_id, below.root_session_id) == (SESSION, SESSION)
        assert (below.tags, below.metadata) == ((), {})
        assert below.custom_state == {"done": ["prod"]}
        assert root.custom_state == state

    async def test_the_hooks_of_a_parent_run_in_its_children_before_all_others(
        self, open_executor: OpenExecutor
    ) -> None:
        seen: list[str] = []

        def noting(name: str) -> Hooks:
            async def note(info: RunInfo, event: HookEvent) -> None:
                seen.append(f"{name} {event.hook} in {info.agent}")

            return Hooks(on_agent_start=note, before_sub_agent=note, after_sub_agent=note)

        child = worker(pauses=False, hooks=noting("child"))
        parent = boss(delegate("worker"), tools=[child.as_tool()], hooks=noting("parent"))
        everywhere = Hooks(on_agent_start=noting("executor").implemented("on_agent_start"))
        async with open_executor(hooks=everywhere) as helix:
            await completed(await helix.execute(parent, "Hi", SESSION))
        assert seen == [
            "executor on_agent_start in boss",
            "parent on_agent_start in boss",
            "parent before_sub_agent in boss",
            "parent on_agent_start in worker",
            "executor on_agent_start in worker",
            "child on_agent_start in worker",
            "parent after_sub_agent in boss",
        ]

    async def test_hooks_are_told_of_each_delegation_and_that_children_wait(self, helix: Executor) -> None:
        told_of: list[Any] = []

        async def note(_: RunInfo, event: Any) -> None:
            told_of.append(event)

        hooks = Hooks(before_sub_agent=note, after_sub_agent=note, on_agent_suspended=note)
        quick = agent("quick", "Quick.")
        await suspended(
            await helix.execute(
                boss(
                    delegate("quick", "Now", id="c"),
                    delegate("worker", id="d"),
                    tools=[quick.as_tool(), worker().as_tool()],
                ),
                "Hi",
                SESSION,
                hooks=hooks,
            )
        )
        before = [event for event in told_of if isinstance(event, BeforeSubAgentEvent)]
        assert sorted((event.tool_call_id, event.agent, event.input["message"]) for event in before) == [
            ("c", "quick", "Now"),
            ("d", "worker", "go"),
        ]
        (after,) = [event for event in told_of if isinstance(event, AfterSubAgentEvent)]
        assert (after.tool_call_id, after.status, after.result) == ("c", "completed", "Quick.")
        waits = [event.reason for event in told_of if isinstance(event, AgentSuspendedEvent)]
        assert waits == ["client_tool", "awaiting_children"]

    async def test_a_delegated_call_is_a_tool_to_hooks_and_each_is_told_once(self, helix: Executor) -> None:
        told_of: list[Any] = []

        async def note(ctx: RunContext[Diary, Any], event: Any) -> None:
            if ctx.agent == "boss":
                told_of.append(event)
                ctx.state.done.append(event.hook)

        hooks = Hooks(before_tool=note, before_sub_agent=note, after_sub_agent=note, after_tool=note)
        parent = boss(delegate("worker", id="d"), tools=[worker().as_tool()], state=Diary, hooks=hooks)
        await suspended(await helix.execute(parent, "Hi", SESSION))
        assert [event.hook for event in told_of] == ["before_tool", "before_sub_agent"]
        (waits,) = (await helix.list_pending()).items
        await helix.submit_tool_result(SESSION, waits.tool_call_id, ApprovalAnswer(approved=True))
        await completed(await helix.resume(parent, SESSION))
        names = ["before_tool", "before_sub_agent", "after_sub_agent", "after_tool"]
        assert [event.hook for event in told_of] == names
        assert (await helix.sessions.get(SESSION)).custom_state == {"done": names}
        before, after = told_of[0], told_of[-1]
        assert (before.tool_name, before.tool_call_id, before.input) == ("subagent__worker", "d", {"message": "go"})
        assert (after.tool_name, after.tool_call_id, after.input) == ("subagent__worker", "d", {"message": "go"})
        assert (after.result, after.error) == ("Deployed.", False)

    @pytest.mark.parametrize("hook", ["before_tool", "before_sub_agent", "after_sub_agent"])
    async def test_a_hook_around_a_delegation_may_fail_the_run_and_nobody_is_left_behind(
        self, helix: Executor, parts: Backend, hook: str
    ) -> None:
        async def refuse(*_: Any) -> None:
            raise FailRun("not today")

        given: dict[str, Any] = {hook: refuse}
        quick = agent("quick", "Quick.")
        parent = boss(
            delegate("quick"),
            delegate("worker"),
            tools=[quick.as_tool(), worker().as_tool()],
            hooks=Hooks(**given),
        )
        result = await failed(await helix.execute(parent, "Hi", SESSION))
        assert "not today" in result.error
        await told(parts, SESSION)
        assert (await helix.list_pending()).items == ()
        for ref in await children(parts):
            run = await parts.state.get_current_run(ref.sub_session_id)
            assert run is not None
            assert run.status in ("completed", "interrupted")
            assert ref.status != "running"

    async def test_a_child_that_fails_is_a_tool_error_and_its_siblings_go_on(
        self, helix: Executor, parts: Backend
    ) -> None:
        broken = agent("broken", ModelRefusedError("scripted", "no key"))
        parent = boss(
            delegate("broken", id="c"),
            delegate("worker", id="d"),
            tools=[broken.as_tool(), worker(pauses=False).as_tool()],
        )
        handle = await helix.execute(parent, "Hi", SESSION)
        chunks = await chunks_of(handle)
        assert await completed(handle) == "Fine."
        assert (await spoken(helix))[2:4] == [
            "error subagent__broken#c: sub_agent_failed",
            "result subagent__worker#d: Deployed.",
        ]
        ends = {chunk.tool_call_id: chunk.status for chunk in chunks if isinstance(chunk, SubagentEnd)}
        assert ends == {"c": "failed", "d": "completed"}
        assert sorted(ref.status for ref in await children(parts)) == ["completed", "failed"]

    async def test_a_child_whose_driver_breaks_fails_alone(
        self, helix: Executor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        parent = boss(
            delegate("lost", id="c"),
            delegate("worker", id="d"),
            tools=[agent("lost", "Never said.", state=WornOut).as_tool(), worker(pauses=False).as_tool()],
        )
        monkeypatch.setattr(WornOut, "is_worn", True)
        assert await completed(await helix.execute(parent, "Hi", SESSION)) == "Fine."
        assert [line.split(":")[0] for line in (await spoken(helix))[2:4]] == [
            "error subagent__lost#c",
            "result subagent__worker#d",
        ]

    async def test_a_child_that_cannot_be_started_is_a_tool_error_and_an_error_in_the_log(
        self, open_executor: OpenExecutor, parts: Backend, caplog: pytest.LogCaptureFixture
    ) -> None:
        parent = boss(
            delegate("heavy", id="c"),
            delegate("worker", id="d"),
            tools=[agent("heavy", "Never.", state=Heavy).as_tool(), worker(pauses=False).as_tool()],
        )
        with caplog.at_level(logging.ERROR):
            async with open_executor(limits=StoreLimits(state_bytes=1_000)) as helix:
                handle = await helix.execute(parent, "Hi", SESSION)
                chunks = await chunks_of(handle)
                assert await completed(handle) == "Fine."
                assert (await spoken(helix))[2:4] == [
                    "error subagent__heavy#c: sub_agent_dispatch_failed",
                    "result subagent__worker#d: Deployed.",
                ]
        assert [chunk.code for chunk in chunks if isinstance(chunk, ToolError)] == ["sub_agent_dispatch_failed"]
        assert [record.levelname for record in caplog.records if "subagent.dispatch_failed" in record.message] == [
            "ERROR"
        ]
        assert [ref.tool_call_id for ref in await children(parts)] == ["d"]

    async def test_a_child_that_cannot_be_driven_on_fails_alone_although_somebody_paused_it(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        async def pause(_: ModelEvent) -> None:
            await parts.state.compare_and_set_status(await only_child(parts), ["active"], "paused")

        wordy = agent("wordy", model=ScriptedModel(["x" * 3_000], pace=pause))
        parent = boss(delegate("wordy", id="c"), tools=[wordy.as_tool()])
        async with open_executor(limits=StoreLimits(message_bytes=2_000)) as helix:
            assert await completed(await helix.execute(parent, "Hi", SESSION)) == "Fine."
            assert (await spoken(helix))[2].startswith("error subagent__wordy#c: ")
        assert set((await statuses(parts)).values()) == {"completed completed", "failed failed"}

    async def test_a_child_that_takes_too_long_is_stopped_alone(self, helix: Executor, parts: Backend) -> None:
        async def never(_: ModelEvent) -> None:
            await asyncio.Event().wait()

        slow = agent("slow", model=ScriptedModel(["Never."], pace=never))
        tools = [sub_agent_tool(slow, timeout=0.05), worker(pauses=False).as_tool()]
        parent = boss(delegate("slow", id="c"), delegate("worker", id="d"), tools=tools)
        handle = await helix.execute(parent, "Hi", SESSION)
        assert await completed(handle) == "Fine."
        assert (await spoken(helix))[2:4] == [
            "error subagent__slow#c: sub_agent_timeout",
            "result subagent__worker#d: Deployed.",
        ]
        assert {ref.tool_call_id: ref.status for ref in await children(parts)} == {"c": "interrupted", "d": "completed"}

    async def test_an_agent_may_not_nest_deeper_than_the_limit(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        deepest = worker(pauses=False)
        middle = agent("middle", delegate("worker", id="call_0"), "Alone, then.", tools=[deepest.as_tool()])
        async with open_executor(options=EngineOptions(max_depth=1)) as helix:
            parent = boss(delegate("middle", id="c"), tools=[middle.as_tool()])
            assert await completed(await helix.execute(parent, "Hi", SESSION)) == "Fine."
            assert (await spoken(helix))[2] == "result subagent__middle#c: Alone, then."
            assert (await spoken(helix, await only_child(parts)))[2].endswith(": sub_agent_limit")

    @pytest.mark.parametrize("limit", ["max_children_per_step", "max_children_per_root"])
    async def test_calls_over_a_limit_are_tool_errors_that_name_it(
        self, open_executor: OpenExecutor, parts: Backend, limit: str
    ) -> None:
        async with open_executor(options=EngineOptions(**{limit: 2})) as helix:
            calls = [delegate("worker", id=f"c{number}") for number in range(3)]
            parent = boss(*calls, tools=[worker(pauses=False).as_tool()])
            assert await completed(await helix.execute(parent, "Hi", SESSION)) == "Fine."
            assert (await spoken(helix))[2:5] == [
                "result subagent__worker#c0: Deployed.",
                "result subagent__worker#c1: Deployed.",
                "error subagent__worker#c2: sub_agent_limit",
            ]
            refused = (await transcript(helix))[4]
            assert isinstance(refused, ToolMessage)
            assert "2 " in str(refused.content)
        assert len(await children(parts)) == 2

    async def test_what_children_say_is_in_the_stream_in_order_and_says_whose_it_is(self, helix: Executor) -> None:
        handle = await helix.execute(lead(pauses=False), "Hi", SESSION)
        chunks = await chunks_of(handle)
        assert_well_told(chunks)
        starts = [chunk for chunk in chunks if isinstance(chunk, SubagentStart)]
        assert sorted(chunk.child_agent_type for chunk in starts) == ["planner", "worker", "worker"]
        for start in starts:
            said = [chunk for chunk in chunks if chunk.session_id == start.child_session_id]
            assert {chunk.parent_tool_call_id for chunk in said} == {start.tool_call_id}
            assert {chunk.agent_type for chunk in said} == {start.child_agent_type}
            ends = [chunk for chunk in chunks if getattr(chunk, "tool_call_id", None) == start.tool_call_id]
            assert [type(chunk) for chunk in ends][-2:] == [SubagentEnd, ToolEnd]
        by_worker = [chunk.delta for chunk in chunks if isinstance(chunk, TextDelta) and chunk.agent_type == "worker"]
        assert "".join(by_worker).count("Deployed.") == 2
        assert "".join([piece async for piece in handle.text()]) == "I delegate. All done."

    async def test_a_child_whose_model_is_asked_again_discards_only_what_it_said_itself(
        self, open_executor: OpenExecutor
    ) -> None:
        broke = 0

        async def breaks(event: ModelEvent) -> None:
            nonlocal broke
            if isinstance(event, TextPiece) and not broke:
                broke += 1
                return
            if broke == 1:
                broke += 1
                raise ModelUnavailableError("scripted", "the connection broke")

        shaky = agent("shaky", model=ScriptedModel(["A long answer, told in pieces."], pace=breaks))
        parent = boss(delegate("shaky"), delegate("worker"), tools=[shaky.as_tool(), worker(pauses=False).as_tool()])
        async with open_executor(options=EngineOptions(first_retry_seconds=0.001)) as helix:
            handle = await helix.execute(parent, "Hi", SESSION)
            chunks = await chunks_of(handle)
            assert await completed(handle) == "Fine."
        assert broke == 2
        assert any(isinstance(chunk, StepDiscarded) for chunk in chunks)
        assert_well_told(chunks)
        said: dict[str, str] = {}
        for chunk in surviving(chunks):
            if isinstance(chunk, TextDelta):
                said[chunk.agent_type] = said.get(chunk.agent_type, "") + chunk.delta
        assert said == {
            "boss": "Go. Fine.",
            "shaky": "A long answer, told in pieces.",
            "worker": "I deploy. Deployed.",
        }

    async def test_usage_adds_up_over_the_tree(self, helix: Executor, parts: Backend) -> None:
        handle = await helix.execute(lead(pauses=False), "Hi", SESSION)
        await completed(handle)
        everything = await handle.usage()
        assert everything.sessions == 4
        below = [await parts.usage.get_usage_rollup(ref.sub_session_id) for ref in await children(parts)]
        counted = {(total.source_type, total.source_name): total.calls for total in everything.sources}
        assert counted == {
            ("tokens", "scripted"): 8,
            ("tool", "deploy"): 2,
            ("tool", "locate"): 1,
            ("subagent", "planner"): 1,
            ("subagent", "worker"): 2,
        }
        assert everything.tokens.total > sum(rollup.tokens.total for rollup in below) > 0

    async def test_deleting_a_root_deletes_its_tree(self, helix: Executor, parts: Backend) -> None:
        await suspended(await helix.execute(lead(), "Hi", SESSION))
        assert (await helix.sessions.list()).total == 4
        await helix.sessions.delete(SESSION)
        assert (await helix.sessions.list()).total == 0
        assert (await helix.list_pending()).items == ()
        assert await parts.streams.get_stream_info(SESSION) is None

    async def test_a_child_has_the_tools_of_its_own_agent_only(self, helix: Executor) -> None:
        @tool
        async def secret() -> str:
            """Known to the parent."""
            return "s"

        curious = agent("curious", call("secret", {}, id="call_0"), "Hm.", tools=[deploy])
        parent = boss(delegate("curious", id="c"), tools=[curious.as_tool(), secret])
        await completed(await helix.execute(parent, "Hi", SESSION))
        newest = (await helix.sessions.list()).items
        child = next(each.session_id for each in newest if each.session_id != SESSION)
        assert (await spoken(helix, child))[2].endswith(": unknown_tool")

    async def test_agents_that_delegate_to_others_of_the_same_name_each_get_their_own(self, helix: Executor) -> None:
        for words in ("One.", "Two."):
            boss = agent(
                f"boss-{words[:3]}", delegate("worker", id="w"), "Fine.", tools=[agent("worker", words).as_tool()]
            )
            await completed(await helix.execute(boss, "Go", boss.name))
            assert f"result subagent__worker#w: {words}" in await spoken(helix, boss.name)

    async def test_an_answer_is_checked_by_the_tool_of_the_agent_that_is_meant(self, helix: Executor) -> None:
        for kind in (int, str):
            pick = _picking(kind)
            boss = agent(
                f"boss-{kind.__name__}",
                delegate("worker", id="w"),
                "Fine.",
                tools=[agent("worker", call("pick", {}, id=f"p-{kind.__name__}"), "Picked.", tools=[pick]).as_tool()],
            )
            await suspended(await helix.execute(boss, "Go", boss.name))
            (waiting,) = (await helix.sessions.get(boss.name)).pending_client_tool_calls
            wrong, right = ("three", 3) if kind is int else (3, "three")
            assert isinstance(
                await helix.submit_tool_result(boss.name, waiting, ToolAnswer(result=wrong)), AnswerRefused
            )
            await helix.submit_tool_result(boss.name, waiting, ToolAnswer(result=right))
            assert await completed(await helix.resume(boss, boss.name)) == "Fine."
