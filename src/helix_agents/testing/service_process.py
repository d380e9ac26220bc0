"""A server that belongs to a test process: started on a free port, waited for, and never left behind."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Self

READY_SECONDS = 90.0
STOP_SECONDS = 10.0
LOOK_SECONDS = 0.02

# The kernel gives ports from 32768 on to outgoing connections. Such a port could be taken before its server has it, or
# while the server is being restarted.
PORTS = range(20_000, 32_768)
_given: set[int] = set()


class ServiceMissingError(RuntimeError):
    """A server is not available here; says how to get one."""


def free_port() -> int:
    """A port of 127.0.0.1 on which nothing listens, and that is not given out by chance."""
    while True:
        # With the process's own generator, a fixed seed would make all processes choose the same ports.
        port = secrets.choice(PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                return port


def tied_to_us(command: Sequence[str], *, signal_name: str = "TERM") -> list[str]:
    """The command, wrapped so that the kernel ends it when the thread that starts it dies, even by SIGKILL."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", signal_name, "--", *command] if setpriv is not None else list(command)


class ServiceProcess:
    """One server process with its own folder; its output goes into a file there."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = Path(tempfile.mkdtemp(prefix=f"helix-{name}-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, command: Sequence[str], is_ready: Callable[[], bool]) -> None:
        """Start it and wait until it answers."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder
            )
        overdue = time.monotonic() + READY_SECONDS
        while not is_ready():
            if not self.is_running or time.monotonic() > overdue:
                self.end(signal.SIGKILL)
                raise RuntimeError(f"{self.name} did not come up:\n{self.told()}")
            time.sleep(LOOK_SECONDS)

    def end(self, how: signal.Signals) -> None:
        """Send the signal and wait until the process is gone; idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(how)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def told(self, lines: int = 20) -> str:
        """The last lines it wrote."""
        log = self.folder / "log"
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def remove(self) -> None:
        """Delete its folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


class Service(ABC):
    """A server of this test process on a free port: started and ended as often as a test likes, gone after it."""

    stops_by: ClassVar[signal.Signals] = signal.SIGTERM
    dies_by: ClassVar[signal.Signals] = signal.SIGKILL

    def __init__(self, name: str) -> None:
        self._process = ServiceProcess(name)
        self._port = free_port()

    @abstractmethod
    def start(self) -> None:
        """Start the server with what is on its disk, and wait until it answers."""

    def stop(self) -> None:
        """Stop the server in good order; its data is kept for the next start."""
        self._process.end(self.stops_by)

    def kill(self) -> None:
        """End the server abruptly, as in a crash; the next start has what was on disk."""
        self._process.end(self.dies_by)

    def restart(self) -> None:
        """Crash it and start it again."""
        self.kill()
        self.start()

    def close(self) -> None:
        """End the server and take its data away."""
        self.kill()
        self._process.remove()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def runs_as_root() -> bool:
    """Whether this process may do anything, which some servers refuse to run as."""
    return hasattr(os, "geteuid") and os.geteuid() == 0
