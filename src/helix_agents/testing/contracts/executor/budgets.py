"""Scenarios of budgets: what models used is counted wherever it was used, and no model is asked beyond it."""

from dataclasses import replace
from typing import Any

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.client_tools import ask_human
from helix_agents.agent.compaction import Compaction
from helix_agents.agent.tools import tool
from helix_agents.domain.budgets import Budget
from helix_agents.domain.errors import ContextTooLongError
from helix_agents.domain.pending import ToolAnswer
from helix_agents.domain.usage import TokenCount
from helix_agents.llm.scripted import ScriptedModel, call, reply
from helix_agents.ports.backend import Backend
from helix_agents.ports.llm import ModelRequest
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.testing.contracts.executor.family import answer_to, children, delegate, lead, told
from helix_agents.testing.contracts.executor.household import boss, helper, send, spawn
from helix_agents.testing.contracts.executor.stage import (
    SESSION,
    Gate,
    OpenExecutor,
    ScenarioContract,
    completed,
    failed,
    lines,
    runs_of,
    scripted,
    spoken,
    suspended,
)

HUNDRED = TokenCount(prompt=90, completion=10, total=100)


@tool
async def look() -> str:
    """Look something up."""
    return "nothing"


def _looks(times: int, *, then: str = "Done.") -> list[Any]:
    """A script that looks this often before it is done; each reply takes a hundred tokens."""
    return [*[reply(calls=[call("look")], usage=HUNDRED)] * times, reply(then, usage=HUNDRED)]


def _seeker(*script: Any, **fields: Any) -> AnyAgent:
    return scripted(script, fields, name="seeker", description="Seeks.", tools=[look, ask_human()])


def _model(agent: AnyAgent) -> ScriptedModel:
    assert isinstance(agent.model, ScriptedModel)
    return agent.model


async def _assert_counted(helix: Executor, agent: AnyAgent, session_id: str = SESSION) -> None:
    """What was counted for the budget equals what was counted as usage: nothing is missing, and nothing is counted
    twice."""
    handle = await helix.get_handle(agent, session_id)
    assert handle is not None
    used, session = await handle.usage(), await helix.sessions.get(session_id)
    assert session.spent is not None
    counted = session.spent.total
    calls = sum(each.calls for each in used.sources if each.source_type == "tokens")
    assert (counted.tokens, counted.model_calls) == (used.tokens.total, calls)


class BudgetsContract(ScenarioContract):
    """A budget applies in whichever process its run continues; work done when it is spent is not lost."""

    async def test_a_run_whose_budget_is_spent_asks_no_more_and_a_retry_continues_it(self, helix: Executor) -> None:
        agent = _seeker(*_looks(4), budget=Budget(tokens=250))
        result = await failed(await helix.execute(agent, "Seek", SESSION))
        assert (result.code, result.retryable, _model(agent).asked) == ("budget_exhausted", True, 3)
        assert "300 of 250 tokens used" in result.error
        assert (await spoken(helix))[-1] == "result look#call_3_1: nothing"
        await _assert_counted(helix, agent)
        assert await completed(await helix.retry(agent, SESSION)) == "Done."
        assert _model(agent).asked == 5
        assert (await spoken(helix))[-1] == "assistant: Done."

    async def test_what_a_run_used_before_its_process_died_stays_used(self, open_executor: OpenExecutor) -> None:
        gate = Gate()

        @tool
        async def work() -> str:
            """Work."""
            await gate.wait()
            return "worked"

        script = [*_looks(2)[:2], reply(calls=[call("work")], usage=HUNDRED), *_looks(3)]
        agent = _seeker(*script, tools=[look, work], budget=Budget(model_calls=4))
        async with open_executor(grace=0) as dying:
            await dying.execute(agent, "Seek", SESSION)
            await gate.until_reached()
        gate.opened.set()
        again = _seeker(*script, tools=[look, work], budget=Budget(model_calls=4))
        async with open_executor(agents=[again]) as other:
            await other.recover()
            handle = await other.get_handle(again, SESSION)
            assert handle is not None
            result = await failed(handle)
            assert (result.code, len(await runs_of(other))) == ("budget_exhausted", 1)
            assert len([line for line in await spoken(other) if line.startswith("assistant")]) == 4
            await _assert_counted(other, again)

    async def test_the_budget_of_a_call_is_its_turns_own_and_kept_by_whoever_goes_on(
        self, open_executor: OpenExecutor
    ) -> None:
        asks = reply(calls=[call("ask_human", {"question": "Where?"})], usage=HUNDRED)
        agent = _seeker(asks, *_looks(3, then="Here."))
        async with open_executor() as helix:
            handle = await helix.execute(agent, "Seek", SESSION, budget=Budget(model_calls=2, scope="run"))
            [pending] = (await suspended(handle)).pending
        async with open_executor() as other:
            await other.submit_tool_result(SESSION, pending.tool_call_id, ToolAnswer(result="at sea"))
            result = await failed(await other.resume(agent, SESSION))
            assert (result.code, _model(agent).asked) == ("budget_exhausted", 2)
            assert "2 of 2 model calls used" in result.error
            # A retry has the same amount again, and what comes after it has no limit.
            assert (await failed(await other.retry(agent, SESSION))).code == "budget_exhausted"
            assert _model(agent).asked == 4
            assert await completed(await other.execute(agent, "Go on", SESSION)) == "Here."
            assert (await other.sessions.get(SESSION)).budget is None

    async def test_sub_agents_side_by_side_spend_from_one_budget_and_their_parent_is_told(
        self, helix: Executor, parts: Backend
    ) -> None:
        seekers = [_seeker(*_looks(20), name=name) for name in ("left", "right")]
        calls = [delegate(each.name, id=f"call_{place}") for place, each in enumerate(seekers)]
        begins = reply(calls=calls, usage=HUNDRED)
        head = scripted(
            [begins, reply("Both gave up.", usage=HUNDRED)],
            {},
            name="head",
            tools=[each.as_tool() for each in seekers],
            budget=Budget(tokens=1_000),
        )
        result = await failed(await helix.execute(head, "Seek", SESSION))
        assert result.code == "budget_exhausted"
        assert "by it and its sub-agents" in result.error
        # Each checks before it asks, so none continues for long; calls that were under way are finished.
        asked = _model(head).asked + sum(_model(each).asked for each in seekers)
        assert 10 <= asked <= 11
        # Their work is stored and legal; one of them may have left nothing for the other.
        for ref in await children(parts):
            said = lines(await told(parts, ref.sub_session_id))
            assert (ref.status, said[-1].partition("#")[0] in ("result look", "user: go")) == ("failed", True)
        said = await spoken(helix)
        assert said[-2:] == [
            f"error subagent__{name}#call_{n}: sub_agent_failed" for n, name in enumerate(("left", "right"))
        ]
        await _assert_counted(helix, head)
        assert await completed(await helix.retry(head, SESSION)) == "Both gave up."

    async def test_whoever_works_far_below_spends_from_the_budget_at_the_top_also_after_a_crash(
        self, open_executor: OpenExecutor
    ) -> None:
        gate = Gate()

        @tool
        async def work() -> str:
            """Work."""
            await gate.wait()
            return "worked"

        def head() -> AnyAgent:
            works = reply(calls=[call("work")], usage=HUNDRED)
            below = _seeker(*_looks(1)[:1], works, *_looks(20), name="leaf", tools=[look, work])
            for name in ("middle", "top"):
                budget = Budget(model_calls=6) if name == "top" else None
                script = [reply(calls=[delegate(below.name)], usage=HUNDRED), reply("Done.", usage=HUNDRED)]
                about = {"name": name, "description": "Passes it on.", "budget": budget}
                below = scripted(script, about, tools=[below.as_tool()])
            return below

        async with open_executor(grace=0) as dying:
            await dying.execute(head(), "Go", SESSION)
            await gate.until_reached()
        gate.opened.set()
        agent = head()
        async with open_executor(agents=[agent]) as other:
            await other.recover()
            handle = await other.get_handle(agent, SESSION)
            assert handle is not None
            result = await failed(handle)
            assert (result.code, "6 of 6 model calls" in result.error) == ("budget_exhausted", True)
            await _assert_counted(other, agent)
            assert await completed(await other.retry(agent, SESSION)) == "Done."

    async def test_everything_below_is_counted_once_however_deep_it_is_and_however_often_it_waits(
        self, open_executor: OpenExecutor
    ) -> None:
        agent = replace(lead(), budget=Budget(tokens=100_000))
        async with open_executor() as helix:
            waiting = await suspended(await helix.execute(agent, "Go", SESSION))
            await _assert_counted(helix, agent)
        for pending in waiting.pending:
            async with open_executor() as helix:
                await helix.submit_tool_result(SESSION, pending.tool_call_id, answer_to(pending))
                handle = await helix.resume(agent, SESSION)
                await handle.result()
                await _assert_counted(helix, agent)
        async with open_executor() as helix:
            assert (await helix.sessions.get(SESSION)).status == "completed"

    async def test_a_companion_that_is_waited_for_spends_from_the_budget_with_each_consult(
        self, helix: Executor
    ) -> None:
        script = [
            reply(calls=[spawn(name="ann"), spawn(name="bob")], usage=HUNDRED),
            reply(calls=[send("ann", "Again")], usage=HUNDRED),
            reply("Thanks.", usage=HUNDRED),
        ]
        expert = helper(*_looks(1), *_looks(1), tools=[look])
        head = boss(*script, keeps=expert, budget=Budget(tokens=900))
        assert await completed(await helix.execute(head, "Seek", SESSION)) == "Thanks."
        await _assert_counted(helix, head)
        small = replace(head, budget=Budget(tokens=600))
        result = await failed(await helix.execute(small, "Seek", "s-2"))
        assert "600 of 600 tokens" in result.error
        await _assert_counted(helix, small, "s-2")

    async def test_a_summary_is_paid_from_the_budget(self, helix: Executor) -> None:
        summariser = ScriptedModel(lambda _: reply("They look.", usage=HUNDRED), name="summariser")
        compaction = Compaction(above_tokens=95, keep_tokens=10, model=summariser)
        agent = _seeker(*_looks(9), budget=Budget(tokens=350), compaction=compaction)
        result = await failed(await helix.execute(agent, "Seek " * 30, SESSION))
        assert (result.code, summariser.asked > 0) == ("budget_exhausted", True)
        assert summariser.asked + _model(agent).asked == 4
        await _assert_counted(helix, agent)

    async def test_a_summary_that_is_made_in_parts_stops_where_the_budget_ends(self, helix: Executor) -> None:
        def shorten(request: ModelRequest) -> Any:
            told = str(request.messages[0])
            return ContextTooLongError("summariser", "no") if told.count("Assistant") > 1 else reply("?", usage=HUNDRED)

        summariser = ScriptedModel(shorten, name="summariser")
        patient = _seeker(*_looks(9), "Done.")
        await completed(await helix.execute(patient, "Seek", SESSION))
        compaction = Compaction(above_tokens=95, keep_tokens=10, model=summariser)
        agent = _seeker("Never said.", budget=Budget(tokens=200), compaction=compaction)
        result = await failed(await helix.execute(agent, "Seek " * 30, SESSION))
        assert (result.code, _model(agent).asked) == ("budget_exhausted", 0)
        assert "200 of 200 tokens" in result.error
        handle = await helix.get_handle(agent, SESSION)
        assert handle is not None
        used = {each.source_name: each.calls for each in (await handle.usage()).sources}
        assert used["summariser"] == 2
