"""Real servers for the tests: programs over standard input and output, and over HTTP on this machine."""

import asyncio
import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from helix_agents import Agent, MCPToolServer, ScriptedModel
from helix_agents.agent.agent import AnyAgent
from helix_agents.domain.messages import ToolMessage
from helix_agents.domain.results import Completed
from helix_agents.mcp_tools.catalogue import Catalogue
from helix_agents.runtimes.executor.core import ExecutorCore
from helix_agents.testing.service_process import free_port

PROGRAM = Path(__file__).with_name("shelf.py")
PATIENCE = 60.0
LOOK_SECONDS = 0.01


class PreparedShelves:
    """Makes servers from a process that has imported everything already."""

    def __init__(self) -> None:
        self._maker = subprocess.Popen(
            [sys.executable, str(PROGRAM.with_name("prepared_shelf.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self._maker.communicate)

    def start(self, folder: Path, port: int) -> int:
        """Start one; says the number of its process."""
        assert self._maker.stdin is not None
        assert self._maker.stdout is not None
        self._maker.stdin.write(json.dumps([str(folder), port]) + "\n")
        self._maker.stdin.flush()
        return int(self._maker.stdout.readline())


@cache
def _prepared() -> PreparedShelves:
    return PreparedShelves()


class Shelf:
    """A server for tests, its folder, and its catalogue."""

    def __init__(self, folder: Path, catalogue: Catalogue, transport: str = "stdio") -> None:
        self.folder = folder
        self.catalogue = catalogue
        self.transport = transport
        self.port = free_port()
        self._process: int | None = None
        folder.mkdir(exist_ok=True)

    @property
    def where(self) -> dict[str, Any]:
        """How it is reached."""
        if self.transport == "stdio":
            return {"command": [sys.executable, str(PROGRAM), str(self.folder)]}
        return {"url": f"http://127.0.0.1:{self.port}/mcp"}

    def server(self, **options: Any) -> MCPToolServer:
        """The server as an agent knows it; one more of them is as in another process."""
        return MCPToolServer("shelf", **{**self.where, "catalogue": self.folder / "shelf.mcp.json", **options})

    def tools(self, *names: str, server: MCPToolServer | None = None, **settings: Any) -> Any:
        """Tools of it, without a look at any file: tests that run in the event loop must not read one."""
        return (server or self.server()).tools(*names, catalogue=self.catalogue, **settings)

    def say(self, name: str, text: str = "") -> None:
        """Tell it something."""
        (self.folder / name).write_text(text, encoding="utf-8")

    def told(self, name: str) -> list[str]:
        """What it has written down under a name."""
        file = self.folder / name
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []

    @property
    def orders(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self.told("orders")]

    @property
    def pids(self) -> list[int]:
        """The processes there have been, oldest first."""
        return [int(line) for line in self.told("started")]

    async def until_told(self, name: str) -> list[str]:
        await until(lambda: bool(self.told(name)))
        return self.told(name)

    def start(self) -> None:
        """Start it, where it is one that is not started by its client."""
        if self.transport == "stdio":
            return
        self._process = _prepared().start(self.folder, self.port)
        overdue = time.monotonic() + PATIENCE
        while not self._listens():
            assert time.monotonic() < overdue
            assert is_alive(self._process)
            time.sleep(LOOK_SECONDS)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    async def kill(self) -> None:
        """End it where it stands."""
        if self._process is None:
            os.kill(self.pids[-1], signal.SIGKILL)
        else:
            await asyncio.to_thread(self.end)

    def end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        os.kill(process, signal.SIGKILL)
        overdue = time.monotonic() + PATIENCE
        while is_alive(process):
            assert time.monotonic() < overdue
            time.sleep(LOOK_SECONDS)


def agent_with(tools: Sequence[Any], script: Any, **fields: Any) -> AnyAgent:
    return Agent(**{"name": "reader", "model": ScriptedModel(script), "tools": tools, **fields})


async def results(helix: ExecutorCore, agent: AnyAgent, message: str = "Go on", **options: Any) -> list[ToolMessage]:
    """The results of all calls of a turn that ends well."""
    async with asyncio.timeout(PATIENCE):
        run = await helix.execute(agent, message, **options)
        outcome = await run.result()
    assert isinstance(outcome, Completed), outcome
    return await results_in(helix, run.session_id)


async def results_in(helix: ExecutorCore, session_id: str) -> list[ToolMessage]:
    stored = await helix.sessions.messages(session_id)
    in_order = sorted(stored.items, key=lambda each: each.sequence)
    return [each.message for each in in_order if isinstance(each.message, ToolMessage)]


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not is_so():  # noqa: ASYNC110  # another process says so
            await asyncio.sleep(LOOK_SECONDS)


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
