"""What goes wrong is seen by whoever has not configured logging yet."""

import logging

import pytest

from helix_agents import Agent, Executor, ScriptedModel, tool
from helix_agents.testing import call, reply


async def test_a_bug_in_a_tool_is_on_standard_error_though_nobody_configured_logging(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @tool
    async def divide(by: int) -> float:
        """Divide one."""
        return 1 / by

    @tool
    async def connect() -> object:
        """Give what no model can read."""
        return object()

    model = ScriptedModel([reply(calls=[call("divide", {"by": 0}), call("connect")]), "No."])
    agent = Agent(name="agent", model=model, tools=[divide, connect])
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    async with Executor.open("memory://", agents=[agent]) as helix:
        assert await (await helix.execute(agent, "Go.")).output() == "No."
    told = capsys.readouterr().err
    assert "tool.failed tool='divide'" in told
    assert "return 1 / by" in told
    assert "tool.failed tool='connect'" in told
