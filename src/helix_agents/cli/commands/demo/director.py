"""The course of the demo: a worker starts and is killed, a second takes over, a person decides, a third finishes."""

import asyncio
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from helix_agents.cli.commands.demo.casting import Cast
from helix_agents.cli.commands.demo.closing import closing_words
from helix_agents.cli.commands.demo.desk import FINDINGS, TASK
from helix_agents.cli.commands.demo.proof import Check, count
from helix_agents.cli.commands.demo.scene import Process, Scene, quoted
from helix_agents.cli.commands.demo.shop import Shop
from helix_agents.cli.commands.demo.views import View
from helix_agents.cli.commands.demo.worker import SESSION_ID
from helix_agents.cli.exit_codes import ExitCode
from helix_agents.cli.opened import open_desk
from helix_agents.cli.output import Output
from helix_agents.cli.plain import plain, shown_json
from helix_agents.domain.errors import HelixError, StreamFailedError
from helix_agents.domain.pending import ApprovalAnswer, PendingFilter
from helix_agents.domain.records import JSON
from helix_agents.ports.backend import Backend, open_backend

# The order that is in flight when its process dies; with a real model, which chooses its own titles, the first one.
HELD_ORDER = list(FINDINGS)[-1]
# How much of a reply must be visible before the process is killed in the middle of it.
PIECES_OF_A_REPLY = 6
MOST_SECONDS = 120.0
# How long a real model's other agents get to be in the middle of something while one waits for its order.
MOST_SECONDS_OF_AN_ORDER = 6.0
STORE_FILE = "demo.db"


class WorkerFailedError(HelixError):
    """A worker of the demo ended too early, or did not end."""

    code = "worker_failed"
    pid: int
    problem: str

    def __str__(self) -> str:
        return f"Process {self.pid} failed: {self.problem}"


@asynccontextmanager
async def _soon(process: Process) -> AsyncGenerator[None, None]:
    """Wait for a worker, but not forever."""
    try:
        async with asyncio.timeout(MOST_SECONDS):
            yield
    except TimeoutError:
        raise WorkerFailedError(process.pid, f"it did not finish within {MOST_SECONDS:.0f} seconds") from None


@contextmanager
def _keyboard_as_usual() -> Generator[None, None, None]:
    """Let Ctrl-C end the block, which waits for a person; the event loop would let it finish first."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Director:
    """Starts workers, watches them through the store alone, kills one, and counts at the end."""

    def __init__(self, output: Output, view: View, folder: Path, *, cast: Cast, kept: bool) -> None:
        self._output = output
        self._view = view
        self._folder = folder
        self._cast = cast
        self._kept = kept
        self._url = f"sqlite:///{folder / STORE_FILE}"
        self._shop = Shop(folder)
        self._scene = Scene(view.event)
        self._held: str | None = None
        self._held_since = 0.0
        self._workers: list[asyncio.subprocess.Process] = []
        self._news = asyncio.Event()

    async def direct(self) -> ExitCode:
        """Run the demonstration and return whether it held."""
        self._view.begin(self._scene)
        closing: list[str] = []
        try:
            async with await open_backend(self._url) as backend:
                held, closing = await self._play(backend)
        finally:
            self._view.end(closing)
        return ExitCode.OK if held else ExitCode.FAILED

    async def _play(self, backend: Backend) -> tuple[bool, list[str]]:
        scene = self._scene
        scene.tell(self._cast.why)
        scene.tell(f"task: {TASK}")
        watching = asyncio.create_task(self._watch(backend))
        serving = asyncio.create_task(self._serve_orders())
        try:
            in_flight = await self._begin_and_kill(backend)
            await self._let_work(backend, "recover", "takes over: the same run, its next attempt")
            turns = 1
            while await self._decide():
                turns += 1
                await self._let_work(backend, "resume", "resumes the session with the decision")
            run = await backend.state.get_current_run(SESSION_ID)
            status = "missing" if run is None else run.status
            scene.tell(f"the run is {status}")
            await self._catch_up(backend)
        finally:
            for worker in self._workers:
                if worker.returncode is None:
                    worker.kill()
            for task in (watching, serving):
                task.cancel()
            await asyncio.gather(watching, serving, return_exceptions=True)
        scene.book = self._shop.entries()
        checks = await count(backend, SESSION_ID, scene.book, scene.sequences, turns=turns)
        held = all(check.held for check in checks) and status == "completed"
        self._answer(checks, in_flight, status, held)
        return held, closing_words(checks, held=held, kept_at=self._url if self._kept else None)

    # -- the acts

    async def _begin_and_kill(self, backend: Backend) -> dict[str, int]:
        """Run the first worker up to the most telling moment; returns what it was in the middle of."""
        worker, process = await self._start("begin", "starts the run")
        ended = asyncio.create_task(worker.wait())
        ended.add_done_callback(lambda _: self._news.set())
        async with _soon(process):
            await self._until(lambda: self._is_the_moment() or ended.done())
        if worker.returncode is None:
            worker.send_signal(signal.SIGKILL)
        _, complaint = await worker.communicate()
        if worker.returncode != -signal.SIGKILL:
            raise await self._explained(backend, process, complaint)
        process.state = "killed"
        in_flight = await self._in_flight(backend)
        self._scene.tell(f"process {process.pid} is killed with SIGKILL")
        self._scene.tell(
            f"at the kill: {in_flight['researchers_done']} researcher done, {in_flight['replies']} mid-sentence, "
            f"{in_flight['orders']} order in flight"
        )
        await asyncio.sleep(self._view.reading_seconds)
        return in_flight

    async def _let_work(self, backend: Backend, task: str, what: str) -> None:
        worker, process = await self._start(task, what)
        async with _soon(process):
            _, complaint = await worker.communicate()
        process.state = "left"
        self._view.refresh()
        if worker.returncode != 0:
            raise await self._explained(backend, process, complaint)

    async def _explained(self, backend: Backend, process: Process, complaint: bytes) -> "WorkerFailedError":
        """Why a worker ended that should not have: the error of its run, or otherwise its last line of output."""
        run = await backend.state.get_current_run(SESSION_ID)
        words = complaint.decode(errors="replace").strip().splitlines()
        if run is not None and run.error:
            problem = run.error
        elif words:
            problem = words[-1]
        else:
            problem = "the model finished before there was anything to interrupt"
        way_out = " (to run without a real model: helix demo --scripted)" if self._cast.model is not None else ""
        return WorkerFailedError(process.pid, problem + way_out)

    async def _decide(self) -> int:
        """Ask about every call that waits; no process is kept alive for that. Returns how many were decided."""
        decided = 0
        async with open_desk(self._url) as helix:
            waiting = await helix.list_pending(PendingFilter(root_session_id=SESSION_ID))
            for call in waiting.items:
                self._scene.tell("no process is running now; the question is a row in the store")
                question = f"May the editor {call.tool_name} {_subject(call.input)}?"
                with _keyboard_as_usual():
                    approved = self._view.ask(question)
                await helix.submit_tool_result(SESSION_ID, call.tool_call_id, ApprovalAnswer(approved=approved))
                self._scene.tell(
                    f"{call.tool_name} is {'approved' if approved else 'denied'}; the decision is stored once"
                )
                decided += 1
        return decided

    # -- watching

    async def _watch(self, backend: Backend) -> None:
        """Read the stream as a page in a browser does: from where it is, across kills and pauses."""
        while True:
            cursor = self._scene.sequences[-1] if self._scene.sequences else 0
            reader = await backend.streams.create_resumable_reader(SESSION_ID, from_sequence=cursor)
            if reader is not None:
                with suppress(StreamFailedError):
                    async for chunk in reader:
                        self._scene.see(chunk)
                        self._news.set()
                        self._view.refresh()
                await reader.close()
            await asyncio.sleep(0.05)

    async def _catch_up(self, backend: Backend) -> None:
        """Give the reader time to see the last chunk."""
        info = await backend.streams.get_stream_info(SESSION_ID)
        latest = 0 if info is None else info.latest_sequence
        await self._until(lambda: bool(self._scene.sequences) and self._scene.sequences[-1] >= latest)

    async def _until(self, holds: Callable[[], bool]) -> None:
        """Wait for something that the stream or the order book will show."""
        while not holds():
            self._news.clear()
            await self._news.wait()

    async def _serve_orders(self) -> None:
        """The shop answers each order as it comes, except one: the process that placed it will not live to get the
        answer."""
        served: set[str] = set()
        while True:
            self._scene.book = await asyncio.to_thread(self._shop.entries)
            for entry in self._scene.book:
                if entry.key in served or entry.deed != "order":
                    continue
                served.add(entry.key)
                if self._held is None and (self._cast.model is not None or entry.title == HELD_ORDER):
                    self._held, self._held_since = entry.key, self._scene.seconds
                else:
                    self._shop.confirm(entry.key)
            self._news.set()
            await asyncio.sleep(0.02)

    def _is_the_moment(self) -> bool:
        """An order is placed and unanswered, one researcher is back and one is in mid-sentence."""
        if self._held is None:
            return False
        # A real model need not do all that; an order in flight is enough.
        if self._cast.model is not None and self._scene.seconds - self._held_since > MOST_SECONDS_OF_AN_ORDER:
            return True
        researchers = [each for each in self._scene.speakers.values() if each.name == "researcher"]
        at_work = [each for each in researchers if not each.done]
        # On a machine that stalls, the reply may be over before it is noticed; the order is still in flight.
        return len(researchers) > len(at_work) and (
            len(at_work) == 1 or any(len(each.said) >= PIECES_OF_A_REPLY for each in at_work)
        )

    async def _in_flight(self, backend: Backend) -> dict[str, int]:
        """What the store knows about the interrupted work, read after the kill from rows that no process changes
        now."""
        orders = replies = done = 0
        for ref in await backend.state.get_sub_session_refs(SESSION_ID):
            effects = await backend.state.list_effects(ref.sub_session_id)
            child = await backend.state.get_current_run(ref.sub_session_id)
            finished = child is not None and child.status == "completed"
            open_orders = sum(effect.result is None for effect in effects)
            done += finished
            orders += open_orders
            replies += not finished and not open_orders
        return {"researchers_done": done, "orders": orders, "replies": replies}

    # -- workers and words

    async def _start(self, task: str, what: str) -> tuple[asyncio.subprocess.Process, Process]:
        worker = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "helix_agents.cli.commands.demo.worker",
            task,
            self._url,
            str(self._folder),
            self._cast.model or "",
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=PIPE,
        )
        self._workers.append(worker)
        process = Process(pid=worker.pid, task=task)
        self._scene.processes.append(process)
        self._scene.tell(f"process {worker.pid} {what}")
        return worker, process

    def _answer(self, checks: list[Check], in_flight: dict[str, int], status: str, held: bool) -> None:
        self._output.answer(
            {
                "held": held,
                "status": status,
                "model": self._cast.model or "scripted",
                "processes": [asdict(each) for each in self._scene.processes],
                "killed_with": in_flight,
                "checks": [{**plain(check), "held": check.held} for check in checks],
                "book": plain(self._scene.book),
                "chunks_seen": len(self._scene.sequences),
                "seconds": round(self._scene.seconds, 2),
                "folder": str(self._folder) if self._kept else None,
            }
        )


def _subject(given: JSON) -> str:
    """What a call is about, in a sentence."""
    match given:
        case {"title": str() as title}:
            return quoted(title)
        case _:
            return shown_json(given)
