"""What the exit code of a command means, and which error leads to which code."""

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from helix_agents.domain.errors import HelixError


class ExitCode(IntEnum):
    """Stable numbers for scripts; the groups are those of the error tree: who has to act."""

    OK = 0
    FAILED = 1
    """The command ran and the answer is no, or the request cannot be fulfilled as it stands."""
    USAGE = 2
    """The command line itself is wrong."""
    STORE = 3
    """The store needs attention: unreachable, full, read-only, corrupt."""
    SETUP = 4
    """Configuration or installation needs a change: a missing extra, an unknown URL, a schema to migrate."""
    CONFLICT = 5
    """Somebody else was first; the same command may succeed now."""
    INTERRUPTED = 130
    """Stopped from the keyboard."""


def exit_code_for(error: "HelixError") -> ExitCode:
    """The exit code that tells a script who has to act on this error."""
    from helix_agents.domain.errors import ConflictError, SetupError, StoreError

    match error:
        case StoreError():
            return ExitCode.STORE
        case SetupError():
            return ExitCode.SETUP
        case ConflictError():
            return ExitCode.CONFLICT
        case _:
            return ExitCode.FAILED
