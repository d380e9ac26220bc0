"""What the exit code of a command means, and which error or outcome leads to which code."""

from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from helix_agents.domain.errors import HelixError
    from helix_agents.domain.results import RunResult


class ExitCode(IntEnum):
    """Stable numbers for scripts, grouped like the error tree: by who has to act."""

    OK = 0
    FAILED = 1
    """The command ran and the answer is no, or the request cannot be fulfilled as it is."""
    USAGE = 2
    """The command line itself is wrong."""
    SERVICE = 3
    """The store, or a service beside it, needs attention: unreachable, full, read-only, corrupt."""
    SETUP = 4
    """Configuration or installation needs a change: a missing extra, an unknown URL, a schema to migrate."""
    CONFLICT = 5
    """Another process or person came first; the same command may succeed now."""
    WAITING = 6
    """The run waits for an answer: answer the pending calls, then resume."""
    STOPPED = 7
    """The run was interrupted; resume continues it."""
    BUG = 70
    """An unexpected error: a bug."""
    INTERRUPTED = 130
    """Stopped from the keyboard."""


MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "done",
    ExitCode.FAILED: "failed, or the answer is no",
    ExitCode.USAGE: "wrong usage",
    ExitCode.SERVICE: "the store or another service needs attention",
    ExitCode.SETUP: "the setup needs a change",
    ExitCode.CONFLICT: "another process or person came first",
    ExitCode.WAITING: "the run waits for an answer",
    ExitCode.STOPPED: "the run was interrupted",
    ExitCode.BUG: "a bug; HELIX_DEBUG=1 shows where",
    ExitCode.INTERRUPTED: "stopped from the keyboard",
}
"""Every code in a few words, for the help and the reference."""


def exit_code_for(error: "HelixError") -> ExitCode:
    """The exit code that tells a script who has to act on this error."""
    from helix_agents.domain.errors import (
        ConflictError,
        MCPUnavailableError,
        RemoteUnavailableError,
        RuntimeUnavailableError,
        SetupError,
        SkillSourceError,
        StillWaitingError,
        StoreError,
    )

    match error:
        case StoreError() | RuntimeUnavailableError() | RemoteUnavailableError() | MCPUnavailableError():
            return ExitCode.SERVICE
        case SkillSourceError():
            return ExitCode.SERVICE
        case SetupError():
            return ExitCode.SETUP
        case ConflictError():
            return ExitCode.CONFLICT
        case StillWaitingError():
            return ExitCode.WAITING
        case _:
            return ExitCode.FAILED


def exit_code_of(result: "RunResult[Any]") -> ExitCode:
    """The exit code that tells a script how a run ended."""
    from helix_agents.domain.results import Completed, Interrupted, Suspended

    match result:
        case Completed():
            return ExitCode.OK
        case Suspended():
            return ExitCode.WAITING
        case Interrupted():
            return ExitCode.STOPPED
        case _:
            return ExitCode.FAILED
