"""A command in a shell: as much of its output as can be read is kept, and nothing is left running when it is over."""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from helix_agents.ports.workspaces import CommandResult

_LAST_WORDS_SECONDS = 1.0
"""How long to wait for the end of an output after its command has ended: a process that left the group may hold it."""


async def run_command(
    command: Sequence[str], *, folder: Path, env: Mapping[str, str], timeout_seconds: float, most_bytes: int
) -> CommandResult:
    """Run a command with everything it starts in its own process group, which is killed when the command has ended,
    when its time is up, and when the caller is cancelled."""
    reading, writing = os.pipe()
    heard = _Output(most_bytes)
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        listening, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: heard, pipe)
        try:
            with os.fdopen(writing, "wb", buffering=0) as theirs:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    cwd=folder,
                    env=dict(env),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=theirs,
                    stderr=theirs,
                    start_new_session=True,
                )
            exit_code = await _ended(process, timeout_seconds)
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORDS_SECONDS):
                    await heard.over.wait()
        finally:
            listening.close()
    return heard.result(exit_code)


async def _ended(process: asyncio.subprocess.Process, timeout_seconds: float) -> int | None:
    """The exit code of a command; None if its time was up first."""
    try:
        async with asyncio.timeout(timeout_seconds):
            return await process.wait()
    except TimeoutError:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        if process.returncode is None:
            # It is dead, but its end has to be collected.
            await asyncio.shield(process.wait())


class _Output(asyncio.Protocol):
    """The beginning and the end of what a command writes; the bytes in between are counted."""

    def __init__(self, most_bytes: int) -> None:
        self._half = most_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._left_out = 0
        self.over = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        surplus = len(self._tail) - self._half
        if surplus > 0:
            self._left_out += surplus
            del self._tail[:surplus]

    def connection_lost(self, exc: Exception | None) -> None:
        self.over.set()

    def result(self, exit_code: int | None) -> CommandResult:
        return CommandResult(
            exit_code=exit_code, output=bytes(self._head), output_end=bytes(self._tail), left_out=self._left_out
        )
