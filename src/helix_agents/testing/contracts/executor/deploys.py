"""Scenarios of a deploy in between: other deps, another version of the agent, tools that changed or were removed."""

import asyncio
import dataclasses
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import BaseModel

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.client_tools import client_tool
from helix_agents.agent.companions import CompanionMode, PersistentAgent
from helix_agents.agent.context import ToolContext
from helix_agents.agent.sub_agents import sub_agent_tool
from helix_agents.agent.tools import tool
from helix_agents.domain.checkpoints import BEGINNING
from helix_agents.domain.errors import StateSchemaChangedError, StateSizeExceededError
from helix_agents.domain.pending import ApprovalAnswer, PendingCall, PendingFilter, ToolAnswer
from helix_agents.domain.sessions import BranchPoint
from helix_agents.domain.writes import Replace, StepWrites
from helix_agents.llm.scripted import ScriptedModel, call, finish, reply
from helix_agents.ports.backend import Backend
from helix_agents.ports.state_store import StoreLimits
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.runtimes.executor.handle import RunHandle
from helix_agents.runtimes.in_process.executor import Executor as InProcess
from helix_agents.testing.contracts.executor.family import (
    agent,
    answer_to,
    assert_well_told,
    children,
    delegate,
    statuses,
    worker,
)
from helix_agents.testing.contracts.executor.household import (
    DEPLOYING,
    WORKING,
    about,
    boss,
    busy,
    careful,
    helper,
    notices,
    only_companion,
    results,
    send,
    spawn,
    until_ended,
    waiting_for_helper,
)
from helix_agents.testing.contracts.executor.stage import (
    SESSION,
    Gate,
    OpenExecutor,
    ScenarioContract,
    completed,
    failed,
    runs_of,
    scripted,
    spoken,
    suspended,
    until,
)
from helix_agents.testing.contracts.executor.tools import MuteError


class OldState(BaseModel):
    """The state of version 1."""

    notes: list[str] = []
    owner: str = "nobody"


class NewState(BaseModel):
    """The state of version 2: one field has a new name, one is new."""

    entries: list[str] = []
    owner: str = "nobody"
    language: str = "en"


class ChangedState(BaseModel):
    """A state that stored data does not fit."""

    notes: dict[str, str] = {}


class Titled(BaseModel):
    """An output."""

    title: str


class Headed(BaseModel):
    """Another one."""

    heading: str


SCRIPT = (
    reply("Paying.", calls=[call("pay", {"amount": 5}), call("locate", {"city": "Rome"}), call("note", {"text": "x"})]),
    "Done.",
)


@client_tool
def locate(city: str) -> str:
    """Where the client is."""
    raise NotImplementedError


def _old() -> AnyAgent:
    @tool
    async def note(ctx: ToolContext[OldState], text: str) -> str:
        """Write something down."""
        ctx.state.notes.append(text)
        return "noted"

    @tool(require_approval=True)
    async def pay(ctx: ToolContext[OldState], amount: int) -> str:
        """Pay."""
        ctx.state.notes.append(f"paid {amount}")
        return f"paid {amount}"

    return Agent(name="clerk", model=ScriptedModel(SCRIPT), tools=[note, pay, locate], state=OldState)


def _renamed(old: dict[str, Any], from_version: int) -> dict[str, Any]:
    assert from_version == 1
    return {"entries": old.pop("notes"), **old}


def _grown(old: dict[str, Any], from_version: int) -> dict[str, Any]:
    return {**_renamed(old, from_version), "owner": "ann" * 1_000}


def _new(**fields: Any) -> AnyAgent:
    @tool
    async def note(ctx: ToolContext[NewState], text: str) -> str:
        """Write something down."""
        ctx.state.entries.append(text)
        return "noted"

    @tool(require_approval=True)
    async def pay(ctx: ToolContext[NewState], amount: float, currency: str = "EUR") -> str:
        """Pay, in a currency."""
        ctx.state.entries.append(f"paid {amount:g} {currency}")
        return f"paid {amount:g} {currency} ({ctx.state.language})"

    tools = [note, pay, locate]
    return scripted(SCRIPT, fields, name="clerk", version=2, tools=tools, state=NewState, migrate_state=_renamed)


def _noting(agent: AnyAgent) -> AnyAgent:
    """The agent, as one that takes a note in each turn."""
    steps = (call("note", {"text": "x"}), "Done.")
    return dataclasses.replace(agent, model=ScriptedModel(lambda request: steps[request.step - 1]))


async def _park(open_executor: OpenExecutor) -> None:
    """Suspend under version 1, in a process that then ends, and answer from another one."""
    async with open_executor() as helix:
        await suspended(await helix.execute(_old(), "Go", SESSION, state={"owner": "ann"}))
    async with open_executor() as helix:
        await helix.submit_tool_result(SESSION, "call_1_1", ApprovalAnswer(approved=True))
        await helix.submit_tool_result(SESSION, "call_1_2", ToolAnswer(result="41.9 N"))


def _above(child: AnyAgent) -> AnyAgent:
    """An agent that delegates its work to another one."""
    script = [call("subagent__clerk", {"message": "Pay"}, id="delegated"), "Done without."]
    return Agent(name="boss", model=ScriptedModel(script), tools=[sub_agent_tool(child, description="Pays.")])


async def _park_below(open_executor: OpenExecutor) -> None:
    """Leave a session whose child waited, and has its answers."""
    async with open_executor() as helix:
        result = await suspended(await helix.execute(_above(_old()), "Go", SESSION))
        for waiting in result.pending:
            answer = ApprovalAnswer(approved=True) if waiting.kind == "approval" else ToolAnswer(result="41.9 N")
            await helix.submit_tool_result(SESSION, waiting.tool_call_id, answer)


async def _go_on(helix: Executor, agent: AnyAgent, waiting: PendingCall, how: str) -> RunHandle[Any]:
    """Continue a session in which a call waits."""
    if how == "with a message":
        return await helix.execute(agent, "Never mind", SESSION)
    await helix.submit_tool_result(SESSION, waiting.tool_call_id, answer_to(waiting))
    return await helix.resume(agent, SESSION)


class DeploysContract(ScenarioContract):
    """Suspended work survives a deploy, and a deploy that does not fit leaves everything as it was."""

    async def test_deps_are_opened_once_per_run_in_the_process_that_runs_it(self, open_executor: OpenExecutor) -> None:
        events: list[str] = []

        @tool(require_approval=True)
        async def query(ctx: ToolContext[Any, str]) -> str:
            """Query."""
            return f"asked {ctx.deps}"

        def agent() -> AnyAgent:
            return Agent(
                name="db",
                model=ScriptedModel([call("query"), call("query"), "Done."]),
                tools=[query],
                instructions=lambda ctx: f"You use {ctx.deps}.",
            )

        def provider(name: str) -> Any:
            @asynccontextmanager
            async def open_deps(session_id: str, user_id: str | None) -> AsyncGenerator[str]:
                events.append(f"open {name} for {session_id} {user_id}")
                yield name
                events.append(f"close {name}")

            return open_deps

        async with open_executor(deps=provider("pool-1")) as first:
            await suspended(await first.execute(agent(), "Go", SESSION, user_id="ann"))
        async with open_executor(deps=provider("pool-2")) as second:
            await second.submit_tool_result(SESSION, "call_1_1", ApprovalAnswer(approved=True))
            await suspended(await second.resume(agent(), SESSION))
            assert (await second.sessions.get(SESSION)).step_count == 2
            await second.submit_tool_result(SESSION, "call_2_1", ApprovalAnswer(approved=True))
            await completed(await second.resume(agent(), SESSION))
            assert [line for line in await spoken(second) if line.startswith("result")] == [
                "result query#call_1_1: asked pool-2",
                "result query#call_2_1: asked pool-2",
            ]
        assert events == [
            "open pool-1 for s-1 ann",
            "close pool-1",
            *["open pool-2 for s-1 ann", "close pool-2"] * 2,
        ]

    @pytest.mark.parametrize(
        ("problem", "text"),
        [
            (ConnectionError("no database"), "The deps could not be opened: ConnectionError: no database"),
            (FileNotFoundError("caf\udce9.db"), "caf\\udce9.db"),
            (MuteError(), "no text, because of TypeError"),
            (asyncio.CancelledError(), "cancelled itself"),
        ],
        ids=["plain", "file name", "mute", "cancelled"],
    )
    async def test_deps_that_cannot_be_opened_fail_the_run_with_a_reason(
        self, open_executor: OpenExecutor, problem: BaseException, text: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        # Not every reporter of tests can carry such a text.
        caplog.set_level(logging.CRITICAL, logger="helix_agents")

        @asynccontextmanager
        async def broken(session_id: str, user_id: str | None) -> AsyncGenerator[str]:
            raise problem
            yield ""

        async with open_executor(deps=broken) as helix:
            result = await failed(await helix.execute(_old(), "Go", SESSION))
            assert text in result.error
        async with open_executor() as helix:
            await suspended(await helix.retry(_old(), SESSION))

    @pytest.mark.parametrize("problem", [ConnectionError("already closed"), asyncio.CancelledError()], ids=repr)
    async def test_deps_that_cannot_be_closed_change_nothing_about_the_run(
        self, open_executor: OpenExecutor, problem: BaseException
    ) -> None:
        @asynccontextmanager
        async def stubborn(session_id: str, user_id: str | None) -> AsyncGenerator[str]:
            yield "pool"
            raise problem

        async with open_executor(deps=stubborn) as helix:
            waiting = (await suspended(await helix.execute(_old(), "Go", SESSION))).pending
            await helix.idle()
            assert len((await helix.list_pending()).items) == len(waiting) == 2

    @pytest.mark.parametrize("entry", ["resume", "execute"])
    async def test_a_run_that_cannot_go_on_without_its_deps_loses_no_answer_no_result_and_no_message(
        self, open_executor: OpenExecutor, entry: str
    ) -> None:
        @tool
        async def work() -> str:
            """Work."""
            return "worked"

        @client_tool
        def locate(city: str) -> str:
            """Where the client is."""
            raise NotImplementedError

        def cast() -> AnyAgent:
            batch = reply(calls=[call("work"), call("locate", {"city": "Rome"}), call("locate", {"city": "Oslo"})])
            return scripted([batch, "Done."], {}, name="agent", tools=[work, locate])

        @asynccontextmanager
        async def broken(session_id: str, user_id: str | None) -> AsyncGenerator[str]:
            raise ConnectionError("no database")
            yield ""

        async with open_executor() as helix:
            await suspended(await helix.execute(cast(), "Go", SESSION))
            await helix.submit_tool_result(SESSION, "call_1_2", ToolAnswer(result="there"))
        async with open_executor(deps=broken) as helix:
            going = helix.resume(cast(), SESSION) if entry == "resume" else helix.execute(cast(), "Well?", SESSION)
            await failed(await going)
        async with open_executor() as helix:
            assert await completed(await helix.retry(cast(), SESSION)) == "Done."
            assert (await spoken(helix))[2:] == [
                "result work#call_1_1: worked",
                "result locate#call_1_2: there",
                "error locate#call_1_3: run_stopped",
                *([] if entry == "resume" else ["user: Well?"]),
                "assistant: Done.",
            ]

    async def test_an_opener_of_deps_that_gives_no_context_manager_is_told_how_to_be_one(
        self, open_executor: OpenExecutor
    ) -> None:
        async def plain(session_id: str, user_id: str | None) -> str:
            return "pool"

        async with open_executor(deps=plain) as helix:
            result = await failed(await helix.execute(_old(), "Go", SESSION))
            assert (
                "returned coroutine, not an async context manager; decorate it with @asynccontextmanager"
                in result.error
            )

    async def test_a_new_version_answers_and_completes_what_the_old_one_began(
        self, open_executor: OpenExecutor
    ) -> None:
        await _park(open_executor)
        async with open_executor() as helix:
            assert await completed(await helix.resume(_new(), SESSION)) == "Done."
            assert await spoken(helix) == [
                "user: Go",
                "assistant: Paying.[pay#call_1_1, locate#call_1_2, note#call_1_3]",
                "result pay#call_1_1: paid 5 EUR (en)",
                "result locate#call_1_2: 41.9 N",
                "result note#call_1_3: noted",
                "assistant: Done.",
            ]
            session = await helix.sessions.get(SESSION)
            assert session.agent_version == 2
            assert session.custom_state == {"entries": ["x", "paid 5 EUR"], "owner": "ann", "language": "en"}

    async def test_a_tool_that_is_gone_or_refuses_the_stored_input_is_an_error_the_model_sees(
        self, open_executor: OpenExecutor
    ) -> None:
        @tool(require_approval=True)
        async def pay(amount: int, account: str) -> str:
            """Pay from an account."""
            raise AssertionError("nobody named an account")

        await _park(open_executor)
        async with open_executor() as helix:
            assert await completed(await helix.resume(_new(tools=[pay]), SESSION)) == "Done."
            said = await spoken(helix)
            assert said[2].startswith("error pay#call_1_1: ")
            assert said[3].startswith("error locate#call_1_2: ")
            assert said[4] == "result note#call_1_3: noted"

    async def test_an_answer_that_its_tool_refuses_by_now_is_an_error_the_model_sees(
        self, open_executor: OpenExecutor
    ) -> None:
        @client_tool(name="locate")
        def locate_degrees(city: str) -> float:
            """Where the client is, in degrees."""
            raise NotImplementedError

        await _park(open_executor)
        async with open_executor() as helix:
            new = _new(tools=[*_new().tools[:2], locate_degrees])
            assert await completed(await helix.resume(new, SESSION)) == "Done."
            assert (await spoken(helix))[3] == "error locate#call_1_2: client_tool_result_invalid"

    @pytest.mark.parametrize("output_is", ["another", "gone"])
    async def test_an_output_that_was_handed_in_and_is_none_since_a_deploy_is_an_error_the_model_sees(
        self, open_executor: OpenExecutor, output_is: str
    ) -> None:
        handing_in = reply(calls=[call("locate", {"city": "Rome"}), finish({"title": "Tides"})])

        def clerk(*then: Any, **fields: Any) -> AnyAgent:
            return scripted([handing_in, *then], fields, name="clerk", tools=[locate])

        async with open_executor() as helix:
            await suspended(await helix.execute(clerk(output=Titled), "Go", SESSION))
        async with open_executor() as helix:
            await helix.submit_tool_result(SESSION, "call_1_1", ToolAnswer(result="41.9 N"))
            new = clerk(finish({"heading": "Tides"}), output=Headed) if output_is == "another" else clerk("Tides.")
            output = await completed(await helix.resume(new, SESSION))
            assert output == (Headed(heading="Tides") if output_is == "another" else "Tides.")
            code = "input_refused_since_deploy" if output_is == "another" else "unknown_tool_since_deploy"
            assert (await spoken(helix))[3] == f"error __finish__#call_1_2: {code}"

    @pytest.mark.parametrize("tool_is", ["another", "gone"])
    async def test_a_call_goes_on_waiting_although_its_tool_refuses_the_stored_input_or_is_gone(
        self, open_executor: OpenExecutor, tool_is: str
    ) -> None:
        @client_tool(name="locate")
        def locate_town(town: int) -> str:
            """Where the client is."""
            raise NotImplementedError

        async with open_executor() as helix:
            await suspended(await helix.execute(_old(), "Go", SESSION))
        async with open_executor() as helix:
            await helix.submit_tool_result(SESSION, "call_1_1", ApprovalAnswer(approved=False))
            new = _new(tools=[*_new().tools[:2], *([locate_town] if tool_is == "another" else [])])
            (waits,) = (await suspended(await helix.resume(new, SESSION))).pending
            assert (waits.tool_call_id, waits.input) == ("call_1_2", {"city": "Rome"})
            await helix.submit_tool_result(SESSION, "call_1_2", ToolAnswer(result="41.9 N"))
            assert await completed(await helix.resume(new, SESSION)) == "Done."

    async def test_state_that_does_not_fit_refuses_every_entry_and_nothing_is_written(
        self, open_executor: OpenExecutor
    ) -> None:
        await _park(open_executor)
        bad = _new(state=ChangedState, migrate_state=None, tools=[locate])
        async with open_executor() as helix:
            before = (await helix.sessions.get(SESSION), await runs_of(helix))
            with pytest.raises(StateSchemaChangedError):
                await helix.resume(bad, SESSION)
            with pytest.raises(StateSchemaChangedError):
                await helix.execute(bad, "Forget it", SESSION)
            assert isinstance(await helix.can_resume(bad, SESSION), StateSchemaChangedError)
            assert (await helix.sessions.get(SESSION), await runs_of(helix)) == before
        async with open_executor() as fixed:
            assert await completed(await fixed.resume(_new(), SESSION)) == "Done."

    async def test_a_child_whose_state_does_not_fit_fails_its_own_call(self, open_executor: OpenExecutor) -> None:
        await _park_below(open_executor)
        bad = _above(_new(state=ChangedState, migrate_state=None, tools=[locate]))
        async with open_executor() as helix:
            assert await completed(await helix.resume(bad, SESSION)) == "Done without."
            said = await spoken(helix)
            assert said[2].startswith("error subagent__clerk#delegated: ")
            assert (await helix.list_pending()).items == ()

    async def test_state_that_a_migration_makes_too_large_does_not_fit_whoever_goes_on_with_it(
        self, open_executor: OpenExecutor
    ) -> None:
        async with open_executor(limits=StoreLimits(state_bytes=1_000)) as helix:
            await completed(await helix.execute(_noting(_old()), "Go", SESSION))
            first = (await helix.sessions.checkpoints(SESSION)).items[-1].checkpoint_id
            await completed(await helix.execute(_noting(_new()), "Go", SESSION))
            bad, before = _noting(_new(migrate_state=_grown)), (await helix.sessions.get(SESSION), await runs_of(helix))
            with pytest.raises(StateSchemaChangedError, match="the store accepts at most 1000"):
                await helix.resume(bad, SESSION, mode="from_checkpoint", checkpoint_id=first)
            branch = BranchPoint(from_session_id=SESSION, checkpoint_id=first)
            with pytest.raises(StateSchemaChangedError):
                await helix.execute(bad, "Go", "branch", branch=branch)
            assert (await helix.sessions.get(SESSION), await runs_of(helix)) == before

    async def test_a_migration_that_others_leave_no_room_for_meanwhile_is_not_taken_for_made(
        self, open_executor: OpenExecutor
    ) -> None:
        gate = Gate()

        @tool
        async def note(text: str) -> str:
            """Write nothing down."""
            await gate.wait()
            return "noted"

        def grown(old: dict[str, Any], from_version: int) -> dict[str, Any]:
            return {**_renamed(old, from_version), "owner": "a" * 600}

        async with open_executor(limits=StoreLimits(state_bytes=1_000)) as helix:
            await completed(await helix.execute(_noting(_old()), "Go", SESSION))
            first = (await helix.sessions.checkpoints(SESSION)).items[-1].checkpoint_id
            new = _noting(_new(migrate_state=grown, tools=[note]))
            handle = await helix.resume(new, SESSION, mode="from_checkpoint", checkpoint_id=first, message="Again")
            await gate.until_reached()
            large = StepWrites(ops=(Replace(key="aside", value="e" * 600),))
            await helix.sessions.update_state(SESSION, large)
            gate.opened.set()
            # A runtime that carries nothing from effect to effect reads the state again, and finds that it does not
            # fit.
            assert (await failed(handle)).code in (StateSizeExceededError.code, StateSchemaChangedError.code)
            session = await helix.sessions.get(SESSION)
            assert (session.agent_version, "notes" in session.custom_state) == (1, True)

    async def test_a_child_whose_state_a_migration_makes_too_large_fails_its_own_call(
        self, open_executor: OpenExecutor
    ) -> None:
        await _park_below(open_executor)
        async with open_executor(limits=StoreLimits(state_bytes=1_000)) as helix:
            bad = _above(_new(migrate_state=_grown))
            assert await completed(await helix.resume(bad, SESSION)) == "Done without."
            assert (await spoken(helix))[2].startswith("error subagent__clerk#delegated: ")
            waiting = PendingFilter(states=("waiting", "answered", "expired"))
            assert (await helix.list_pending(waiting)).items == ()

    async def test_the_state_of_a_child_is_migrated_from_the_version_that_stored_it(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        await _park_below(open_executor)
        async with open_executor() as helix:
            assert await completed(await helix.resume(_above(_new()), SESSION)) == "Done without."
            (ref,) = await parts.state.get_sub_session_refs(SESSION)
            child = await helix.sessions.get(ref.sub_session_id)
            assert child.agent_version == 2
            assert child.custom_state == {"entries": ["x", "paid 5 EUR"], "owner": "nobody", "language": "en"}

    async def test_the_janitor_of_a_deploy_that_does_not_fit_leaves_the_session_to_one_that_does(
        self, open_executor: OpenExecutor, clock: Any
    ) -> None:
        await _park(open_executor)
        clock.advance(60_000)
        async with open_executor(agents=[_new(state=ChangedState, migrate_state=None, tools=[locate])]) as bad:
            before = (await bad.sessions.get(SESSION), await runs_of(bad))
            assert (await bad.sweep()).resumed == 0
            assert (await bad.sessions.get(SESSION), await runs_of(bad)) == before
        async with open_executor(agents=[_new()]) as fixed:
            assert (await fixed.sweep()).resumed == 1
            handle = await fixed.get_handle(_new(), SESSION)
            assert handle is not None
            assert await completed(handle) == "Done."

    async def test_a_run_that_died_is_recovered_only_by_a_deploy_that_fits(self, open_executor: OpenExecutor) -> None:
        gate = Gate()

        def agent(**fields: Any) -> AnyAgent:
            @tool
            async def work() -> str:
                """Work."""
                await gate.wait()
                return "worked"

            return scripted([call("work"), "Done."], fields, name="clerk", tools=[work], state=OldState)

        async with open_executor(grace=0) as dying:
            await dying.execute(agent(), "Go", SESSION)
            await gate.until_reached()
        gate.opened.set()
        async with open_executor(agents=[agent(version=2, state=ChangedState)]) as bad:
            recovered = await bad.recover()
            assert (recovered.run_ids, recovered.errors) == ((), 1)
            assert [(run.status, run.attempt) for run in await runs_of(bad)] == [("running", 1)]
        async with open_executor() as stranger:
            assert (await stranger.recover()).unknown_agent == (SESSION,)
        async with open_executor(agents=[agent(version=2, state=NewState, migrate_state=_renamed)]) as fixed:
            assert len((await fixed.recover()).run_ids) == 1
            handle = await fixed.get_handle(agent(), SESSION)
            assert handle is not None
            assert await completed(handle) == "Done."
            session = await fixed.sessions.get(SESSION)
            assert (session.custom_state["language"], session.agent_version) == ("en", 2)

    async def test_a_session_remembers_what_a_later_version_does_not_know(self, helix: Executor) -> None:
        await suspended(await helix.execute(_old(), "Go", SESSION))
        await helix.sessions.get(SESSION)
        slim = _new(state=NewState, migrate_state=None)
        await helix.submit_tool_result(SESSION, "call_1_2", ToolAnswer(result="41.9 N"))
        await suspended(await helix.resume(slim, SESSION))
        assert (await helix.sessions.get(SESSION)).custom_state["notes"] == ["x"]

    @pytest.mark.parametrize("migrated", [True, False])
    async def test_state_that_somebody_goes_back_to_is_migrated_from_the_version_that_stored_it(
        self, helix: Executor, migrated: bool
    ) -> None:
        async def noted(handle: RunHandle[Any]) -> Any:
            await completed(handle)
            session = await helix.sessions.get(handle.session_id)
            assert session.agent_version == 2
            assert session.custom_state.keys() == {"entries", "owner", "language"}
            return session.custom_state["entries"]

        for _ in range(2):
            await completed(await helix.execute(_noting(_old()), "Go", SESSION))
        first = (await helix.sessions.checkpoints(SESSION)).items[-1].checkpoint_id
        new = _noting(_new())
        if migrated:
            assert await noted(await helix.execute(new, "Go", SESSION)) == ["x"] * 3
        at_first = BranchPoint(from_session_id=SESSION, checkpoint_id=first)
        back: dict[str, Any] = {"mode": "from_checkpoint", "message": "Again"}
        for number in range(2):
            branch = f"branch-{number}"
            assert await noted(await helix.execute(new, "Go", branch, branch=at_first)) == ["x"] * 2
            (begun,) = [each for each in (await helix.sessions.checkpoints(branch)).items if each.source == "save"]
            for there, expected in ((begun.checkpoint_id, 2), (BEGINNING, 1)):
                handle = await helix.resume(new, branch, checkpoint_id=there, **back)
                assert await noted(handle) == ["x"] * expected
            for there, expected in ((first, 2), (BEGINNING, 1), (first, 2)):
                handle = await helix.resume(new, SESSION, checkpoint_id=there, **back)
                assert await noted(handle) == ["x"] * expected
        given = await helix.execute(new, "Go", "given", branch=at_first, state={"owner": "ann"})
        assert await noted(given) == ["x"] * 2
        assert (await helix.sessions.get("given")).custom_state["owner"] == "ann"

    async def test_nobody_goes_back_to_state_that_does_not_fit_and_nothing_is_written(self, helix: Executor) -> None:
        for _ in range(2):
            await completed(await helix.execute(_noting(_old()), "Go", SESSION))
        first = (await helix.sessions.checkpoints(SESSION)).items[-1].checkpoint_id
        bad = _new(state=ChangedState, migrate_state=None, tools=[locate])
        before = (await helix.sessions.get(SESSION), await runs_of(helix))
        with pytest.raises(StateSchemaChangedError):
            await helix.resume(bad, SESSION, mode="from_checkpoint", checkpoint_id=first)
        for point in (first, None):
            branch = BranchPoint(from_session_id=SESSION, checkpoint_id=point)
            with pytest.raises(StateSchemaChangedError):
                await helix.execute(bad, "Go", "branch", branch=branch)
        assert (await helix.sessions.get(SESSION), await runs_of(helix)) == before
        assert (await helix.sessions.list()).total == 1

    async def test_a_run_that_died_in_another_runtime_goes_on_in_this_one(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        gate = Gate()

        def keeper() -> AnyAgent:
            return agent("boss", delegate("helper", id="h"), "Fine.", tools=[busy(gate, *WORKING).as_tool()])

        stores: dict[str, Any] = {"state": parts.state, "streams": parts.streams, "usage": parts.usage}
        async with InProcess(**stores, janitor_seconds=None, grace=0) as old:
            await old.execute(keeper(), "Go", SESSION)
            await gate.until_reached()
        gate.opened.set()
        async with open_executor() as new:
            assert await completed(await new.resume(keeper(), SESSION)) == "Fine."
            assert await results(new) == {"h": "Worked."}
            (moved,) = await runs_of(new)
            await completed(await new.execute(agent("boss", "Fine."), "Go", "s-2"))
            (native,) = await runs_of(new, "s-2")
            name = None if native.workflow_id is None else native.workflow_id.replace("s-2", SESSION)
            assert (moved.attempt, moved.workflow_id) == (2, name)

    async def test_a_companion_that_died_in_another_runtime_goes_on_where_its_parent_waits_for_it(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        gate = Gate()
        stores: dict[str, Any] = {"state": parts.state, "streams": parts.streams, "usage": parts.usage}
        async with InProcess(**stores, janitor_seconds=None, grace=0) as old:
            await completed(await old.execute(waiting_for_helper(gate), "Go", SESSION))
            await gate.until_reached()
        gate.opened.set()
        async with open_executor() as new:
            handle = await new.execute(waiting_for_helper(gate), "Wait", SESSION)
            (run_id,) = (await new.recover()).run_ids
            assert await completed(handle) == "Fine."
            assert (await results(new))["wait"] == "Worked."
            (moved,) = await runs_of(new, (await only_companion(parts)).sub_session_id)
            assert (moved.run_id, moved.attempt, moved.status) == (run_id, 2, "completed")

    @pytest.mark.parametrize("goes_on", ["with the answer", "with a message"])
    async def test_a_sub_agent_that_is_gone_leaves_no_child_behind(
        self, open_executor: OpenExecutor, parts: Backend, goes_on: str
    ) -> None:
        def boss(*tools: Any) -> AnyAgent:
            return agent("boss", delegate("worker", id="w"), "Fine.", tools=[*tools])

        async with open_executor() as old:
            (waiting,) = (await suspended(await old.execute(boss(worker().as_tool()), "Go", SESSION))).pending
        async with open_executor() as new:
            assert await completed(await _go_on(new, boss(), waiting, goes_on)) == "Fine."
            assert (await statuses(parts))["worker"] == "interrupted interrupted"
            assert [ref.status for ref in await children(parts)] == ["interrupted"]
            assert_well_told(await parts.streams.get_all_chunks(SESSION))

    @pytest.mark.parametrize("goes_on", ["with the answer", "with a message"])
    @pytest.mark.parametrize("left", [0, 1])
    async def test_a_kind_of_companion_that_is_gone_leaves_nobody_waiting(
        self, open_executor: OpenExecutor, parts: Backend, goes_on: str, left: int
    ) -> None:
        def boss(*keeps: AnyAgent) -> AnyAgent:
            kept = [PersistentAgent(each) for each in keeps]
            return scripted([spawn(), "Fine."], {}, name="boss", persistent_agents=kept)

        async with open_executor() as old:
            (waiting,) = (await suspended(await old.execute(boss(careful(*DEPLOYING)), "Go", SESSION))).pending
        async with open_executor() as new:
            others = [scripted(["x"], {}, name="other")] * left
            assert await completed(await _go_on(new, boss(*others), waiting, goes_on)) == "Fine."
            assert (await statuses(parts))["helper"] == "interrupted interrupted"
            assert [ref.status for ref in await children(parts)] == ["interrupted"]
            assert (await new.list_pending()).items == ()

    async def test_a_crash_before_a_deploy_without_sub_agents_leaves_no_child_behind(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        gate = Gate()
        calls = [delegate("worker", id="w"), delegate("helper", id="h")]
        tools = [worker().as_tool(), busy(gate, *WORKING).as_tool()]

        async def worker_waits() -> bool:
            return (await statuses(parts)).get("worker") == "active suspended_client_tool"

        async with open_executor(grace=0) as old:
            await old.execute(agent("boss", reply(calls=calls), tools=tools), "Go", SESSION)
            await gate.until_reached()
            await until(worker_waits)
        async with open_executor() as new:
            assert await completed(await new.execute(agent("boss", "Never.", "Fine."), "Go on", SESSION)) == "Fine."
            assert await statuses(parts) == {
                "boss": "completed completed",
                "worker": "interrupted interrupted",
                "helper": "interrupted interrupted",
            }
            assert [ref.status for ref in await children(parts)] == ["interrupted", "interrupted"]
            assert (await new.list_pending()).items == ()
            assert_well_told(await parts.streams.get_all_chunks(SESSION))

    async def test_a_companion_that_waits_for_an_answer_goes_on_as_it_was_begun_whatever_its_kind_is_now(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        async with open_executor() as old:
            keeper = boss(spawn(), "Fine.", keeps=careful(*DEPLOYING), mode="blocking")
            (waiting,) = (await suspended(await old.execute(keeper, "Go", SESSION))).pending
        async with open_executor() as new:
            await new.submit_tool_result(SESSION, waiting.tool_call_id, answer_to(waiting))
            keeper = boss(spawn(), "Fine.", keeps=careful(*DEPLOYING), mode="non_blocking")
            assert await completed(await new.resume(keeper, SESSION)) == "Fine."
            assert await results(new) == {"call_1_1": "Deployed."}
            assert (await only_companion(parts)).status == "completed"

    async def test_a_companion_that_died_goes_on_as_it_was_begun_whatever_its_kind_is_now(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        gate = Gate()
        async with open_executor(grace=0) as old:
            keeper = boss(spawn(), "Fine.", keeps=busy(gate, *WORKING), mode="blocking")
            await old.execute(keeper, "Go", SESSION)
            await gate.until_reached()
        gate.opened.set()
        keeper = boss(spawn(), "Fine.", keeps=busy(gate, *WORKING), mode="non_blocking")
        async with open_executor(agents=[keeper]) as new:
            await new.recover()
            handle = await new.get_handle(keeper, SESSION)
            assert handle is not None
            assert await completed(handle) == "Fine."
            assert await results(new) == {"call_1_1": "Worked."}

    async def test_the_end_of_a_companion_is_told_although_calls_wait_for_its_kind_by_now(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        async with open_executor() as old:
            keeper = boss(spawn(), "Started.", keeps=helper("Helped."), mode="non_blocking")
            await completed(await old.execute(keeper, "Go", SESSION))
            await until_ended(parts, (await only_companion(parts)).sub_session_id)
        async with open_executor() as new:
            keeper = boss(spawn(), "Started.", "Second.", "Third.", keeps=helper("Helped."), mode="blocking")
            for text in ("And?", "And now?"):
                await completed(await new.execute(keeper, text, SESSION))
            assert await notices(new) == ["Companion 'helper-1' (helper) is completed: Helped."]

    async def test_whoever_waits_for_a_companion_whose_state_does_not_fit_is_told_so(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        def boss(state: type[BaseModel]) -> AnyAgent:
            keeps = careful(*DEPLOYING, state=state)
            kept = [PersistentAgent(keeps, mode="non_blocking"), PersistentAgent(scripted(["x"], {}, name="other"))]
            script = [spawn(), "Started.", about("waitForResult", "helper-1", id="wait"), "Fine."]
            return scripted(script, {}, name="boss", persistent_agents=kept)

        async with open_executor() as old:
            await completed(await old.execute(boss(OldState), "Go", SESSION))
            child = (await only_companion(parts)).sub_session_id
            await until_ended(parts, child, "suspended_client_tool")
            (waiting,) = (await old.list_pending()).items
        async with open_executor() as new:
            await new.submit_tool_result(SESSION, waiting.tool_call_id, answer_to(waiting))
            assert await completed(await new.execute(boss(ChangedState), "And?", SESSION)) == "Fine."
            assert "notes" in (await results(new))["wait"]
            assert (await statuses(parts))["helper"] == "active suspended_client_tool"

    async def test_whoever_waits_for_a_companion_that_died_and_whose_kind_is_gone_is_told_so(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        gate = Gate()
        async with open_executor(grace=0) as old:
            await completed(await old.execute(waiting_for_helper(gate), "Go", SESSION))
            await gate.until_reached()
        gone = waiting_for_helper(None)
        async with open_executor(agents=[gone]) as new:
            await new.recover()
            assert await completed(await new.execute(gone, "Wait", SESSION)) == "Fine."
            assert (await results(new))["wait"] == "There is no companion of kind 'helper'. Kinds: other."

    @pytest.mark.parametrize("mode", ["blocking", "non_blocking"])
    async def test_the_state_of_a_companion_that_is_told_more_is_migrated_from_the_version_that_stored_it(
        self, open_executor: OpenExecutor, parts: Backend, mode: CompanionMode
    ) -> None:
        def boss(**fields: Any) -> AnyAgent:
            kept = [PersistentAgent(helper("One.", "Two.", **fields), mode=mode)]
            script = [spawn(), "Started.", send("helper-1", "More", id="send"), "Fine."]
            return scripted(script, {}, name="boss", persistent_agents=kept)

        async with open_executor() as old:
            await completed(await old.execute(boss(state=OldState), "Go", SESSION))
            child = (await only_companion(parts)).sub_session_id
            await until_ended(parts, child)
        async with open_executor() as new:
            present = boss(state=NewState, version=2, migrate_state=_renamed)
            await completed(await new.execute(present, "More", SESSION))
            await until_ended(parts, child)
            session = await parts.state.load_state(child)
            assert (session.agent_version, session.custom_state) == (
                2,
                {"entries": [], "owner": "nobody", "language": "en"},
            )

    async def test_a_companion_whose_state_does_not_fit_is_told_nothing_and_stays_as_it_is(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        def boss(**fields: Any) -> AnyAgent:
            kept = [PersistentAgent(helper("One.", "Two.", "Three.", **fields))]
            script = [spawn(), "Started.", send("helper-1", "More", id="send"), "Fine."]
            return scripted(script, {}, name="boss", persistent_agents=kept)

        async with open_executor() as old:
            await completed(await old.execute(boss(state=OldState), "Go", SESSION))
        child = (await only_companion(parts)).sub_session_id
        before = await parts.state.load_state(child)
        async with open_executor() as new:
            await completed(await new.execute(boss(state=ChangedState, version=2), "More", SESSION))
            assert "does not fit version 2" in (await results(new))["send"]
            assert await parts.state.load_state(child) == before
