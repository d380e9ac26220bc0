"""A scripted agent that takes a given number of steps, and the same bytes written by hand."""

import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import apsw
from floor import FloorSession, FloorWriter
from peers import DONE, PAGE, QUERY, TEXT

from helix_agents.agent.agent import Agent
from helix_agents.agent.client_tools import client_tool
from helix_agents.agent.tools import tool
from helix_agents.domain.pending import ToolAnswer
from helix_agents.llm.scripted import Reply, ScriptedModel, call, reply
from helix_agents.ports.backend import open_backend
from helix_agents.ports.llm import ModelRequest
from helix_agents.runtimes.in_process import Executor

CLIENT_CALL = "call_client"

_sessions = count(1)


@tool
async def search(query: str) -> str:
    """Look something up."""
    return PAGE


@client_tool
def confirm(question: str) -> str:
    """Ask the client."""


class Steps:
    """Runs sessions of our agent: a tool call in every step but the last.

    `probe` is called at each model call; `probed` has what it returned.
    """

    def __init__(self, helix: Executor, probe: Callable[[], Any] = time.perf_counter) -> None:
        self._helix = helix
        self._probe = probe
        self._agents: dict[tuple[int, bool], Agent[Any, str, Any]] = {}
        self.probed: list[Any] = []

    def agent(self, steps: int, *, suspends: bool = False) -> Agent[Any, str, Any]:
        """An agent for this many steps. One that suspends asks its client in the last of them, and is then done.

        It is set up once, like the agents of the other frameworks.
        """
        known = self._agents.get((steps, suspends))
        if known is None:
            known = self._agents[steps, suspends] = self._set_up(steps, suspends)
        return known

    def _set_up(self, steps: int, suspends: bool) -> Agent[Any, str, Any]:
        def script(request: ModelRequest) -> Reply:
            self.probed.append(self._probe())
            if request.step < steps:
                return reply(TEXT, calls=[call("search", QUERY, id=f"call_{request.step}")])
            if suspends and request.step == steps:
                return reply(TEXT, calls=[call("confirm", {"question": "Go on?"}, id=CLIENT_CALL)])
            return reply(DONE)

        return Agent(name="bench", model=ScriptedModel(script), tools=[search, confirm], max_steps=steps + 2)

    async def run(self, steps: int) -> float:
        """Seconds that a fresh session of this many steps takes."""
        agent = self.agent(steps)
        begin = time.perf_counter()
        handle = await self._helix.execute(agent, "go", f"session-{next(_sessions)}")
        assert await handle.output() == DONE
        return time.perf_counter() - begin

    async def step_times(self, steps: int) -> list[float]:
        """Seconds from each model call of a fresh session to the next."""
        self.probed.clear()
        await self.run(steps)
        return [after - before for before, after in pairwise(self.probed)]

    async def suspended(self, steps: int) -> str:
        """A session of this many steps whose client has answered, but that has not been resumed yet."""
        session_id = f"session-{next(_sessions)}"
        handle = await self._helix.execute(self.agent(steps, suspends=True), "go", session_id)
        await handle.result()
        await self._helix.submit_tool_result(session_id, CLIENT_CALL, ToolAnswer(result="yes"))
        return session_id

    async def resume(self, session_id: str, steps: int) -> float:
        """Seconds from resuming a session to its next model call."""
        self.probed.clear()
        agent = self.agent(steps, suspends=True)
        begin = time.perf_counter()
        handle = await self._helix.resume(agent, session_id)
        assert await handle.output() == DONE
        return self.probed[0] - begin


@asynccontextmanager
async def stepping(
    url: str, *, seam: Any = None, probe: Callable[[], Any] = time.perf_counter, **settings: Any
) -> AsyncIterator[Steps]:
    """An executor with default settings except for these, on a backend whose statements pass through the seam."""
    async with (
        await open_backend(url, seam=seam) as backend,
        Executor(state=backend.state, streams=backend.streams, usage=backend.usage, **settings) as helix,
    ):
        yield Steps(helix, probe)


class WriteSeam:
    """Counts SQLite's write transactions: those that touch the state, and those that only flush a stream."""

    def __init__(self) -> None:
        self.writes = self.flushes = 0
        self._touches_state = False

    def __call__(self, statement: str, /) -> None:
        if not threading.current_thread().name.startswith("helix-write"):
            return
        if statement == "COMMIT":
            self.writes += self._touches_state
            self.flushes += not self._touches_state
        elif statement.startswith("BEGIN"):
            self._touches_state = False
        elif "__agents_stream" not in statement:
            self._touches_state = True

    def counts(self) -> tuple[int, int]:
        return self.writes, self.flushes


class StoredStep(NamedTuple):
    """What one of our steps leaves in the file."""

    messages: list[str]
    chunks: str
    usage: str

    @property
    def size(self) -> int:
        return sum(map(len, (*self.messages, self.chunks, self.usage)))


async def stored_step(folder: Path) -> StoredStep:
    """The second step of a session, read back from its file."""
    file = folder / "sample.db"
    async with stepping(f"sqlite:///{file}") as ours:
        await ours.run(3)
    connection = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)

    def texts(query: str) -> list[str]:
        return [text for (text,) in connection.execute(query)]

    messages = texts("SELECT body FROM __agents_messages ORDER BY id LIMIT 2 OFFSET 3")
    [chunks] = texts("SELECT bodies FROM __agents_stream_chunks WHERE bodies ->> '$[#-1].step' = 2")
    [usage] = texts("SELECT used FROM __agents_checkpoints WHERE step_count = 2")
    connection.close()
    return StoredStep(messages, chunks, usage)


class Floor:
    """A bare loop that commits the bytes of a step in one transaction, and does nothing else."""

    def __init__(self, writer: FloorWriter, step: StoredStep) -> None:
        self._writer = writer
        self._step = step

    async def run(self, steps: int) -> float:
        """Seconds that a session of this many steps takes."""
        session = FloorSession(self._writer, next(_sessions))
        messages, chunks, usage = self._step
        begin = time.perf_counter()
        await session.create()
        for step in range(1, steps + 1):
            now = time.time_ns() // 1_000_000
            await session.commit(step, messages, None, now, chunks=chunks, usage=usage)
        return time.perf_counter() - begin


def read_raw(file: Path, session_id: str) -> float:
    """Seconds to open the file and read the rows that a resume needs, without processing them."""
    begin = time.perf_counter()
    connection = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)
    rows = connection.execute("SELECT * FROM __agents_sessions WHERE session_id = ?", (session_id,)).fetchall()
    segments = connection.execute("SELECT * FROM __agents_segments WHERE session_id = ?", (session_id,)).fetchall()
    within = (segments[0][0] << 32, segments[0][0] << 32 | 0xFFFF_FFFF)
    for table in ("messages", "state_log"):
        rows += connection.execute(f"SELECT * FROM __agents_{table} WHERE id BETWEEN ? AND ?", within).fetchall()
    for table in ("runs", "pending_calls", "staging"):
        rows += connection.execute(f"SELECT * FROM __agents_{table} WHERE session_id = ?", (session_id,)).fetchall()
    took = time.perf_counter() - begin
    connection.close()
    assert len(rows) > 2
    return took
