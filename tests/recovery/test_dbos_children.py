"""Children on DBOS are workflows of their own: what they finished is not done again, in whatever order workflows come
back, and those of an attempt that was given up are forgotten."""

import asyncio
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import pytest

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.context import ToolContext
from helix_agents.agent.tools import tool
from helix_agents.domain.messages import ToolMessage
from helix_agents.domain.results import Completed
from helix_agents.domain.sessions import SessionFilter
from helix_agents.runtimes.dbos import DBOSAgentExecutor
from helix_agents.testing import ScriptedModel, call, reply
from helix_agents.testing.postgres_service import PostgresService
from helix_agents.testing.recording import EffectKind
from helix_agents.testing.workers import Processes
from tests.recovery import dbos_jobs, reference_delegation
from tests.recovery.reference_conversation import Traces
from tests.recovery.reference_delegation import IN_LINE_ONCE
from tests.recovery.test_crash_matrix import SIDES
from tests.recovery.test_dbos_crashes import CONVERSE, CREWS, PARTS, ends_right, kill_and_go_on, processes

__all__ = ["processes"]

LINE = f"{reference_delegation.__name__}:LINE"
BACK = [f"{reference_delegation.__name__}:{name}_THAT_COMES_BACK" for name in ("LINE", "FAN")]

ROOT = "helix__head__s-1"
MIDDLE = f"{ROOT}__1.0.middle"


@pytest.fixture
def server() -> Iterator[PostgresService]:
    """A server of its own, as it is going to be killed."""
    with PostgresService() as server:
        yield server


async def workflows_in(folder: Path) -> dict[str, str]:
    """What DBOS knows: how each workflow stands, by its name without what was made up."""

    def read() -> list[tuple[str, str]]:
        with closing(sqlite3.connect(folder / "dbos.db")) as database:
            return database.execute("SELECT workflow_uuid, status FROM workflow_status").fetchall()

    return {_without_suffixes(name): status for name, status in await asyncio.to_thread(read)}


def _without_suffixes(name: str) -> str:
    """The calls of children have names that end with something of the child's session."""
    return "__".join(part.rpartition("_")[0] if "." in part and "_" in part else part for part in name.split("__"))


@pytest.mark.chaos
@pytest.mark.timeout(600)
async def test_children_come_back_with_their_parents_and_nothing_finished_is_done_again(
    tmp_path: Path, processes: Processes
):
    """Killed around an effect of each kind of each of them."""
    deaths = [
        {"kind": kind, "effect": number, "side": side, "executor_id": "worker-1"}
        for kind in get_args(EffectKind)
        for number in (1, 2, 3)
        for side in SIDES
    ]
    unknown = await kill_and_go_on(processes, tmp_path, deaths, story=BACK[0])
    for name in unknown:
        assert Traces(tmp_path / name / "traces").counted() == IN_LINE_ONCE, name
        # No attempt was begun anew in another workflow: those that were there went on.
        stand = await workflows_in(tmp_path / name)
        assert stand == dict.fromkeys([ROOT, MIDDLE, f"{MIDDLE}__2.0.helper"], "SUCCESS"), name


@pytest.mark.parametrize("late", ["run", "call"])
async def test_workflows_of_runs_and_of_calls_come_back_in_any_order(tmp_path: Path, processes: Processes, late: str):
    deaths = [{"kind": "ask_model", "effect": number, "side": "after", "executor_id": "worker-1"} for number in (3, 5)]
    unknown = await kill_and_go_on(processes, tmp_path, deaths, {"late": late}, story=BACK[0])
    for name in unknown:
        assert Traces(tmp_path / name / "traces").counted() == IN_LINE_ONCE, name
        assert set((await workflows_in(tmp_path / name)).values()) == {"SUCCESS"}, name


async def test_workflows_of_an_attempt_that_was_given_up_are_forgotten_with_their_calls(
    tmp_path: Path, processes: Processes
):
    """Another process takes over; should the first one ever be started again, it finds nothing to do."""
    [death] = [{"kind": "ask_model", "effect": 5, "side": "after"}]
    unknown = await kill_and_go_on(processes, tmp_path, [death], story=LINE)
    (folder,) = (tmp_path / name for name in unknown)
    assert Traces(folder / "traces").counted() == IN_LINE_ONCE
    again = MIDDLE.replace(ROOT, f"{ROOT}__a2")
    assert await workflows_in(folder) == {
        **dict.fromkeys([ROOT, MIDDLE, f"{MIDDLE}__2.0.helper"], "CANCELLED"),
        **dict.fromkeys([f"{ROOT}__a2", again, f"{again}__2.0.helper"], "SUCCESS"),
    }


async def test_a_process_that_starts_with_the_executor_id_of_a_living_one_takes_its_children_too(
    tmp_path: Path, processes: Processes
):
    # The living one stands still in its child, before that asks its model, runs a tool, delegates and commits.
    jobs: list[dict[str, Any]] = []
    for effect in (5, 6, 7, 9):
        folder = tmp_path / str(effect)
        folder.mkdir()
        jobs += [{"folder": str(folder), "effect": effect, "role": role, "story": LINE} for role in ("first", "second")]
    outcomes = await processes.run(f"{dbos_jobs.MODULE}:meet", jobs)
    assert [outcome.error for outcome in outcomes] == [None] * len(jobs)
    for effect in (5, 6, 7, 9):
        assert await ends_right(tmp_path / str(effect), LINE) == set()
        assert Traces(tmp_path / str(effect) / "traces").counted() == IN_LINE_ONCE


class Stage:
    """Agents each of whom waits in the middle of something until it is told to go on."""

    def __init__(self) -> None:
        self.at_work = {name: asyncio.Event() for name in ("host", "left", "right")}
        self.may_go_on = {name: asyncio.Event() for name in self.at_work}

        @tool
        async def work(ctx: ToolContext[Any], part: int) -> str:
            """Do a part."""
            if part == 1:
                self.at_work[ctx.agent].set()
                await self.may_go_on[ctx.agent].wait()
            return f"part {part}"

        def busy(name: str, *first: Any, tools: Sequence[Any] = ()) -> AnyAgent:
            model = ScriptedModel([*first, *(call("work", {"part": part}) for part in (1, 2)), f"{name} is done."])
            return Agent(name=name, description=f"The {name}.", model=model, tools=[work, *tools])

        both = [call(f"subagent__{name}", {"message": "Go"}) for name in ("left", "right")]
        everything = reply("All of you. ", calls=[*both, call("work", {"part": 1})])
        self.host = busy("host", everything, tools=[busy(name).as_tool() for name in ("left", "right")])
        self.may_go_on["host"].set()

    def go_on(self, *names: str) -> None:
        for name in names:
            self.may_go_on[name].set()


@pytest.mark.timeout(120)
async def test_a_store_that_is_lost_while_children_work_costs_no_one_more_than_a_wait(
    tmp_path: Path, server: PostgresService, caplog: pytest.LogCaptureFixture
):
    """One child ends its tool while the server is away, the other one when everything above it was claimed anew."""
    stage, url = Stage(), server.new_url(connect_patience=0.2, pool_size=8)
    system = {"system_database_url": f"sqlite:///{tmp_path / 'dbos.db'}", "janitor_seconds": None}
    async with DBOSAgentExecutor.open(url, agents=[stage.host], **system) as helix:
        handle = await helix.execute(stage.host, "Begin.", "s-1")
        await asyncio.gather(*(event.wait() for event in stage.at_work.values()))
        await asyncio.to_thread(server.kill)
        stage.go_on("left")
        while not any(getattr(each, "event", "") == "run.driver_lost" for each in caplog.records):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await asyncio.to_thread(server.start)
        while (await _attempts(helix))["host"] == 1:  # noqa: ASYNC110  # another attempt shows in the store
            await asyncio.sleep(0.05)
        stage.go_on("right")
        assert isinstance(await handle.result(), Completed)
        attempts = await _attempts(helix)
        assert {name: attempt > 1 for name, attempt in attempts.items()} == dict.fromkeys(stage.at_work, True)
        for each in (await helix.sessions.list(SessionFilter(root_session_id="s-1"))).items:
            rows = (await helix.sessions.messages(each.session_id)).items
            results = [row.message for row in rows if isinstance(row.message, ToolMessage)]
            assert each.status == "completed"
            assert [result for result in results if result.error] == []
            assert len(results) == (5 if each.agent_type == "host" else 2)


async def _attempts(helix: DBOSAgentExecutor) -> dict[str, int]:
    sessions = (await helix.sessions.list(SessionFilter(root_session_id="s-1"))).items
    return {each.agent_type: (await helix.sessions.runs(each.session_id)).items[0].attempt for each in sessions}


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(PARTS), ids=lambda part: f"part {part + 1} of {PARTS}")
@pytest.mark.parametrize("story", [*BACK, *CREWS], ids=lambda story: story.rpartition(".")[2])
async def test_a_worker_with_children_may_come_back_from_every_boundary(
    tmp_path: Path, processes: Processes, story: str, part: int, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "whole").mkdir()
    [whole] = await processes.run(CONVERSE, [{"folder": str(tmp_path / "whole"), "life": 0, "story": story}])
    assert whole.error is None
    boundaries = [(number, side) for number in range(1, whole.value["effects"] + 1) for side in SIDES]
    deaths = [{"effect": number, "side": side, "executor_id": "worker-1"} for number, side in boundaries[part::PARTS]]
    unknown = await kill_and_go_on(processes, tmp_path, deaths, story=story)
    if story == BACK[0]:
        counts = {name: Traces(tmp_path / name / "traces").counted() for name in unknown}
        assert counts == dict.fromkeys(unknown, IN_LINE_ONCE)
    with capsys.disabled():
        came, left = f"{len(deaths)} of {len(boundaries)} boundaries", sum(map(bool, unknown.values()))
        print(f"\n{story}: came back from {came}, {left} with unknown outcomes")
