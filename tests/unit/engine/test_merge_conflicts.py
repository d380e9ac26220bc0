"""A change that another call of the same step overwrote is not lost without a word."""

import logging

import pytest
from pydantic import BaseModel

from helix_agents import Agent, Executor, ScriptedModel, ToolContext, tool
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
