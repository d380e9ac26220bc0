"""The shell of workspaces on this machine: how a command is started, in a sandbox or without one."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from helix_agents.domain.errors import WorkspaceFailedError
from helix_agents.engine.log import log_event
from helix_agents.ports.workspaces import CommandResult
from helix_agents.workspaces.commands import run_command
from helix_agents.workspaces.sandbox import INSIDE, PROGRAM, NoSandboxError, Sandbox

_SHELL = ("/bin/sh", "-c")
_TRIAL_SECONDS, _TRIAL_BYTES = 10.0, 2_000
_CURE = "Install bubblewrap and allow user namespaces here, or run this process where both are"


class Shell:
    """Runs commands among the files of a workspace."""

    def __init__(self, env: Mapping[str, str], sandbox: Sandbox | None) -> None:
        self._env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", **env}
        self._sandbox = sandbox
        self._works = sandbox is None

    async def run(self, command: str, *, files: Path, timeout_seconds: float, most_bytes: int) -> CommandResult:
        """Run a command until it ends or its time is up.

        Raises:
            WorkspaceFailedError: there is no sandbox to run it in. A command never runs without the one it should have.
        """
        try:
            if not self._works:
                await self._try_sandbox(files)
            return await self._start(command, files, timeout_seconds, most_bytes)
        except NoSandboxError as problem:
            # The model is told, but only whoever runs this process can do something about it.
            about = {"workspace": files.parent.name, "reason": str(problem)}
            log_event("workspace.no_sandbox", level=logging.ERROR, **about)
            raise WorkspaceFailedError(
                files.parent.name, f"commands need a sandbox, but {problem}. {_CURE}."
            ) from problem

    async def _try_sandbox(self, files: Path) -> None:
        """Run a command that does nothing: whatever comes out of it comes from the sandbox."""
        tried = await self._start("exit 0", files, _TRIAL_SECONDS, _TRIAL_BYTES)
        if tried.exit_code != 0:
            said = tried.output.decode(errors="replace").strip() or f"exit code {tried.exit_code}"
            raise NoSandboxError(f"{PROGRAM} cannot start here ({said[:500]})")
        self._works = True

    async def _start(self, command: str, files: Path, timeout_seconds: float, most_bytes: int) -> CommandResult:
        line: Sequence[str] = (*_SHELL, command)
        home = str(files)
        if self._sandbox is not None:
            line, home = await asyncio.to_thread(self._sandbox.around, line, files), INSIDE
        env = {"HOME": home, **self._env}
        return await run_command(line, folder=files, env=env, timeout_seconds=timeout_seconds, most_bytes=most_bytes)
