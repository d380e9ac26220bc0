"""The course of the demonstration: a worker begins, is killed, a second goes on, a person decides, a third ends it."""

import asyncio
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from helix_agents.cli.demo.desk import FINDINGS, TASK
from helix_agents.cli.demo.proof import Check, count
from helix_agents.cli.demo.scene import Process, Scene
from helix_agents.cli.demo.shop import Shop
from helix_agents.cli.demo.views import View
from helix_agents.cli.demo.worker import SESSION_ID
from helix_agents.cli.exit_codes import ExitCode
from helix_agents.cli.opened import open_desk
from helix_agents.cli.output import Output
from helix_agents.cli.plain import plain
from helix_agents.domain.errors import HelixError, StreamFailedError
from helix_agents.domain.pending import ApprovalAnswer, PendingFilter
from helix_agents.ports.backend import Backend, open_backend
from helix_agents.ports.models import open_model

# The order that is in flight when its process dies; of a real model, which chooses its own titles, the first one.
HELD_ORDER = list(FINDINGS)[-1]
# How much of a reply must be visible before the process is killed in the middle of it.
PIECES_OF_A_REPLY = 6
MOST_SECONDS = 120.0


class WorkerFailedError(HelixError):
    """A worker of the demonstration ended too early, or not at all."""

    code = "worker_failed"
    pid: int
    problem: str

    def __str__(self) -> str:
        return f"Process {self.pid} did not do its part: {self.problem}"


@asynccontextmanager
async def _soon(process: Process) -> AsyncGenerator[None, None]:
    """Wait for a worker, but not for ever."""
    try:
        async with asyncio.timeout(MOST_SECONDS):
            yield
    except TimeoutError:
        raise WorkerFailedError(process.pid, f"it was not done after {MOST_SECONDS:.0f} seconds") from None


@contextmanager
def _keyboard_as_usual() -> Generator[None, None, None]:
    """Let Ctrl-C end the block, in which a person is waited for; the event loop would first let it finish."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Director:
    """Starts workers, watches them through the store alone, kills one, and counts at the end."""

    def __init__(self, output: Output, view: View, folder: Path, *, model: str | None, kept: bool) -> None:
        self._output = output
        self._view = view
        self._folder = folder
        self._model = model
        self._kept = kept
        self._url = f"sqlite:///{folder / 'demo.db'}"
        self._shop = Shop(folder)
        self._scene = Scene(view.event)
        self._held: str | None = None
        self._workers: list[asyncio.subprocess.Process] = []
        self._news = asyncio.Event()

    async def direct(self) -> ExitCode:
        """Run the demonstration and answer whether it held."""
        if self._model is not None:
            open_model(self._model)
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
        scene.tell(f"task: {TASK}")
        watching = asyncio.create_task(self._watch(backend))
        serving = asyncio.create_task(self._serve_orders())
        try:
            in_flight = await self._begin_and_kill(backend)
            await self._let_work(backend, "recover", "takes the run over: the same run, its next attempt")
            approvals = await self._decide()
            if approvals:
                await self._let_work(backend, "resume", "goes on with what was decided")
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
        turns = 1 + bool(approvals)
        checks = await count(backend, SESSION_ID, scene.book, scene.sequences, turns=turns)
        held = all(check.held for check in checks) and status == "completed"
        self._answer(checks, in_flight, status, held)
        return held, self._closing(checks, held)

    # -- the acts

    async def _begin_and_kill(self, backend: Backend) -> dict[str, int]:
        """The first worker, up to the moment that shows most; answers what it was in the middle of."""
        worker, process = await self._start("begin", "begins the run")
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
        self._scene.tell(
            f"process {process.pid} gets SIGKILL with {in_flight['researchers_done']} researcher back, "
            f"{in_flight['replies']} in mid-sentence, {in_flight['orders']} order in flight"
        )
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
        """Why a worker ended that should not have: what its run says, or else its last words."""
        run = await backend.state.get_current_run(SESSION_ID)
        words = complaint.decode(errors="replace").strip().splitlines()
        if run is not None and run.error:
            return WorkerFailedError(process.pid, run.error)
        if words:
            return WorkerFailedError(process.pid, words[-1])
        return WorkerFailedError(process.pid, "the model was done before there was anything to interrupt; try again")

    async def _decide(self) -> int:
        """Ask about every call that waits; no process is kept alive for that. Answers how many were decided."""
        decided = 0
        async with open_desk(self._url) as helix:
            waiting = await helix.list_pending(PendingFilter(root_session_id=SESSION_ID))
            for call in waiting.items:
                self._scene.tell("no process is alive now; the question is a row in the store")
                question = f"May the editor {call.tool_name} {call.input}?"
                with _keyboard_as_usual():
                    approved = self._view.ask(question)
                await helix.submit_tool_result(SESSION_ID, call.tool_call_id, ApprovalAnswer(approved=approved))
                self._scene.tell(f"{call.tool_name} is {'approved' if approved else 'denied'}, stored once")
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
        """The shop answers each order as it comes, but one: the process that placed it will not live to hear."""
        served: set[str] = set()
        while True:
            self._scene.book = await asyncio.to_thread(self._shop.entries)
            for entry in self._scene.book:
                if entry.key in served or entry.deed != "order":
                    continue
                served.add(entry.key)
                if self._held is None and (self._model is not None or entry.title == HELD_ORDER):
                    self._held = entry.key
                else:
                    self._shop.confirm(entry.key)
                self._news.set()
            await asyncio.sleep(0.02)

    def _is_the_moment(self) -> bool:
        """An order is out and unanswered; with a script also one researcher is back and one in mid-sentence."""
        if self._held is None or self._model is not None:
            return self._held is not None
        researchers = [each for each in self._scene.speakers.values() if each.name == "researcher"]
        at_work = [each for each in researchers if not each.done]
        # On a machine that stalls the reply may be over before anybody looked; the order is still in flight.
        return len(researchers) > len(at_work) and (
            len(at_work) == 1 or any(len(each.said) >= PIECES_OF_A_REPLY for each in at_work)
        )

    async def _in_flight(self, backend: Backend) -> dict[str, int]:
        """What the store knows of the work that was cut: asked after the kill, of rows that nobody changes now."""
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
            "helix_agents.cli.demo.worker",
            task,
            self._url,
            str(self._folder),
            self._model or "",
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
                "model": self._model or "scripted",
                "processes": [asdict(each) for each in self._scene.processes],
                "killed_with": in_flight,
                "checks": [{**plain(check), "held": check.held} for check in checks],
                "book": plain(self._scene.book),
                "chunks_seen": len(self._scene.sequences),
                "seconds": round(self._scene.seconds, 2),
                "folder": str(self._folder) if self._kept else None,
            }
        )

    def _closing(self, checks: list[Check], held: bool) -> list[str]:
        verdict = "Nothing was lost, and nothing was done twice." if held else "That did not hold, and that is a bug."
        look = "helix demo --keep desk" if not self._kept else f"helix sessions show {SESSION_ID} --store {self._url}"
        try_next = [(look, "the store and the order book of this, to look at")]
        if Path("examples/first_agent.py").exists():
            try_next += [
                ("helix chat examples/ask_a_human.py", "talk to an agent: approve, interrupt, rewind"),
                ("cat examples/first_agent.py", "an agent of your own, in 15 lines"),
            ]
        try_next.append(("helix doctor", "what is installed, and how your store is"))
        width = max(len(words) for words, _ in try_next)
        return [
            *map(str, checks),
            "",
            verdict,
            "",
            "Try next:",
            *(f"  {words:<{width}}  {what}" for words, what in try_next),
            "The agents you just watched are in helix_agents/cli/demo/desk.py.",
        ]
