"""What DBOS keeps of turns that have ended is let go of, and nothing that anybody may still ask for."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from dbos import DBOS

from helix_agents import Agent, ApprovalAnswer, DBOSAgentExecutor, ScriptedModel, Suspended, tool
from helix_agents.domain.errors import DefinitionError
from helix_agents.runtimes.dbos import runtime
from helix_agents.testing import call


@pytest.fixture(autouse=True)
def every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "TIDY_SECONDS", 0.0)


@tool(require_approval=True)
async def publish() -> str:
    """Publish it."""
    return "published"


child = Agent(name="child", description="Looks.", model=ScriptedModel(["Seen."]))
boss = Agent(
    name="boss",
    model=ScriptedModel([call("subagent__child", {"message": "Look"}), call("publish"), "Done."]),
    tools=[child.as_tool(), publish],
)


@DBOS.workflow(name="somebody_elses")
async def somebody_elses() -> str:
    return "mine"


async def known() -> set[str]:
    return {each.workflow_id for each in await DBOS.list_workflows_async(load_input=False, load_output=False)}


async def sweep_until_forgotten(helix: DBOSAgentExecutor) -> None:
    """A result is told a moment before DBOS has recorded that the workflow ended."""
    async with asyncio.timeout(30):
        while (await helix.sweep()).pruned_workflows == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def opened(folder: Path, **settings: Any) -> Any:
    given = {"agents": [boss], "janitor_seconds": None, **settings}
    return DBOSAgentExecutor.open(f"sqlite:///{folder}/helix.db", **given)


async def test_turns_that_ended_are_forgotten_with_their_calls_and_go_on_all_the_same(tmp_path: Path):
    async with opened(tmp_path, workflow_retention_ms=0) as helix, asyncio.timeout(60):
        suspended = await (await helix.execute(boss, "Go", "s-1")).result()
        assert isinstance(suspended, Suspended)
        assert len(await known()) == 2
        await sweep_until_forgotten(helix)
        assert await known() == set()
        await helix.submit_tool_result("s-1", suspended.pending[0].tool_call_id, ApprovalAnswer(approved=True))
        assert await (await helix.resume(boss, "s-1")).output() == "Done."
        # Nobody minds that its name was used before.
        await helix.sessions.delete("s-1")
        assert isinstance(await (await helix.execute(boss, "Go", "s-1")).result(), Suspended)


async def test_what_ended_lately_is_somebody_elses_or_of_another_prefix_stays(tmp_path: Path):
    async with opened(tmp_path, workflow_retention_ms=0, prefix="other") as helix, asyncio.timeout(60):
        await (await helix.execute(boss, "Go", "s-1")).result()
        async with opened(tmp_path) as lately:
            await (await lately.execute(boss, "Go", "s-2")).result()
            await (await DBOS.start_workflow_async(somebody_elses)).get_result()
            before = await known()
            assert (await lately.sweep()).pruned_workflows == 0
            assert await known() == before
        await sweep_until_forgotten(helix)
        assert {name for name in before if not name.startswith("other__")} == await known()


async def test_a_call_that_ended_stays_while_its_turn_goes_on(tmp_path: Path):
    asked, answer = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait for somebody."""
        asked.set()
        await answer.wait()
        return "waited"

    slow = Agent(
        name="slow",
        model=ScriptedModel([call("subagent__child", {"message": "Look"}), call("wait"), "Done."]),
        tools=[child.as_tool(), wait],
    )
    async with opened(tmp_path, workflow_retention_ms=0) as helix, asyncio.timeout(60):
        run = await helix.execute(slow, "Go", "s-1")
        await asked.wait()
        assert (await helix.sweep()).pruned_workflows == 0
        assert len(await known()) == 2
        answer.set()
        assert await run.output() == "Done."


async def test_a_round_forgets_so_many_and_the_next_one_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Whoever has years of workflows waits for nothing else meanwhile: deadlines are the janitor's, too."""
    monkeypatch.setattr(runtime, "TIDY_SECONDS", 3600.0)
    monkeypatch.setattr(runtime, "MOST_AT_ONCE", 2)
    monkeypatch.setattr("helix_agents.runtimes.dbos.workflows.FORGOTTEN_AT_ONCE", 1)
    async with opened(tmp_path, workflow_retention_ms=None) as helix, asyncio.timeout(60):
        for number in range(3):
            await (await helix.execute(boss, "Go", f"s-{number}")).result()
    async with opened(tmp_path, workflow_retention_ms=0) as helix, asyncio.timeout(60):
        assert [(await helix.sweep()).pruned_workflows for _ in range(3)] == [2, 1, 0]


async def test_a_turn_whose_end_dbos_was_never_told_is_forgotten_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A process died between the run's last commit and what DBOS records of it: nobody executes that workflow again."""
    monkeypatch.setattr(runtime, "LATEST_RECORD_MS", 0)
    system = tmp_path / "dbos.db"
    settings: dict[str, Any] = {"system_database_url": f"sqlite:///{system}", "workflow_retention_ms": 0}
    asked, answer = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait for somebody."""
        asked.set()
        await answer.wait()
        return "waited"

    slow = Agent(name="slow", model=ScriptedModel([call("wait"), "Done."]), tools=[wait])
    async with opened(tmp_path, **settings) as helix, asyncio.timeout(60):
        await (await helix.execute(boss, "Go", "s-1")).result()
    await asyncio.to_thread(untold, system)
    async with opened(tmp_path, **settings, agents=[boss, slow]) as helix, asyncio.timeout(60):
        assert len(await known()) == 2
        going = await helix.execute(slow, "Go", "s-2")
        await asked.wait()
        assert (await helix.sweep()).pruned_workflows == 1
        assert len(await known()) == 1
        answer.set()
        assert await going.output() == "Done."


def untold(system: Path) -> None:
    """Let DBOS believe that what ended is still going on, in a process that does not come back."""
    with closing(sqlite3.connect(system)) as database, database:
        database.execute("UPDATE workflow_status SET status = 'PENDING', output = NULL, completed_at = NULL")


async def test_none_keeps_everything_and_a_time_that_is_none_is_refused(tmp_path: Path):
    async with opened(tmp_path, workflow_retention_ms=None) as helix, asyncio.timeout(60):
        await (await helix.execute(boss, "Go", "s-1")).result()
        assert (await helix.sweep()).pruned_workflows == 0
        assert len(await known()) == 2
    with pytest.raises(
        DefinitionError, match="workflow_retention_ms=-1 has to be a whole number of at least 0; None keeps"
    ):
        async with opened(tmp_path, workflow_retention_ms=-1):
            raise AssertionError("it was opened")
