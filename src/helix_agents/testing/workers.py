"""Real processes for proofs: started by the dozen in milliseconds, always reaped, never outliving the test.

One nursery process imports the package once and forks a child for every job, so that a proof can afford forty kills.
A job is an async function, named `module:function`, that takes a `Job` and JSON arguments and returns JSON.
"""

import asyncio
import ctypes
import importlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType

import msgspec

from helix_agents.domain.records import JSON

NURSERY_GRACE_SECONDS = 10.0


class JobRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What one child has to do."""

    function: str
    arguments: dict[str, JSON] = {}


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How one child ended: what it reported on the way, what it returned, or how it died."""

    reports: list[JSON] = []
    value: JSON = None
    error: str | None = None
    signal: int | None = None
    timed_out: bool = False

    @property
    def was_killed(self) -> bool:
        return self.signal == signal.SIGKILL and not self.timed_out


class _Batch(msgspec.Struct, frozen=True, kw_only=True):
    jobs: list[JobRequest]
    timeout: float


class _Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a child writes to its pipe, one JSON line each."""

    ready: bool = False
    report: JSON = msgspec.UNSET
    value: JSON = msgspec.UNSET
    error: str | None = None


class Processes:
    """The handle a test holds: start it with `with`, give it jobs, get their outcomes.

    Modules to `preload` are imported once, before any child is forked.
    """

    def __init__(self, *, preload: Sequence[str] = ()) -> None:
        self._preload = list(preload)
        self._nursery: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Processes":
        # A child finds the same modules as this process, whatever put them on the path.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
        # Started by the thread that lives longest: the kernel ends the nursery with the thread that created it.
        self._nursery = subprocess.Popen(
            [sys.executable, "-m", __name__, *self._preload],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            bufsize=0,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def run(
        self, function: str, arguments: Sequence[Mapping[str, JSON]], *, timeout: float = 60.0
    ) -> list[Outcome]:
        """Run one child per set of arguments, all at once; a child that overruns the timeout is killed."""
        jobs = [JobRequest(function=function, arguments=dict(each)) for each in arguments]
        return await asyncio.to_thread(self._ask, _Batch(jobs=jobs, timeout=timeout))

    def close(self) -> None:
        """End the nursery and with it every child; idempotent."""
        if self._nursery is None:
            return
        nursery, self._nursery = self._nursery, None
        try:
            nursery.communicate(timeout=NURSERY_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            nursery.kill()
            nursery.communicate()

    def _ask(self, batch: _Batch) -> list[Outcome]:
        nursery = self._nursery
        if nursery is None or nursery.stdin is None or nursery.stdout is None:
            raise RuntimeError("start the processes with `with` before giving them jobs")
        nursery.stdin.write(msgspec.json.encode(batch) + b"\n")
        nursery.stdin.flush()
        answer = _read_line(nursery.stdout.fileno(), batch.timeout + NURSERY_GRACE_SECONDS)
        return msgspec.json.decode(answer, type=list[Outcome])


def _ready(fds: Iterable[int], overdue: float) -> list[int]:
    """Those that can be read, as soon as one can; none if the time is up. Any number may be open besides."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN | select.POLLHUP)
    return [fd for fd, _ in poll.poll(max(0.0, overdue - time.monotonic()) * 1000)]


def _read_line(fd: int, timeout: float) -> bytes:
    line = b""
    overdue = time.monotonic() + timeout
    while not line.endswith(b"\n"):
        ready = _ready([fd], overdue)
        chunk = os.read(fd, 1 << 20) if ready else b""
        if not chunk:
            raise TimeoutError(f"the nursery gave no answer within {timeout} s, or died")
        line += chunk
    return line


# ---------------------------------------------------------------------------------------------------------
# In a child
# ---------------------------------------------------------------------------------------------------------


class Job:
    """What a job may do besides its work: report progress that survives a kill, and start together with the others."""

    def __init__(self, out: int, gate: int) -> None:
        self._out = out
        self._gate = gate

    def report(self, value: JSON) -> None:
        """Report something to the test at once; a kill afterwards cannot take it back."""
        os.write(self._out, msgspec.json.encode(_Line(report=value)) + b"\n")

    def wait_for_the_others(self) -> None:
        """Block until every job of the batch got here or ended, so that they really race."""
        os.write(self._out, msgspec.json.encode(_Line(ready=True)) + b"\n")
        os.read(self._gate, 1)


JobFunction = Callable[..., Awaitable[JSON]]


def _function(request: JobRequest) -> JobFunction:
    module, _, name = request.function.partition(":")
    return getattr(importlib.import_module(module), name)


def _run_job(request: JobRequest, out: int, gate: int) -> None:
    _die_with_parent()
    try:
        function = _function(request)
        line = _Line(value=asyncio.run(_awaited(function(Job(out, gate), **request.arguments))))
    except BaseException as problem:
        line = _Line(error=f"{type(problem).__name__}: {problem}")
    os.write(out, msgspec.json.encode(line) + b"\n")


async def _awaited(work: Awaitable[JSON]) -> JSON:
    return await work


# ---------------------------------------------------------------------------------------------------------
# In the nursery
# ---------------------------------------------------------------------------------------------------------


@dataclass
class _Child:
    pid: int
    out: int
    waits_at_gate: bool = False
    text: bytearray = field(default_factory=bytearray)
    timed_out: bool = False

    @property
    def lines(self) -> list[_Line]:
        # A kill may have cut the last line short.
        whole = bytes(self.text).rpartition(b"\n")[0]
        return [msgspec.json.decode(line, type=_Line) for line in whole.splitlines()]

    def outcome(self) -> Outcome:
        _, status = os.waitpid(self.pid, 0)
        died_of = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        last = next((line for line in self.lines if line.value is not msgspec.UNSET or line.error), _Line())
        error = last.error
        if error is None and died_of is None and last.value is msgspec.UNSET:
            error = f"the child ended with status {status} and said nothing"
        return Outcome(
            reports=[line.report for line in self.lines if line.report is not msgspec.UNSET],
            value=None if last.value is msgspec.UNSET else last.value,
            error=error,
            signal=died_of,
            timed_out=self.timed_out,
        )


def _fork(request: JobRequest, gate: int, close_in_child: Sequence[int]) -> _Child:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        for fd in (read_end, *close_in_child):
            os.close(fd)
        try:
            _run_job(request, write_end, gate)
        finally:
            os._exit(0)
    os.close(write_end)
    return _Child(pid, read_end)


def _run_batch(batch: _Batch) -> list[Outcome]:
    for request in batch.jobs:
        _function(request)
    gate_read, gate_write = os.pipe()
    children: list[_Child] = []
    for request in batch.jobs:
        children.append(_fork(request, gate_read, [gate_write, *(child.out for child in children)]))
    os.close(gate_read)
    gate: int | None = gate_write
    overdue = time.monotonic() + batch.timeout
    running = {child.out: child for child in children}
    while running:
        ready = _ready(running, overdue)
        if not ready:
            for child in running.values():
                child.timed_out = True
                os.kill(child.pid, signal.SIGKILL)
            overdue += NURSERY_GRACE_SECONDS
        for fd in ready:
            if not _take_output(running[fd], fd):
                os.close(fd)
                del running[fd]
        if gate is not None and all(child.waits_at_gate for child in running.values()):
            # Closing the last writing end wakes every reader at the same moment.
            os.close(gate)
            gate = None
    if gate is not None:
        os.close(gate)
    return [child.outcome() for child in children]


def _take_output(child: _Child, fd: int) -> bool:
    """Read what is there; False at the end."""
    chunk = os.read(fd, 1 << 16)
    child.text += chunk
    child.waits_at_gate = child.waits_at_gate or b'"ready":true' in child.text
    return bool(chunk)


def _die_with_parent() -> None:
    """Ask the kernel, where it can, to kill this process when the one that started it dies."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _nursery(preload: Sequence[str]) -> None:
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in preload:
        importlib.import_module(module)
    for line in sys.stdin.buffer:
        outcomes = _run_batch(msgspec.json.decode(line, type=_Batch))
        os.write(1, msgspec.json.encode(outcomes) + b"\n")


if __name__ == "__main__":
    _nursery(sys.argv[1:])
