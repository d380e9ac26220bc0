"""A sandbox for the commands of workspaces: Linux namespaces, set up by bubblewrap."""

import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import cast

from helix_agents.agent.choices import check_switch
from helix_agents.domain.errors import DefinitionError

PROGRAM = "bwrap"
INSIDE = "/workspace"
"""Where a command in the sandbox finds the files of its workspace."""

_SUBJECT = "Sandbox"
_PROGRAMS = "/usr"
_OF_THE_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_TO_RUN = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime")
_TO_CONNECT = (
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/pki/tls/certs",
    "/etc/pki/ca-trust/extracted",
)
# A process of root may write to these without any privilege, and some of them reach out of every namespace: the program
# that is named for core dumps, for instance, runs outside. So they are read-only, or empty.
_READ_ONLY = ("/proc/sys", "/proc/bus", "/proc/fs", "/proc/irq")
_EMPTY = ("/proc/sysrq-trigger", "/proc/kcore", "/proc/keys", "/proc/acpi", "/proc/scsi", "/proc/timer_list")
# In a user namespace of its own, a command would have every privilege again, for example to mount the control groups of
# this process, which a process of root may then write to.
_WITHOUT_MORE = ("--unshare-user", "--disable-userns")
_OWN = ("/", "/dev", "/etc", "/proc", "/sys", "/tmp", INSIDE)


class NoSandboxError(Exception):
    """There is no sandbox here to run a command in; says why."""


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """What commands of a workspace may reach: `LocalWorkspaces("work", sandbox=Sandbox())`.

    A command sees its workspace as `/workspace`, an empty `/tmp` of its own, and the programs of the system in `/usr`,
    read-only. It sees no other file, no other process, no network, and of the environment only what is given to
    commands. It has no privileges, and nothing that it started outlives it. The memory and the disk that it uses are
    not limited.

    It needs Linux, user namespaces, and the program `bwrap` of the package bubblewrap, in the process that runs the
    command. Where one of them is missing, no command runs.

    Args:
        network: Whether commands reach the network, with everything that this machine reaches.
        readable: More folders that commands see, read-only and under their own paths, such as a virtual environment.

    Raises:
        DefinitionError: the settings could not work; the message says why.
    """

    network: bool = False
    readable: Sequence[str | Path] = ()

    def __post_init__(self) -> None:
        check_switch(_SUBJECT, "network", self.network)
        given = cast("object", self.readable)
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise DefinitionError(
                _SUBJECT, f'readable={given!r} is not a list of folders; write readable=["/opt/tools"].'
            )
        for each in cast("Sequence[object]", given):
            if not isinstance(each, str | Path) or not os.path.isabs(each):
                raise DefinitionError(_SUBJECT, f"{each!r} in readable is not the absolute path of a folder.")
            if os.path.normpath(each) in _OWN:
                raise DefinitionError(_SUBJECT, f"{str(each)!r} in readable is what a sandbox has its own of.")
        object.__setattr__(self, "readable", tuple(os.path.normpath(each) for each in self.readable))

    def check_root(self, root: Path) -> None:
        """Reject folders to read through which a command would see the workspaces of other sessions.

        Raises:
            DefinitionError: one of them contains the root, or lies in it.
        """
        shown = self._that_show(Path(os.path.normpath(root)), os.path.normpath)
        if shown is not None:
            raise DefinitionError(
                _SUBJECT,
                f"commands could read {shown!r}, and so the workspaces of all sessions in {root}; put one of the two "
                "elsewhere.",
            )

    def around(self, command: Sequence[str], files: Path) -> Sequence[str]:
        """The command line that runs a command in the sandbox, among these files. It looks at the disk.

        Raises:
            NoSandboxError: this machine has none, or it would show other workspaces.
        """
        program = shutil.which(PROGRAM)
        if program is None:
            raise NoSandboxError(f"there is no program {PROGRAM} here")
        shown = self._that_show(Path(os.path.realpath(files)), os.path.realpath)
        if shown is not None:
            raise NoSandboxError(f"links make what commands read in {shown!r} and the workspaces parts of each other")
        apart = (*_apart(network=self.network), *(_WITHOUT_MORE if _can_forbid_namespaces(program) else ()))
        return (program, *apart, *self._seen(files), "--", *command)

    def _that_show(self, place: Path, plain: Callable[[str], str]) -> str | None:
        """The folder among those that commands read that contains this place or lies in it; None if there is none."""
        for each in (_PROGRAMS, *map(str, self.readable)):
            shown = Path(plain(each))
            if place.is_relative_to(shown) or shown.is_relative_to(place):
                return each
        return None

    def _seen(self, files: Path) -> Iterator[str]:
        yield from ("--ro-bind", _PROGRAMS, _PROGRAMS)
        for name in _OF_THE_SYSTEM:
            path = f"/{name}"
            if os.path.islink(path):
                yield from ("--symlink", os.readlink(path), path)
            elif os.path.isdir(path):
                yield from ("--ro-bind", path, path)
        for path in (*_TO_RUN, *(_TO_CONNECT if self.network else ())):
            yield from ("--ro-bind-try", path, path)
        yield from ("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp")
        for path in filter(os.path.exists, _READ_ONLY):
            yield from ("--ro-bind", path, path)
        for path in filter(os.path.exists, _EMPTY):
            yield from ("--tmpfs", path) if os.path.isdir(path) else ("--ro-bind", "/dev/null", path)
        for folder in self.readable:
            yield from ("--ro-bind", str(folder), str(folder))
        yield from ("--bind", str(files), INSIDE, "--chdir", INSIDE)


@cache
def _can_forbid_namespaces(program: str) -> bool:
    """Whether this bubblewrap can forbid further namespaces: one before 0.8, or one that is setuid, cannot."""
    if os.stat(program).st_mode & stat.S_ISUID:
        return False
    return "--disable-userns" in subprocess.run((program, "--help"), capture_output=True, text=True, check=False).stdout


def _apart(*, network: bool) -> Sequence[str]:
    """What a command shares with this machine, and that it dies with whoever waits for it."""
    shared = ("--share-net",) if network else ()
    return ("--unshare-all", *shared, "--die-with-parent", "--new-session", "--cap-drop", "ALL")
