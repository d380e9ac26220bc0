"""A change that another call of the same step overwrote, or made impossible, is not lost without a word."""

import logging
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from helix_agents import Agent, Executor, Hooks, ScriptedModel, ToolContext, tool
from helix_agents.domain.messages import ToolMessage
from helix_agents.testing import call, reply


class Bill(BaseModel):
    total: int = 0
    costs: list[int] = []


@tool
async def count(ctx: ToolContext[Bill], cents: int) -> str:
    """Count."""
    ctx.state.total += cents
    ctx.state.costs.append(cents)
    return "counted"


async def test_a_change_that_did_not_stand_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    side_by_side = reply(calls=[call("count", {"cents": 5}), call("count", {"cents": 7})])
    biller = Agent(name="biller", model=ScriptedModel([side_by_side, "Done."]), tools=[count], state=Bill)
    async with Executor.open("memory://", agents=[biller]) as helix:
        await (await helix.execute(biller, "Count", "s-1")).output()
        assert (await helix.sessions.get("s-1")).custom_state == {"total": 7, "costs": [5, 7]}
    [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.getMessage() == (
        "state.merge_conflict session_id='s-1' key='total' tool_call_ids=('call_1_1', 'call_1_2')"
    )


class Crew(BaseModel):
    names: Annotated[list[str], Field(max_length=2)] | None = []


@tool
async def enlist(ctx: ToolContext[Crew], name: str) -> str:
    """Enlist."""
    assert ctx.state.names is not None
    ctx.state.names.append(name)
    return "enlisted"


@tool
async def dismiss_all(ctx: ToolContext[Crew]) -> str:
    """Dismiss everybody."""
    ctx.state.names = None
    return "dismissed"


@tool(finish_with=True)
async def sail(ctx: ToolContext[Crew]) -> str:
    """Sail."""
    return " and ".join(ctx.state.names or ["nobody"])


def _enlist_before_asking(ctx: Any, _: Any) -> None:
    if not ctx.state.names:
        ctx.state.names = ["Ann"]


async def _crew_after(*calls: Any, hooks: Hooks[Any, Any] | None = None) -> tuple[Any, dict[str, str | None], str]:
    """The state after a step with these calls, the codes of their results, and what the turn came to; the session can
    be gone on with."""
    model = ScriptedModel([reply(calls=calls), "Done.", "Still here."])
    captain = Agent(name="captain", model=model, tools=[enlist, dismiss_all, sail], state=Crew, hooks=hooks)
    async with Executor.open("memory://", agents=[captain]) as helix:
        came_to = await (await helix.execute(captain, "Go", "s-1")).output()
        state = (await helix.sessions.get("s-1")).custom_state
        messages = [each.message for each in (await helix.sessions.messages("s-1")).items]
        await (await helix.execute(captain, "And now?", "s-1")).output()
    codes = {each.tool_call_id: each.code for each in messages if isinstance(each, ToolMessage)}
    return state, codes, came_to


async def test_changes_that_the_type_refuses_only_together_stand_as_far_as_they_fit() -> None:
    calls = [call("enlist", {"name": name}, id=name) for name in ("Ann", "Bob", "Cid")]
    state, codes, _ = await _crew_after(*calls)
    assert state == {"names": ["Ann", "Bob"]}
    assert codes == {"Ann": None, "Bob": None, "Cid": "tool_output_invalid"}


async def test_an_append_to_what_is_no_list_any_more_is_a_result_the_model_sees() -> None:
    state, codes, _ = await _crew_after(call("dismiss_all", id="all"), call("enlist", {"name": "Ann"}, id="Ann"))
    assert state == {"names": None}
    assert codes == {"all": None, "Ann": "tool_output_invalid"}


async def test_a_hook_before_the_model_call_and_a_tool_that_do_not_fit_together() -> None:
    calls = [call("enlist", {"name": name}, id=name) for name in ("Bob", "Cid")]
    state, codes, _ = await _crew_after(*calls, hooks=Hooks(before_llm_call=_enlist_before_asking))
    assert state == {"names": ["Ann", "Bob"]}
    assert codes == {"Bob": None, "Cid": "tool_output_invalid"}


async def test_a_tool_that_finishes_sees_what_stands() -> None:
    calls = [call("enlist", {"name": name}, id=name) for name in ("Ann", "Bob", "Cid")]
    state, _, came_to = await _crew_after(*calls, call("sail", id="sail"))
    assert state == {"names": ["Ann", "Bob"]}
    assert came_to == "Ann and Bob"


@tool(finish_with=True)
async def settle(ctx: ToolContext[Bill]) -> str:
    """Settle."""
    ctx.state.total += 100
    ctx.state.costs = sorted(ctx.state.costs, reverse=True)
    return f"{ctx.state.total} for {ctx.state.costs}"


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_what_a_tool_that_finishes_changes_follows_what_it_saw_wherever_the_model_called_it(place: int) -> None:
    calls = [call("count", {"cents": 5}), call("count", {"cents": 7})]
    calls.insert(place, call("settle"))
    biller = Agent(name="biller", model=ScriptedModel([reply(calls=calls)]), tools=[count, settle], state=Bill)
    async with Executor.open("memory://", agents=[biller]) as helix:
        assert await (await helix.execute(biller, "Settle", "s-1")).output() == "107 for [7, 5]"
        assert (await helix.sessions.get("s-1")).custom_state == {"total": 107, "costs": [7, 5]}


async def test_a_tool_that_finishes_overwrites_knowingly_what_it_saw(caplog: pytest.LogCaptureFixture) -> None:
    calls = [call("count", {"cents": 5}), call("settle")]
    biller = Agent(name="biller", model=ScriptedModel([reply(calls=calls)]), tools=[count, settle], state=Bill)
    async with Executor.open("memory://", agents=[biller]) as helix:
        assert await (await helix.execute(biller, "Settle", "s-1")).output() == "105 for [5]"
    assert [record for record in caplog.records if record.levelno == logging.WARNING] == []
