"""Calls of MCP tools outlive the process that made them: people answer elsewhere, and nothing is left behind."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helix_agents import DBOSAgentExecutor, Executor, Suspended, TemporalAgentExecutor
from helix_agents.domain.pending import ApprovalAnswer
from helix_agents.mcp_tools.catalogue import write_catalogue
from helix_agents.testing import call
from helix_agents.testing.temporal_service import temporal_address as temporal_address
from helix_agents.testing.temporal_service import temporal_service as temporal_service
from tests.mcp_tools.shelves import PATIENCE, Shelf, agent_with, is_alive, results, results_in, until

JOB = Path(__file__).with_name("reading_room.py")


class Room:
    """The processes of one conversation, one after another."""

    def __init__(self, folder: Path, shelf: Shelf) -> None:
        self._given = [f"sqlite:///{folder / 'helix.db'}", str(shelf.folder)]
        write_catalogue(shelf.catalogue, shelf.folder / "shelf.mcp.json")

    def begin(self, tool: str) -> "subprocess.Popen[str]":
        return self._start(tool, "begin")

    def go_on(self, tool: str, phase: str) -> list[str]:
        told, _ = self._start(tool, phase).communicate(timeout=PATIENCE)
        return told.splitlines()

    def _start(self, tool: str, phase: str) -> "subprocess.Popen[str]":
        command = [sys.executable, str(JOB), *self._given, tool, phase]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def room(tmp_path: Path, program: Shelf) -> Room:
    return Room(tmp_path, program)


@pytest.mark.parametrize("tool", ["burn", "order"])
def test_a_call_that_is_approved_in_another_process_runs_there_and_once(tool: str, room: Room, program: Shelf) -> None:
    told, _ = room.begin(tool).communicate(timeout=PATIENCE)
    assert told == "suspended_client_tool\n"
    assert program.pids == [], "nobody needs a server to wait for a person"
    assert room.go_on(tool, "answer") == [f"approval shelf__{tool} {{'title': 'Tides'}}", "completed"]
    assert len(program.told("burnt") + program.told("orders")) == 1
    assert not any(map(is_alive, program.pids))


def test_a_call_whose_process_was_killed_is_not_sent_again_and_leaves_no_server_behind(
    room: Room, program: Shelf
) -> None:
    first = room.begin("lend")
    asyncio.run(program.until_told("Tides.begun"))
    os.kill(first.pid, signal.SIGKILL)
    first.communicate(timeout=PATIENCE)
    [pid] = program.pids
    asyncio.run(until(lambda: not is_alive(pid)))
    told = room.go_on("lend", "recover")
    assert told == ["unknown_outcome shelf__lend {'name': 'Tides'}", "completed"]
    assert len(program.told("Tides.begun")) == 1


def test_a_process_that_ends_without_closing_anything_leaves_no_server_behind(program: Shelf) -> None:
    code = (
        "import asyncio, sys\n"
        "from helix_agents import MCPToolServer\n"
        f"shelf = MCPToolServer('shelf', **{program.where!r})\n"
        "asyncio.run(shelf.take_catalogue())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (0, "")
    assert "Error" not in done.stderr
    assert not any(map(is_alive, program.pids))


@pytest.fixture(params=["in process", "dbos", "temporal"])
def runtime(request: pytest.FixtureRequest) -> Iterator[tuple[type, dict[str, object]]]:
    """An executor on each runtime, with what it needs."""
    match request.param:
        case "dbos":
            yield DBOSAgentExecutor, {"prefix": "shelf"}
        case "temporal":
            address = request.getfixturevalue("temporal_address")
            name = f"shelf-{os.getpid()}"
            yield TemporalAgentExecutor, {"address": address, "task_queue": name, "prefix": name}
        case _:
            yield Executor, {}


async def test_the_tools_work_on_every_runtime_alike(runtime: tuple[type, dict[str, object]], shelf: Shelf) -> None:
    kind, settings = runtime
    tools = shelf.tools()
    script = [call("shelf__search", {"query": "tides"}), call("shelf__order", {"title": "A"}), "Done."]
    agent = agent_with(tools, script)
    careful = agent_with(tools, [call("shelf__burn", {"title": "B"}), "Done."], name="careful")
    url = f"sqlite:///{shelf.folder / 'helix.db'}"
    async with kind.open(url, agents=[agent, careful], **settings) as helix, asyncio.timeout(PATIENCE):
        found, ordered = await results(helix, agent)
        run = await helix.execute(careful, "Burn")
        outcome = await run.result()
        assert isinstance(outcome, Suspended)
        [waiting] = outcome.pending
        await helix.submit_tool_result(run.session_id, waiting.tool_call_id, ApprovalAnswer(approved=True))
        await (await helix.resume(careful, run.session_id)).result()
        [burnt] = await results_in(helix, run.session_id)
    assert (found.content, ordered.content, burnt.content) == (["tides 1", "tides 2"], "ordered A", "burnt B")
    assert shelf.told("burnt") == ["B"]
    assert len(shelf.orders) == 1
    assert len(shelf.pids) == 1
    if shelf.transport == "stdio":
        await until(lambda: not is_alive(shelf.pids[0]))


async def test_calls_are_made_as_the_user_of_their_run_on_every_runtime(
    runtime: tuple[type, dict[str, object]], service: Shelf
) -> None:
    kind, settings = runtime
    server = service.server(run_headers=lambda ctx: {"authorization": f"Bearer token-{ctx.user_id}"})
    agent = agent_with(
        service.tools("whose", server=server, require_approval=True), [call("shelf__whose"), "Done."] * 2
    )
    url = f"sqlite:///{service.folder / 'helix.db'}"
    async with kind.open(url, agents=[agent], **settings) as helix, asyncio.timeout(PATIENCE):
        for user in ("ann", "ben"):
            run = await helix.execute(agent, "Whose is it?", user_id=user)
            outcome = await run.result()
            assert isinstance(outcome, Suspended)
            [waiting] = outcome.pending
            await helix.submit_tool_result(run.session_id, waiting.tool_call_id, ApprovalAnswer(approved=True))
            await (await helix.resume(agent, run.session_id)).result()
            [told] = await results_in(helix, run.session_id)
            assert told.content == user
