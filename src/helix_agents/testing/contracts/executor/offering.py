"""Scenarios of what a model is offered in a step: tools that are not always there, and whether it has to call one."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
from pydantic import BaseModel

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.availability import AvailabilityPredicate
from helix_agents.agent.client_tools import client_tool
from helix_agents.agent.compaction import Compaction
from helix_agents.agent.context import RunContext, ToolContext
from helix_agents.agent.failures import FailRun
from helix_agents.agent.tools import Tool, tool
from helix_agents.domain.errors import ModelUnavailableError
from helix_agents.domain.pending import ApprovalAnswer, ToolAnswer
from helix_agents.domain.writes import Replace, StepWrites
from helix_agents.engine.services import EngineOptions
from helix_agents.llm.scripted import ScriptedModel, call, finish, reply
from helix_agents.memory.learning import MemoryGeneration
from helix_agents.memory.memory import Memory
from helix_agents.ports.backend import Backend
from helix_agents.ports.llm import ModelRequest, ModelSettings
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.testing.contracts.executor.stage import (
    SESSION,
    Gate,
    OpenExecutor,
    ScenarioContract,
    completed,
    failed,
    result_at,
    scripted,
    spoken,
    suspended,
    transcript,
)


class Vault(BaseModel):
    """A vault that is open or not, and what was taken from it."""

    open: bool = False
    taken: list[str] = []


class Report(BaseModel):
    """What an agent hands in."""

    title: str


@dataclass(frozen=True)
class Staff:
    """Who may do what, as a service of the process knows it."""

    keepers: tuple[str, ...]


def is_open(ctx: RunContext[Vault]) -> bool:
    """Whether the vault is open."""
    return ctx.state.open


@tool
async def unlock(ctx: ToolContext[Vault]) -> str:
    """Open the vault."""
    ctx.state.open = True
    return "open"


@tool
async def lock(ctx: ToolContext[Vault]) -> str:
    """Close the vault."""
    ctx.state.open = False
    return "closed"


@tool(available=is_open)
async def take(ctx: ToolContext[Vault], what: str = "gold") -> str:
    """Take something out of the vault."""
    ctx.state.taken.append(what)
    return f"took {what}"


@tool(require_approval=True, available=is_open)
async def sell(ctx: ToolContext[Vault]) -> str:
    """Sell what is in the vault."""
    ctx.state.taken.append("all")
    return "sold"


@client_tool(available=is_open)
def photograph() -> str:
    """Let the client photograph the vault."""
    raise NotImplementedError


def _agent(*script: Any, **fields: Any) -> AnyAgent:
    return scripted(script, fields, name="guard", tools=[take, unlock, lock], state=Vault)


def _model(agent: AnyAgent) -> ScriptedModel:
    return cast("ScriptedModel", agent.model)


def _offered(agent: AnyAgent) -> list[str]:
    """The tools of each request, in the order in which the model was shown them."""
    return [" ".join(each.name for each in asked.tools) for asked in _model(agent).requests]


def _choices(agent: AnyAgent) -> list[str | None]:
    """The tool choice of each request."""
    return [asked.request.settings.tool_choice for asked in _model(agent).requests]


def _only(available: AvailabilityPredicate, name: str = "work") -> Tool[..., Any]:
    @tool(name=name, available=available)
    async def work() -> str:
        """Work."""
        return "worked"

    return work


def _forced(choice: str, *script: Any, **fields: Any) -> AnyAgent:
    return _agent(*script, settings=ModelSettings(tool_choice=choice), **{"tools": [unlock, lock], **fields})


class OfferingContract(ScenarioContract):
    """What a model may call is decided before it is asked, recorded with its reply, and never decided again."""

    async def test_a_tool_is_offered_in_the_steps_in_which_its_function_says_so(self, helix: Executor) -> None:
        agent = _agent(call("unlock"), call("take"), call("lock"), "Done.")
        assert await completed(await helix.execute(agent, "Go", SESSION)) == "Done."
        assert _offered(agent) == ["unlock lock", "take unlock lock", "take unlock lock", "unlock lock"]
        assert (await helix.sessions.get(SESSION)).custom_state == {"open": False, "taken": ["gold"]}

    async def test_a_call_of_a_tool_that_was_not_offered_is_answered_and_never_carried_out(
        self, helix: Executor
    ) -> None:
        calls = reply(calls=[call("take", "no arguments"), call("fly"), call("unlock")])
        agent = _agent(calls, call("take"), "Done.", tools=[take, sell, unlock, lock])
        assert await completed(await helix.execute(agent, "Go", SESSION)) == "Done."
        assert (await spoken(helix))[2:5] == [
            "error take#call_1_1: unknown_tool",
            "error fly#call_1_2: unknown_tool",
            "result unlock#call_1_3: open",
        ]
        said = await transcript(helix)
        assert result_at(said, 2).content == "The tool 'take' is not available now. Available: lock, unlock."
        assert result_at(said, 3).content == "There is no tool 'fly'. Available: lock, unlock."
        assert (await helix.sessions.get(SESSION)).custom_state["taken"] == ["gold"]

    async def test_a_model_that_insists_on_what_it_was_not_offered_fails_its_run(self, helix: Executor) -> None:
        agent = _agent(*[call("take")] * 3, "Never.", retries=1)
        failure = await failed(await helix.execute(agent, "Go", SESSION))
        assert failure.code == "tool_retries_exhausted"
        assert _offered(agent) == ["unlock lock"] * 2

    async def test_the_function_knows_the_run_and_may_wait_for_something(self, open_executor: OpenExecutor) -> None:
        @asynccontextmanager
        async def staff(session_id: str, user_id: str | None) -> AsyncGenerator[Staff]:
            yield Staff(keepers=("ann",))

        async def may_keep(ctx: RunContext[Vault, Staff]) -> bool:
            ctx.record_usage("permissions")
            return ctx.user_id in ctx.deps.keepers and ctx.metadata.get("shift") == "night" and ctx.step < 2

        async with open_executor(deps=staff) as helix:
            for user, shift, offered in (("ann", "night", "work"), ("ann", "day", ""), ("bob", "night", "")):
                agent = _agent(call("lock"), "Done.", tools=[_only(may_keep), lock])
                session = f"{user}-{shift}"
                handle = await helix.execute(agent, "Go", session, user_id=user, metadata={"shift": shift})
                assert await completed(handle) == "Done."
                assert _offered(agent) == [f"{offered} lock".strip(), "lock"]
                counted = {each.source_name: each.calls for each in (await handle.usage()).sources}
                assert counted["permissions"] == 2

    async def test_tools_that_share_a_function_agree_and_it_is_asked_once_for_each_step(self, helix: Executor) -> None:
        asked: list[int] = []

        def every_other(ctx: RunContext[Any]) -> bool:
            asked.append(ctx.step)
            return len(asked) % 2 == 1

        agent = _agent(call("work"), "Done.", tools=[_only(every_other), _only(every_other, "rest")])
        assert await completed(await helix.execute(agent, "Go", SESSION)) == "Done."
        assert (_offered(agent), asked) == (["work rest", ""], [1, 2])

    async def test_a_step_whose_model_is_asked_again_offers_the_same_tools(self, open_executor: OpenExecutor) -> None:
        asked: list[int] = []

        def at_first(ctx: RunContext[Any]) -> bool:
            asked.append(ctx.step)
            return len(asked) == 1

        script = [ModelUnavailableError("scripted", "the connection broke"), call("work"), "Done."]
        agent = _agent(*script, tools=[_only(at_first)])
        async with open_executor(options=EngineOptions(first_retry_seconds=0.001)) as helix:
            assert await completed(await helix.execute(agent, "Go", SESSION)) == "Done."
        assert _offered(agent) == ["work", "work", ""]

    async def test_an_approved_call_runs_although_its_tool_is_not_offered_any_more(
        self, open_executor: OpenExecutor
    ) -> None:
        def agent() -> AnyAgent:
            return _agent(call("unlock"), call("sell"), call("sell"), "Done.", tools=[unlock, sell])

        async with open_executor() as first:
            (waiting,) = (await suspended(await first.execute(agent(), "Go", SESSION))).pending
        async with open_executor() as second:
            await second.sessions.update_state(SESSION, StepWrites(ops=(Replace(key="open", value=False),)))
            await second.submit_tool_result(SESSION, waiting.tool_call_id, ApprovalAnswer(approved=True))
            resumed = agent()
            assert await completed(await second.resume(resumed, SESSION)) == "Done."
            assert _offered(resumed) == ["unlock", "unlock"]
            assert (await spoken(second))[4:7] == [
                "result sell#call_2_1: sold",
                "assistant: [sell#call_3_1]",
                "error sell#call_3_1: unknown_tool",
            ]
            assert (await second.sessions.get(SESSION)).custom_state["taken"] == ["all"]

    async def test_a_client_and_a_sub_agent_finish_what_they_were_asked_while_it_was_offered(
        self, open_executor: OpenExecutor
    ) -> None:
        def agent() -> AnyAgent:
            teller = scripted([call("pay"), "Paid."], {}, name="teller", description="Pays.", tools=[pay])
            calls = reply(calls=[call("photograph"), call("subagent__teller", {"message": "Pay."})])
            tools = [unlock, photograph, teller.as_tool(available=is_open)]
            return _agent(call("unlock"), calls, "Done.", tools=tools)

        @tool(require_approval=True)
        async def pay() -> str:
            """Pay."""
            return "paid"

        async with open_executor() as first:
            begun = agent()
            pending = (await suspended(await first.execute(begun, "Go", SESSION))).pending
            assert _offered(begun) == ["unlock", "unlock photograph subagent__teller"]
        async with open_executor() as second:
            await second.sessions.update_state(SESSION, StepWrites(ops=(Replace(key="open", value=False),)))
            for waiting in pending:
                is_approval = waiting.tool_name == "pay"
                answer = ApprovalAnswer(approved=True) if is_approval else ToolAnswer(result="a picture")
                await second.submit_tool_result(SESSION, waiting.tool_call_id, answer)
            resumed = agent()
            assert await completed(await second.resume(resumed, SESSION)) == "Done."
            assert _offered(resumed) == ["unlock"]
            assert (await spoken(second))[4:6] == [
                "result photograph#call_2_1: a picture",
                "result subagent__teller#call_2_2: Paid.",
            ]

    async def test_a_call_whose_process_died_runs_although_its_tool_is_not_offered_any_more(
        self, open_executor: OpenExecutor
    ) -> None:
        gate, offers = Gate(), [True]

        @tool(effect="once", unknown_outcome="retry", available=lambda ctx: bool(offers))
        async def work() -> str:
            """Work."""
            await gate.wait()
            return "worked"

        agent = _agent(call("work"), "Done.", tools=[work, lock])
        async with open_executor(grace=0, agents=[agent]) as dying:
            await dying.execute(agent, "Go", SESSION)
            await gate.until_reached()
        gate.opened.set()
        offers.clear()
        async with open_executor(agents=[agent]) as other:
            await other.recover()
            handle = await other.get_handle(agent, SESSION)
            assert handle is not None
            assert await completed(handle) == "Done."
            assert (await spoken(other))[2] == "result work#call_1_1: worked"
        assert _offered(agent) == ["work lock", "lock"]

    async def test_a_function_that_raises_fails_the_run_and_a_retry_goes_on(self, open_executor: OpenExecutor) -> None:
        broken = [True]

        def ask(ctx: RunContext[Vault]) -> bool:
            if broken and ctx.step == 2:
                raise RuntimeError("no permissions today")
            return ctx.state.open

        agent = _agent(call("unlock"), call("work"), "Done.", tools=[unlock, _only(ask)])
        async with open_executor() as helix:
            failure = await failed(await helix.execute(agent, "Go", SESSION))
            assert (failure.code, failure.error) == ("internal_error", "RuntimeError: no permissions today")
            assert (await spoken(helix))[-1] == "result unlock#call_1_1: open"
        broken.clear()
        async with open_executor() as helix:
            assert await completed(await helix.retry(agent, SESSION)) == "Done."
        assert _offered(agent) == ["unlock", "unlock work", "unlock work"]

    async def test_a_function_may_fail_the_run(self, helix: Executor) -> None:
        def refuse(ctx: RunContext[Any]) -> bool:
            raise FailRun("the vault is under guard")

        failure = await failed(await helix.execute(_agent("Never.", tools=[_only(refuse)]), "Go", SESSION))
        assert (failure.code, failure.error) == ("hook_failed_run", "the vault is under guard")

    async def test_a_tool_that_finishes_may_come_and_go_and_the_output_can_always_be_handed_in(
        self, helix: Executor
    ) -> None:
        @tool(finish_with=True, available=is_open)
        async def publish(title: str) -> Report:
            """Publish the report."""
            return Report(title=title)

        titled = {"title": "Tides"}
        tools = [publish, unlock]
        agent = _agent(call("publish", titled), call("unlock"), call("publish", titled), tools=tools, output=Report)
        assert await completed(await helix.execute(agent, "Go", SESSION)) == Report(title="Tides")
        assert _offered(agent) == ["unlock __finish__", "unlock __finish__", "publish unlock __finish__"]
        nothing = _agent(finish(titled), tools=[publish], output=Report)
        assert await completed(await helix.execute(nothing, "Go")) == Report(title="Tides")
        assert _offered(nothing) == ["__finish__"]

    @pytest.mark.parametrize("choice", ["required", "unlock"])
    async def test_a_model_has_to_call_a_tool_until_one_has_answered_in_each_turn(
        self, helix: Executor, choice: str
    ) -> None:
        bad = call("unlock", {"how": "gently"})
        agent = _forced(choice, bad, call("unlock"), call("lock"), "Done.", call("unlock"), "Again.")
        assert await completed(await helix.execute(agent, "Go", SESSION)) == "Done."
        assert await completed(await helix.execute(agent, "Again", SESSION)) == "Again."
        # A call that is sent back for correction is no answer yet.
        assert _choices(agent) == [choice, choice, None, None, choice, None]

    async def test_an_answer_from_outside_leaves_the_model_free_and_a_message_instead_does_not(
        self, open_executor: OpenExecutor
    ) -> None:
        def agent() -> AnyAgent:
            return _forced("sell", call("sell"), "Sold.", call("sell"), "Sold again.", tools=[sold])

        @tool(name="sell", require_approval=True)
        async def sold() -> str:
            """Sell."""
            return "sold"

        async with open_executor() as first:
            (waiting,) = (await suspended(await first.execute(agent(), "Go", SESSION))).pending
            await first.submit_tool_result(SESSION, waiting.tool_call_id, ApprovalAnswer(approved=False))
        async with open_executor() as second:
            resumed = agent()
            assert await completed(await second.resume(resumed, SESSION)) == "Sold."
            assert _choices(resumed) == [None]
            await suspended(await second.execute(resumed, "Again", SESSION))
            assert _choices(resumed) == [None, "sell"]
        async with open_executor() as third:
            other = _forced("sell", "Sold.", "Sold.", "Sold.", "As you like.", tools=[sold])
            assert await completed(await third.execute(other, "Rather not", SESSION)) == "As you like."
            assert _choices(other) == ["sell"]

    async def test_a_retry_remembers_that_a_tool_has_answered(self, helix: Executor) -> None:
        agent = _forced("required", call("unlock"), call("lock"), "Done.", max_steps=1)
        assert (await failed(await helix.execute(agent, "Go", SESSION))).code == "max_steps"
        assert await completed(await helix.retry(replace(agent, max_steps=3), SESSION)) == "Done."
        assert _choices(agent) == ["required", None, None]

    async def test_an_agent_with_an_output_has_to_call_tools_until_it_is_handed_in(self, helix: Executor) -> None:
        agent = _forced("required", call("unlock"), call("lock"), finish({"title": "Tides"}), output=Report)
        assert await completed(await helix.execute(agent, "Go", SESSION)) == Report(title="Tides")
        assert _choices(agent) == ["required"] * 3

    async def test_a_tool_that_is_not_offered_is_not_demanded(self, helix: Executor) -> None:
        for choice, chosen in (("take", [None, None]), ("required", ["required", None])):
            agent = _forced(choice, call("unlock"), "Done.", tools=[take, unlock])
            assert await completed(await helix.execute(agent, "Go")) == "Done."
            assert _choices(agent) == chosen
        bare = _forced("required", "Nothing to call.", tools=[take])
        assert await completed(await helix.execute(bare, "Go")) == "Nothing to call."
        assert _choices(bare) == [None]

    async def test_no_tools_at_all_is_meant_for_every_step(self, helix: Executor) -> None:
        agent = _forced("none", call("unlock"), "Done.")
        # What a model calls nevertheless is carried out: the choice is for the provider to enforce.
        assert await completed(await helix.execute(agent, "Go", SESSION)) == "Done."
        assert _choices(agent) == ["none", "none"]

    async def test_a_summary_is_asked_for_without_a_choice_of_tools(self, helix: Executor) -> None:
        def answer(request: ModelRequest) -> Any:
            return "They spoke of the vault." if not request.tools else call("unlock")

        agent = _forced("unlock", model=ScriptedModel(answer), max_steps=2)
        agent = replace(agent, compaction=Compaction(above_tokens=30, keep_tokens=5))
        for _ in range(2):
            await failed(await helix.execute(agent, "Go " + "on " * 100, SESSION))
        asked = [(bool(each.tools), each.request.settings.tool_choice) for each in _model(agent).requests]
        assert (False, None) in asked
        assert all(choice is None for tools, choice in asked if not tools)

    async def test_memories_are_made_without_a_choice_of_tools(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        if parts.memories is None:
            return

        def answer(request: ModelRequest) -> Any:
            return call("unlock") if request.settings.tool_choice else "Done."

        memory = Memory(generation=MemoryGeneration())
        agent = _forced("unlock", model=ScriptedModel(answer), memory=memory)
        async with open_executor(memories=parts.memories) as helix:
            await completed(await helix.execute(agent, "Go", SESSION, user_id="ann"))
        assert _offered(agent)[-1] == "remember"
        assert _choices(agent) == ["unlock", None, None]
