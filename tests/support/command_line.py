"""The `helix` command as a user has it: in its own process, in its own folder, perhaps at a terminal."""

import atexit
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from helix_agents.cli.exit_codes import ExitCode

HELIX = str(Path(sys.executable).with_name("helix"))
WAIT_SECONDS = 60.0
NUDGE_SECONDS = 0.1
CONTROL_C, CONTROL_U = "\x03", "\x15"


@dataclass(frozen=True)
class Done:
    """What a command left behind; no command may ever leave a traceback."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def environment() -> dict[str, str]:
    """The environment of the tests, without settings of this library, keys of providers, or traces of how and where the
    tests were started."""
    dropped = ("HELIX_", "ANTHROPIC_", "OPENAI_", "GOOGLE_", "GEMINI_", "COLUMNS", "UV_RUN_")
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)}


class PreparedCommands:
    """Runs commands from a process that has already imported everything."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("prepared_command.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self._close)

    def run(self, folder: Path, arguments: tuple[str, ...], input: str, settings: Mapping[str, str]) -> Done:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        with TemporaryDirectory() as place:
            files = {name: Path(place, name) for name in ("stdin", "stdout", "stderr")}
            files["stdin"].write_text(input, encoding="utf-8")
            order = {name: str(file) for name, file in files.items()}
            order |= {"folder": str(folder), "environment": {**environment(), **settings}, "arguments": arguments}
            self._server.stdin.write(json.dumps(order) + "\n")
            self._server.stdin.flush()
            code = int(self._server.stdout.readline())
            return Done(code, *(files[name].read_text(encoding="utf-8") for name in ("stdout", "stderr")))

    def _close(self) -> None:
        self._server.communicate()


@cache
def _prepared() -> PreparedCommands:
    return PreparedCommands()


def helix(folder: Path, *arguments: str, input: str = "", settings: Mapping[str, str] | None = None) -> Done:
    """Run one command to its end, in its own process; `settings` are set in its environment."""
    done = _prepared().run(folder, arguments, input, settings or {})
    assert "Traceback" not in done.out + done.err, done.err
    assert done.code != ExitCode.BUG, done.err
    return done


class Terminal:
    """A command at a terminal: a test can wait for what it shows, and press keys."""

    def __init__(self, folder: Path, *arguments: str, columns: int = 120) -> None:
        self.shown = ""
        self._unread = ""
        self.pid, self._keys = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execve(HELIX, [HELIX, *arguments], environment() | {"TERM": "xterm", "COLUMNS": str(columns)})

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *exc: object) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._keys)

    def press(self, keys: str) -> None:
        os.write(self._keys, keys.encode())

    def wait_for(self, text: str) -> str:
        """Wait until a new text is shown, after what was waited for before; returns what came before it."""
        give_up = time.monotonic() + WAIT_SECONDS
        while text not in self._unread:
            assert time.monotonic() < give_up, f"no {text!r} came: {self.shown}"
            assert self._read(), f"ended without {text!r}: {self.shown}"
        before, _, self._unread = self._unread.partition(text)
        return before

    def interrupt(self, text: str) -> None:
        """Press Ctrl-C at a prompt, and wait for what is shown then.

        Readline shows its prompt a moment before it waits for keys, and a signal in between is noticed only with the
        next key. So more keys are pressed, which do nothing if nothing was typed.
        """
        self.press(CONTROL_C)
        give_up = time.monotonic() + WAIT_SECONDS
        while text not in self._unread:
            assert time.monotonic() < give_up, f"no {text!r} came: {self.shown}"
            if select.select([self._keys], [], [], NUDGE_SECONDS)[0]:
                assert self._read(), f"ended without {text!r}: {self.shown}"
            else:
                self.press(CONTROL_U)
        self.wait_for(text)

    def wait(self) -> int:
        """Wait for the end; returns the exit code."""
        while self._read():
            pass
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        assert "Traceback" not in self.shown, self.shown
        return os.waitstatus_to_exitcode(status)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._keys], [], [], WAIT_SECONDS)
        assert ready, f"nothing came for {WAIT_SECONDS} s: {self.shown}"
        try:
            came = os.read(self._keys, 65_536).decode(errors="replace")
        except OSError:
            came = ""
        self.shown += came
        self._unread += came
        return bool(came)
