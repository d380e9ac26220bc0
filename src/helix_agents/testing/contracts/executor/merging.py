"""Scenarios of state that parallel tools change: fields that say how they are merged lose nothing."""

from typing import Annotated, Any

from pydantic import BaseModel, Field

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.context import ToolContext
from helix_agents.agent.merging import Merge
from helix_agents.agent.tools import tool
from helix_agents.domain.chunks import StatePatch, StepCommitted
from helix_agents.domain.pending import ApprovalAnswer
from helix_agents.domain.records import JSON
from helix_agents.domain.writes import Add, MergeWarning, StepWrites
from helix_agents.llm.scripted import call, reply
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.testing.contracts.executor.stage import (
    SESSION,
    Gate,
    OpenExecutor,
    ScenarioContract,
    chunks_of,
    completed,
    scripted,
    suspended,
)


class Trip(BaseModel):
    """What a journey costs."""

    spent: Annotated[float, Merge.SUM] = 10.0
    seats: Annotated[int, Merge.SUM, Field(le=4)] = 0
    prices: Annotated[dict[str, float], Merge.KEYS] = {}
    places: Annotated[set[str], Merge.UNION] = {"home"}


@tool
async def book(ctx: ToolContext[Trip], place: str, price: float, seats: int = 1) -> str:
    """Book something."""
    ctx.state.spent += price
    ctx.state.seats += seats
    ctx.state.prices[place] = price
    ctx.state.places.add(place)
    ctx.state.places.discard("home")
    return f"{ctx.state.spent:g} spent"


@tool(require_approval=True)
async def splurge(ctx: ToolContext[Trip], place: str, price: float) -> str:
    """Book something dear."""
    return await book.function(ctx, place, price)


@tool(finish_with=True)
async def settle(ctx: ToolContext[Trip]) -> str:
    """Add the fee, and be done."""
    ctx.state.spent += 100
    return f"{ctx.state.spent:g} for {len(ctx.state.places)}"


def _agent(*script: Any, **fields: Any) -> AnyAgent:
    return scripted(script, fields, name="traveller", tools=[book, splurge, settle], state=Trip)


def _book(place: str, price: float, **more: JSON) -> Any:
    return call("book", {"place": place, "price": price, **more})


async def _state(helix: Executor) -> dict[str, Any]:
    state = (await helix.sessions.get(SESSION)).custom_state
    return {**state, "places": sorted(state["places"])}


class MergingContract(ScenarioContract):
    """Calls of one reply start from the same state, and what each of them changed is kept."""

    async def test_what_parallel_tools_change_comes_together(self, helix: Executor) -> None:
        script = [reply(calls=[_book("Oslo", 5), _book("Rome", 7), _book("Kiel", 1.5)]), "Booked."]
        chunks = await chunks_of(await helix.execute(_agent(*script), "Go", SESSION))
        expected = {
            "spent": 23.5,
            "seats": 3,
            "prices": {"Oslo": 5, "Rome": 7, "Kiel": 1.5},
            "places": ["Kiel", "Oslo", "Rome"],
        }
        assert await _state(helix) == expected
        assert [chunk.warnings for chunk in chunks if isinstance(chunk, StepCommitted)] == [(), ()]
        # The patch of each call shows what that call alone made of the state; the last patch brings readers up to date.
        last = [chunk.patch for chunk in chunks if isinstance(chunk, StatePatch)][-1]
        told = {each["path"].removeprefix("/"): each["value"] for each in last}
        assert {**told, "places": sorted(told["places"])} == expected

    async def test_two_that_set_the_same_key_are_a_conflict(self, helix: Executor) -> None:
        script = [reply(calls=[_book("Oslo", 5), _book("Oslo", 7)]), "Booked."]
        chunks = await chunks_of(await helix.execute(_agent(*script), "Go", SESSION))
        assert (await _state(helix))["prices"] == {"Oslo": 7}
        assert (await _state(helix))["spent"] == 22
        warnings = [chunk.warnings for chunk in chunks if isinstance(chunk, StepCommitted)]
        assert warnings[0] == (MergeWarning(key="prices", tool_call_ids=("call_1_1", "call_1_2")),)

    async def test_a_sum_that_the_type_refuses_is_a_result_the_model_sees(self, helix: Executor) -> None:
        script = [reply(calls=[_book("Oslo", 5, seats=3), _book("Rome", 7, seats=2), _book("Kiel", 1)]), "Booked."]
        await completed(await helix.execute(_agent(*script), "Go", SESSION))
        state = await _state(helix)
        assert (state["seats"], state["spent"], state["places"]) == (4, 16, ["Kiel", "Oslo"])

    async def test_a_tool_that_finishes_sees_what_all_others_changed(self, helix: Executor) -> None:
        script = [reply(calls=[_book("Oslo", 5), call("settle"), _book("Rome", 7)])]
        assert await completed(await helix.execute(_agent(*script), "Go", SESSION)) == "122 for 2"
        assert (await _state(helix))["spent"] == 122

    async def test_a_call_that_waited_adds_to_what_others_made_meanwhile(
        self, helix: Executor, open_executor: OpenExecutor
    ) -> None:
        agent = _agent(reply(calls=[_book("Oslo", 5), call("splurge", {"place": "Rome", "price": 70})]), "Booked.")
        [waiting] = (await suspended(await helix.execute(agent, "Go", SESSION))).pending
        async with open_executor() as other:
            await other.sessions.update_state(SESSION, StepWrites(ops=(Add(key="spent", after=0.25),)))
            await other.submit_tool_result(SESSION, waiting.tool_call_id, ApprovalAnswer(approved=True))
        assert await completed(await helix.resume(agent, SESSION)) == "Booked."
        state = await _state(helix)
        assert (state["spent"], state["places"]) == (85.25, ["Oslo", "Rome"])

    async def test_a_sum_changed_from_outside_while_a_tool_works_counts_both(
        self, helix: Executor, open_executor: OpenExecutor
    ) -> None:
        gate = Gate()

        @tool
        async def work(ctx: ToolContext[Trip]) -> str:
            """Work."""
            ctx.state.spent += 1
            await gate.wait()
            return "worked"

        handle = await helix.execute(_agent(call("work"), "Done.", tools=[work]), "Go", SESSION)
        await gate.until_reached()
        async with open_executor() as other:
            await other.sessions.update_state(SESSION, StepWrites(ops=(Add(key="spent", after=2),)))
        gate.opened.set()
        assert await completed(handle) == "Done."
        assert (await _state(helix))["spent"] == 13
