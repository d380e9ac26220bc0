"""Every scenario again, with each effect in a scope of its own: nothing an effect needs may live in a process."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from pydantic import BaseModel

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.context import RunContext, ToolContext
from helix_agents.agent.skills import Skill
from helix_agents.agent.tools import tool
from helix_agents.domain.chunks import StatePatch, ToolEnd
from helix_agents.domain.errors import StateSizeExceededError, StoreUnavailableError
from helix_agents.domain.rendering import surviving
from helix_agents.engine.anywhere import Effects
from helix_agents.engine.desk import RestingReply, RestingResult
from helix_agents.engine.live_runs import LiveRuns
from helix_agents.engine.store_desk import StoreDesk
from helix_agents.ports.backend import Backend, open_backend
from helix_agents.ports.state_store import StoreLimits
from helix_agents.testing import ScriptedModel, call, reply
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.contract import ExecutorContract
from helix_agents.testing.contracts.executor.family import assert_well_told
from helix_agents.testing.contracts.executor.stage import SESSION, OpenExecutor, OpenParts, spoken
from helix_agents.testing.scattered import ScatteredExecutor
from tests.scenarios.test_in_process import LONG_LEASE_MS, MEMORIES


class Diary(BaseModel):
    done: list[str] = []


class Gossip:
    """A capability that has something to say before every step."""

    tools = ()

    async def news(self, context: RunContext[Any, Any]) -> Sequence[str]:
        return ["The wind turns."]

    async def rest(self, context: RunContext[Any, Any]) -> None: ...


def _gossiping() -> AnyAgent:
    skills = [Skill(name="read-tides", description="Reads tide tables.", body="Look closely.")]
    settings: dict[str, Any] = {"skills": skills, "capabilities": [Gossip()]}
    return Agent(name="skipper", model=ScriptedModel(["Ahoy."]), **settings)


class TestEffectsThatShareNothing(ExecutorContract):
    backend = "in_memory"
    several_processes = False
    keep_seconds = 0.0

    @pytest.fixture
    def store_url(self) -> str:
        return f"memory://scattered-{next(MEMORIES)}"

    @pytest.fixture
    def open_parts(self, store_url: str, clock: ManualClock) -> OpenParts:
        return lambda: open_backend(store_url, clock=clock)

    @pytest.fixture
    def open_executor(self, store_url: str, clock: ManualClock) -> OpenExecutor:
        @asynccontextmanager
        async def open_executor(**settings: Any) -> AsyncGenerator[ScatteredExecutor]:
            of_store = {name: settings.pop(name) for name in ("limits", "namespace") if name in settings}
            given = {"janitor_seconds": None, "lease_ms": LONG_LEASE_MS, "grace": 1.0, **settings}
            backend: Backend = await open_backend(store_url, clock=clock, **of_store)
            async with backend:
                parts = {"state": backend.state, "streams": backend.streams, "usage": backend.usage}
                async with ScatteredExecutor(**parts, keep_seconds=self.keep_seconds, **given) as executor:
                    yield executor

        return open_executor

    async def test_deps_are_opened_once_per_run_in_the_process_that_runs_it(self, open_executor: OpenExecutor) -> None:
        self.keep_seconds = 60.0
        await super().test_deps_are_opened_once_per_run_in_the_process_that_runs_it(open_executor)

    async def test_four_janitors_of_which_one_dies_handle_each_case_once(
        self, open_executor: OpenExecutor, parts: Backend, clock: ManualClock
    ) -> None:
        # A thousand calls, each of which opens its run anew, would only prove that this takes its time.
        self.keep_seconds = 60.0
        await super().test_four_janitors_of_which_one_dies_handle_each_case_once(open_executor, parts, clock)

    @pytest.mark.parametrize("effect", ["repeatable", "once"])
    async def test_an_effect_that_is_done_again_tells_its_result_once(
        self, open_executor: OpenExecutor, parts: Backend, monkeypatch: pytest.MonkeyPatch, effect: Any
    ) -> None:
        """What it said the first time stays said, though the process died before the result was kept."""
        kept: list[str] = []
        keep, perform = StoreDesk.put_result, Effects.perform

        async def keep_the_second_time(desk: StoreDesk, step_id: str, result: RestingResult) -> None:
            kept.append(result.message.tool_call_id)
            if len(kept) == 1:
                raise StoreUnavailableError("the store", "the process died")
            await keep(desk, step_id, result)

        async def perform_again(effects: Effects, *given: Any) -> Any:
            with suppress(StoreUnavailableError):
                return await perform(effects, *given)
            return await perform(effects, *given)

        monkeypatch.setattr(StoreDesk, "put_result", keep_the_second_time)
        monkeypatch.setattr(Effects, "perform", perform_again)

        @tool(effect=effect)
        async def note(ctx: ToolContext[Diary, None]) -> str:
            """Note something."""
            ctx.state.done.append("it")
            return "noted"

        agent = Agent(name="noter", model=ScriptedModel([call("note", id="n1"), "Done."]), tools=[note], state=Diary)
        async with open_executor() as helix:
            await (await helix.execute(agent, "Go", SESSION)).output()
        said = surviving(await parts.streams.get_all_chunks(SESSION))
        assert kept == ["n1", "n1"]
        assert [chunk.result for chunk in said if isinstance(chunk, ToolEnd)] == ["noted"]
        assert sum(isinstance(chunk, StatePatch) for chunk in said) == 1

    async def test_what_a_model_was_told_rests_with_its_reply_though_an_earlier_try_was_cancelled(
        self, open_executor: OpenExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The run is in hand since the first try, and another process commits the step."""
        self.keep_seconds = 60.0
        keep, perform = StoreDesk.put_reply, Effects.perform
        cancelled = [asyncio.CancelledError()]

        async def keep_the_second_time(desk: StoreDesk, step_id: str, reply: RestingReply) -> None:
            if cancelled:
                raise cancelled.pop()
            await keep(desk, step_id, reply)

        async def perform_again(effects: Effects, *given: Any) -> Any:
            with suppress(asyncio.CancelledError):
                return await perform(effects, *given)
            answer = await perform(effects, *given)
            await effects._runs.release_all()
            return answer

        monkeypatch.setattr(StoreDesk, "put_reply", keep_the_second_time)
        monkeypatch.setattr(Effects, "perform", perform_again)
        async with open_executor() as helix:
            await (await helix.execute(_gossiping(), "Go", SESSION)).output()
            assert (await spoken(helix))[1:] == ["hidden: news", "hidden: skills", "assistant: Ahoy."]

    async def test_who_commits_a_step_has_what_asking_its_model_came_to_in_another_process(
        self, open_executor: OpenExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One process opens the run and keeps it in hand for the commit; another one asks the model."""
        self.keep_seconds = 60.0
        perform = Effects.perform
        others: list[LiveRuns] = []

        async def ask_elsewhere(effects: Effects, effect: Any, *given: Any) -> Any:
            if effect != "ask_model":
                return await perform(effects, effect, *given)
            others.append(LiveRuns(services=effects._services, alone=False, keep_seconds=60.0))
            return await perform(Effects(effects._services, others[-1]), effect, *given)

        monkeypatch.setattr(Effects, "perform", ask_elsewhere)
        async with open_executor() as helix:
            await (await helix.execute(_gossiping(), "Go", SESSION)).output()
            assert (await spoken(helix))[1:] == ["hidden: news", "hidden: skills", "assistant: Ahoy."]
            await helix.sessions.delete(SESSION)
            await self.test_skills_that_are_not_to_be_had_fail_the_run_and_a_retry_asks_again(helix)
            await helix.sessions.delete(SESSION)
            await self.test_a_long_conversation_is_summarised_for_the_model_and_stored_as_a_whole(helix)
            assert "hidden: summary" in await spoken(helix)
            for runs in others:
                await runs.release_all()

    async def test_a_finishing_tool_whose_result_is_too_large_to_rest_does_not_finish_the_run(
        self, open_executor: OpenExecutor
    ) -> None:
        @tool(finish_with=True)
        async def publish(ctx: ToolContext[Diary, None], length: int) -> str:
            """Publish."""
            ctx.state.done.append(f"published {length}")
            return "x" * length

        script = [call("publish", {"length": 2_000}), call("publish", {"length": 5})]
        agent = Agent(name="writer", model=ScriptedModel(script), tools=[publish], state=Diary)
        async with open_executor(limits=StoreLimits(staged_write_bytes=4_000)) as helix:
            assert await (await helix.execute(agent, "Go", SESSION)).output() == "xxxxx"
            assert (await spoken(helix))[2] == f"error publish#call_1_1: {StateSizeExceededError.code}"
            assert (await helix.sessions.get(SESSION)).custom_state == {"done": ["published 5"]}

    async def test_effects_whose_answers_were_lost_with_that_of_their_commit_change_nothing(
        self, open_executor: OpenExecutor, parts: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An engine that keeps several answers at once asks again for all of them, the commit included."""
        perform = Effects.perform
        answered: list[tuple[Any, Any]] = []

        async def perform_again_after_commits(
            effects: Effects, effect: Any, session_id: str, fence: Any, request: Any
        ) -> Any:
            whose = (session_id, fence)
            answer = await perform(effects, effect, *whose, request)
            if effect == "run_calls":
                # As an engine asks that drives children itself.
                is_child = request["calls"][0]["kind"] == "child"
                answered.append(({**request, "hand_out": is_child, "driven": is_child}, answer))
            if effect == "commit" and answer["next"] == "continue":
                for lost, first in answered:
                    assert await perform(effects, "run_calls", *whose, lost) == first
                assert await perform(effects, "commit", *whose, request) == answer
            return answer

        monkeypatch.setattr(Effects, "perform", perform_again_after_commits)
        ran: list[str] = []

        @tool
        async def work() -> str:
            """Work."""
            ran.append("work")
            return "worked"

        child = Agent(name="child", description="A child.", model=ScriptedModel(["From the child."]))
        script = [reply("Go. ", calls=[call("work", id="w1"), call("subagent__child", {"message": "Go"}, id="c1")])]
        parent = Agent(name="parent", model=ScriptedModel([*script, "Done."]), tools=[work, child.as_tool()])
        async with open_executor() as helix:
            await (await helix.execute(parent, "Go", SESSION)).output()
        chunks = await parts.streams.get_all_chunks(SESSION)
        assert ran == ["work"]
        assert [chunk.result for chunk in chunks if isinstance(chunk, ToolEnd)] == ["worked", "From the child."]
        assert_well_told(chunks, SESSION)
        assert not await parts.state.has_staged_changes(SESSION)
