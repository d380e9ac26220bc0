"""What processes do that meet in one session: both want to drive it, or one is replaced while it is frozen."""

import asyncio
import mmap
import os
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.context import ToolContext
from helix_agents.agent.tools import tool
from helix_agents.domain.errors import HelixError
from helix_agents.ports.backend import open_backend
from helix_agents.ports.llm import ModelEvent, TextPiece
from helix_agents.ports.streams import StreamManager
from helix_agents.runtimes.executor.handle import RunHandle
from helix_agents.runtimes.in_process import Executor
from helix_agents.testing import ScriptedModel, call
from helix_agents.testing.recording import Recorder, RecordingExecutor, StopAt
from helix_agents.testing.workers import Job
from tests.recovery import reference_conversation as reference
from tests.recovery.conversation_jobs import LaterClock, freeze
from tests.recovery.reference_conversation import Traces, dependencies

MODULE = __name__

PATIENCE = 20.0
"""No process waits longer than this for another, in seconds."""

# A process that is frozen may renew its own lease when it wakes; everything else belongs to whoever replaced it.
OWN_TABLES = {"__agents_leases"}


@tool(require_approval=True)
def publish(ctx: ToolContext[Any, Traces], title: str) -> str:
    """Publish something, once somebody agreed."""
    ctx.deps.leave(ctx.session_id)
    return f"published {title}"


GATEKEEPER = Agent(
    name="gatekeeper",
    model=ScriptedModel([call("publish", {"title": "t"}, id="publish"), "Done."]),
    tools=[publish],
)


class Meeting:
    """Where two processes wait for each other, so closely that they go on within microseconds, again and again."""

    def __init__(self, path: Path, who: int) -> None:
        with path.open("r+b") as file:
            self._memory = memoryview(mmap.mmap(file.fileno(), 16)).cast("Q")
        self._who = who

    @staticmethod
    def prepare(path: Path) -> Path:
        path.write_bytes(bytes(16))
        return path

    def meet(self) -> None:
        """Go on when the other is here too."""
        self._memory[self._who] += 1
        overdue = time.monotonic() + PATIENCE
        while self._memory[1 - self._who] < self._memory[self._who]:
            if time.monotonic() > overdue:
                raise TimeoutError("the other process did not come")
            time.sleep(0)


@asynccontextmanager
async def executor(url: str, traces: Path, *agents: AnyAgent) -> AsyncGenerator[Executor]:
    async with await open_backend(url) as backend:
        helix = Executor(
            state=backend.state,
            streams=backend.streams,
            usage=backend.usage,
            agents=agents,
            deps=dependencies(Traces(traces)),
            janitor_seconds=None,
        )
        async with helix:
            yield helix


async def attempt(entry: Awaitable[RunHandle[Any]]) -> RunHandle[Any] | str:
    """The handle, or the name of the refusal."""
    try:
        return await entry
    except HelixError as refusal:
        return type(refusal).__name__


async def resume_each(job: Job, url: str, traces: str, meeting: str, who: int, sessions: int) -> list[str]:
    """Resume session after session at the same moment as the other; answers how each run ended, or the refusal."""
    place = Meeting(Path(meeting), who)
    ends: list[str] = []
    async with executor(url, Path(traces), GATEKEEPER) as helix:
        for number in range(sessions):
            place.meet()
            resumed = await attempt(helix.resume(GATEKEEPER, f"s-{number}"))
            ends.append(resumed if isinstance(resumed, str) else (await resumed.result()).status)
    return ends


async def execute_each(job: Job, url: str, traces: str, meeting: str, who: int, sessions: int) -> list[str]:
    """Begin the first and then the second turn of each session at the same moment as the other process.

    No run ends before both have tried.
    """
    place = Meeting(Path(meeting), who)
    both_tried = asyncio.Event()

    async def wait_for_both(event: ModelEvent) -> None:
        await both_tried.wait()

    agent = Agent(name="talker", model=ScriptedModel(lambda request: "Done.", pace=wait_for_both))
    ends: list[str] = []
    async with executor(url, Path(traces), agent) as helix:
        for number in range(2 * sessions):
            both_tried.clear()
            place.meet()
            begun = await attempt(helix.execute(agent, f"from {who}", f"x-{number // 2}"))
            place.meet()
            both_tried.set()
            ends.append(begun if isinstance(begun, str) else (await begun.result()).status)
            place.meet()
    return ends


# -- a process that is frozen and replaced


async def freeze_or_replace(job: Job, folder: str, url: str, who: str, **at: Any) -> Any:
    """Two ends of one conversation: `frozen` stops in the middle of it, `replacing` takes it over and wakes it up."""
    place = Path(folder)
    if who == "frozen":
        return await be_frozen(place, url, **at)
    return await replace(place, url)


async def be_frozen(folder: Path, url: str, piece: int | None = None, effect: int | None = None, side: Any = "") -> str:
    """Begin the reference conversation and freeze in it; answers how the driver, once awake, found the run."""
    (folder / "pid").write_text(str(os.getpid()))
    backend = await open_backend(url)
    pieces = 0

    async def freeze_at_piece(event: ModelEvent) -> None:
        nonlocal pieces
        if isinstance(event, TextPiece):
            pieces += 1
            if pieces == piece:
                await until_seen(backend.streams, pieces)
                freeze()

    recorder = Recorder(StopAt(effect=effect, side=side) if effect is not None else None, on_stop=freeze, goes_on=True)
    async with backend:
        helix = RecordingExecutor(
            recorder=recorder,
            state=backend.state,
            streams=backend.streams,
            usage=backend.usage,
            agents=[reference.AGENT],
            deps=dependencies(Traces(folder / "traces")),
            janitor_seconds=None,
        )
        model = ScriptedModel(reference.SCRIPT, chunk=5, pace=freeze_at_piece)
        async with helix:
            handle = await helix.execute(reference.AGENT, reference.QUESTIONS[0], reference.SESSION, model=model)
            ended = (await handle.result()).status
    (folder / "woke").touch()
    return ended


async def replace(folder: Path, url: str) -> list[str]:
    """Take the frozen process' run over, end the conversation, wake it; answers which tables it changed then."""
    await until(lambda: is_frozen(folder / "pid"))
    pid = int((folder / "pid").read_text())
    try:
        async with await open_backend(url, clock=LaterClock(1)) as backend:
            helix = Executor(
                state=backend.state,
                streams=backend.streams,
                usage=backend.usage,
                agents=[reference.AGENT],
                deps=dependencies(Traces(folder / "traces")),
                janitor_seconds=None,
            )
            async with helix:
                await reference.go_on(helix)
        before = digests(folder / "helix.db")
    finally:
        os.kill(pid, signal.SIGCONT)
    await until((folder / "woke").exists)
    after = digests(folder / "helix.db")
    return sorted(table for table in before if before[table] != after[table])


async def until_seen(streams: StreamManager, chunks: int) -> None:
    """Wait until readers can see so many chunks of the conversation."""
    async with asyncio.timeout(PATIENCE):
        while (info := await streams.get_stream_info(reference.SESSION)) is None or info.latest_sequence < chunks:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def until(condition: Callable[[], bool]) -> None:
    """Look again and again until it holds."""
    overdue = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > overdue:
            raise TimeoutError("what the other process was to do did not happen")
        await asyncio.sleep(0.005)


def is_frozen(pid: Path) -> bool:
    """Whether the kernel says so of the process whose number is in the file."""
    if not pid.exists() or not (number := pid.read_text()):
        return False
    return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def digests(path: Path) -> dict[str, str]:
    """What every table holds, each as one short text."""
    connection = apsw.Connection(str(path))
    names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    found = {
        str(name): sha256(repr(connection.execute(f'SELECT * FROM "{name}"').fetchall()).encode()).hexdigest()
        for (name,) in names
        if name not in OWN_TABLES
    }
    connection.close()
    return found
