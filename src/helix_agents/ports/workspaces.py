"""What the engine asks of whoever has workspaces: a folder of files for a session, perhaps a shell and snapshots."""

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

from helix_agents.domain.ids import SessionId
from helix_agents.domain.records import Record
from helix_agents.domain.sessions import WorkspaceRef

WorkspaceCapability: TypeAlias = Literal["fs", "shell", "snapshot"]
"""What a workspace can do: hold files, run commands, and be brought back to what it was."""


class WorkspaceOwner(Record):
    """For whom a workspace is opened. `key` is the same in every process, and no other session's: a file name."""

    key: str
    session_id: SessionId
    user_id: str | None = None


class FileInfo(Record):
    """One entry of a workspace; `size` is in bytes, of files."""

    path: str
    kind: Literal["file", "folder", "link", "other"]
    size: int = 0


class CommandResult(Record):
    """What became of a command. `exit_code` is None where it was ended because its time was over. Of a long `output`
    the beginning and the end are kept, and `left_out` says how many bytes between them are not."""

    exit_code: int | None
    output: bytes
    output_end: bytes = b""
    left_out: int = 0


class WorkspaceFiles(Protocol):
    """An open workspace. Paths begin in it and have slashes; nothing outside it can be reached, whatever a path, a link
    or somebody who changes folders meanwhile makes of it. Links are shown, and never followed.

    All of them raise `WorkspaceFileError` for what cannot be done with this path, and change nothing then.
    """

    async def read(self, path: str, *, most_bytes: int) -> bytes:
        """A file as a whole; one that has more bytes is refused."""
        ...

    async def write(self, path: str, content: bytes, *, instead_of: bytes | None = None) -> bool:
        """Make this a file's content, as a whole or not at all, with the folders it is in.

        With `instead_of`, only where the file's content is that; False where it is not, or not any more.
        """
        ...

    async def list(self, path: str = "", *, deep: bool = False, most: int = 1_000) -> Sequence[FileInfo]:
        """What is in a folder, sorted by path, and with `deep` what is in the folders in it; no more than `most`.
        Of a file, the file itself."""
        ...

    async def delete(self, path: str, *, with_contents: bool = False) -> bool:
        """Remove a file, a link or an empty folder, or a folder `with_contents`; False where there was nothing."""
        ...

    async def move(self, path: str, target: str) -> None:
        """Give a file or folder another path, with the folders that is in; one that is taken is refused."""
        ...

    async def run(self, command: str, *, timeout_seconds: float, most_bytes: int) -> CommandResult:
        """Run a command in the workspace's shell until it ends or its time is over.

        What it started ends with it, also when whoever waits for it is cancelled.
        """
        ...


class WorkspaceSnapshots(Protocol):
    """What workspaces were at times. Names are given by the engine, up to 64 letters, digits and hyphens."""

    async def create(self, ref: WorkspaceRef, name: str) -> None:
        """Keep what is in a workspace now under a name, in place of what was kept under it before."""
        ...

    async def list(self, ref: WorkspaceRef) -> Sequence[str]:
        """The names of the snapshots of a workspace; none of one that is gone."""
        ...

    async def restore(self, ref: WorkspaceRef, name: str | None, *, source: WorkspaceRef | None = None) -> None:
        """Make a workspace what it was, or empty without a name; with `source`, what that one was, which stays as it
        is. Doing it again changes nothing more."""
        ...

    async def delete(self, ref: WorkspaceRef, name: str) -> None:
        """Forget a snapshot; idempotent."""
        ...


class WorkspaceProvider(Protocol):
    """Where workspaces come from. It is asked by whichever process works on a run, by several at once.

    What a method raises other than `WorkspaceFileError` is told to the model by the tool that asked, and fails a run
    that cannot begin without it as `workspace_failed`.
    """

    @property
    def provider_id(self) -> str:
        """The name under which sessions refer to it; it has to stay the same as long as they do."""
        ...

    @property
    def capabilities(self) -> frozenset[WorkspaceCapability]:
        """What its workspaces can do."""
        ...

    @property
    def snapshots(self) -> WorkspaceSnapshots:
        """Its snapshots; asked for only where it is capable of them."""
        ...

    async def open(self, owner: WorkspaceOwner) -> WorkspaceRef:
        """A workspace for this owner: an empty one the first time, and that same one every time after that, in every
        process. Somebody may have died between opening it and writing down that it was."""
        ...

    async def resolve(self, ref: WorkspaceRef) -> WorkspaceFiles:
        """The workspace that was opened before, perhaps by another process.

        Raises:
            WorkspaceFailedError: it is not there, or not to be reached from here; it is never made anew.
        """
        ...

    async def delete(self, owner: WorkspaceOwner, ref: WorkspaceRef | None) -> None:
        """Remove a workspace with its snapshots; idempotent. Without a ref, what was opened for this owner by somebody
        who died before that was written down, if anything was."""
        ...

    async def close(self) -> None:
        """Let go of what is open in this process; a later call opens it again."""
        ...
