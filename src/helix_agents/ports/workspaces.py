"""What the engine needs from a provider of workspaces: files for each session, perhaps a shell and snapshots."""

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

from helix_agents.domain.ids import SessionId
from helix_agents.domain.records import Record
from helix_agents.domain.sessions import WorkspaceRef

WorkspaceCapability: TypeAlias = Literal["fs", "shell", "snapshot"]
"""What a workspace can do: hold files, run commands, and be restored to an earlier state."""


class WorkspaceOwner(Record):
    """The owner of a workspace. `key` is valid as a file name, the same in every process, and unique to the session."""

    key: str
    session_id: SessionId
    user_id: str | None = None


class FileInfo(Record):
    """One entry of a workspace; `size` is in bytes, for files."""

    path: str
    kind: Literal["file", "folder", "link", "other"]
    size: int = 0


class CommandResult(Record):
    """The result of a command. `exit_code` is None if the command was ended because its time was up. Of a long
    `output`, the beginning and the end are kept, and `left_out` is the number of bytes missing between them."""

    exit_code: int | None
    output: bytes
    output_end: bytes = b""
    left_out: int = 0


class WorkspaceFiles(Protocol):
    """An open workspace. Paths are relative to it and use slashes. Nothing outside it can be reached, whatever the
    path, a link, or a concurrent change of folders. Links are shown, and never followed.

    All methods raise `WorkspaceFileError` if something cannot be done with this path, and then change nothing.
    """

    async def read(self, path: str, *, most_bytes: int) -> bytes:
        """The whole content of a file; a file with more bytes is refused."""
        ...

    async def write(self, path: str, content: bytes, *, instead_of: bytes | None = None) -> bool:
        """Make this the content of a file, as a whole or not at all, and create its folders.

        With `instead_of`, only if that is the file's content; False if it is not, or no longer.
        """
        ...

    async def list(self, path: str = "", *, deep: bool = False, most: int = 1_000) -> Sequence[FileInfo]:
        """The entries of a folder, sorted by path, with `deep` also those of its subfolders; no more than `most`. For a
        file, the file itself."""
        ...

    async def delete(self, path: str, *, with_contents: bool = False) -> bool:
        """Delete a file, a link or an empty folder, or a folder `with_contents`; False if there was nothing."""
        ...

    async def move(self, path: str, target: str) -> None:
        """Move a file or folder to another path, and create the target's folders; a target that exists is refused."""
        ...

    async def run(self, command: str, *, timeout_seconds: float, most_bytes: int) -> CommandResult:
        """Run a command in the workspace's shell until it ends or its time is up.

        The processes it started end with it, even if the caller that waits for it is cancelled.
        """
        ...


class WorkspaceSnapshots(Protocol):
    """Earlier states of workspaces. The engine chooses the names: up to 64 letters, digits and hyphens."""

    async def create(self, ref: WorkspaceRef, name: str) -> None:
        """Keep the present content of a workspace under a name, replacing what was kept under it before."""
        ...

    async def list(self, ref: WorkspaceRef) -> Sequence[str]:
        """The names of the snapshots of a workspace; none if it is gone."""
        ...

    async def restore(self, ref: WorkspaceRef, name: str | None, *, source: WorkspaceRef | None = None) -> None:
        """Restore a workspace to a snapshot, or empty it if `name` is None; with `source`, to a snapshot of that
        workspace, which is left as it is. Doing it again changes nothing more."""
        ...

    async def delete(self, ref: WorkspaceRef, name: str) -> None:
        """Delete a snapshot; idempotent."""
        ...


class WorkspaceProvider(Protocol):
    """Where workspaces come from. Any process that works on a run may call it, several at once.

    If a method raises anything other than `WorkspaceFileError`, the calling tool tells the model, and a run that cannot
    start without it fails as `workspace_failed`.
    """

    @property
    def provider_id(self) -> str:
        """The name by which sessions refer to this provider; it has to stay the same as long as they do."""
        ...

    @property
    def capabilities(self) -> frozenset[WorkspaceCapability]:
        """What its workspaces can do."""
        ...

    @property
    def snapshots(self) -> WorkspaceSnapshots:
        """Its snapshots; only called if the provider supports them."""
        ...

    async def open(self, owner: WorkspaceOwner) -> WorkspaceRef:
        """A workspace for this owner: an empty one the first time, and the same one every time after that, in every
        process. A process may have died after opening it and before recording that."""
        ...

    async def resolve(self, ref: WorkspaceRef) -> WorkspaceFiles:
        """The workspace that was opened before, perhaps by another process.

        Raises:
            WorkspaceFailedError: it does not exist, or cannot be reached from here; it is never created anew.
        """
        ...

    async def delete(self, owner: WorkspaceOwner, ref: WorkspaceRef | None) -> None:
        """Delete a workspace with its snapshots; idempotent. Without a ref, delete what was opened for this owner by a
        process that died before recording it, if anything."""
        ...

    async def close(self) -> None:
        """Release what is open in this process; a later call opens it again."""
        ...
