"""Workspaces as folders on this machine, with a shell that runs as the user of this process, or in a sandbox."""

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from helix_agents.agent.choices import check_whole
from helix_agents.domain.errors import DefinitionError, WorkspaceFailedError
from helix_agents.domain.sessions import WorkspaceRef
from helix_agents.ports.workspaces import (
    CommandResult,
    FileInfo,
    WorkspaceCapability,
    WorkspaceFiles,
    WorkspaceOwner,
    WorkspaceProvider,
    WorkspaceSnapshots,
)
from helix_agents.system import beside_the_caller
from helix_agents.workspaces.folder_snapshots import FolderSnapshots
from helix_agents.workspaces.guarded_folder import FILES, GuardedFolder
from helix_agents.workspaces.sandbox import Sandbox
from helix_agents.workspaces.shell import Shell

_SUBJECT = "LocalWorkspaces"
_REF = re.compile(r"[a-z0-9-]{1,100}")


class LocalWorkspaces:
    """Workspaces in folders below a root: `Workspace(LocalWorkspaces("work"), capabilities=["fs", "shell"])`.

    File tools reach nothing outside a workspace. **Without a sandbox, the shell is not isolated**: a command may do
    whatever the user of this process may do, read other workspaces and reach the network. Give it a `Sandbox()`, let a
    person approve commands, or run the whole process in a container that holds nothing else. Of the process's
    environment, a command sees only a `PATH` and what is given here; its home is the workspace.

    Sessions that move between machines need a root that all of them can see.

    Args:
        root: The folder in which each workspace gets a folder, relative to the module that defines this; created when
            needed.
        env: The environment variables of commands.
        sandbox: What commands may reach; everything that this process may reach if left out.
        name: How sessions refer to it. If a program has several, each needs its own name.
        snapshot_bytes: The largest workspace to make a snapshot of; no snapshot is made of a larger one.

    Raises:
        DefinitionError: the settings could not work; the message says why.
    """

    capabilities: frozenset[WorkspaceCapability] = frozenset({"fs", "shell", "snapshot"})

    def __init__(
        self,
        root: str | Path,
        *,
        env: Mapping[str, str] | None = None,
        sandbox: Sandbox | None = None,
        name: str = "local",
        snapshot_bytes: int = 256_000_000,
    ) -> None:
        if not isinstance(cast("object", root), str | Path) or not str(root):
            raise DefinitionError(_SUBJECT, f'root={root!r} is not a folder; write LocalWorkspaces("work").')
        if os.open not in os.supports_dir_fd or not hasattr(os, "O_NOFOLLOW"):
            raise DefinitionError(_SUBJECT, "this system cannot open files so that no link leads out of a folder.")
        for key, value in cast("Mapping[object, object]", env or {}).items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise DefinitionError(_SUBJECT, f"env[{key!r}]={value!r} is not a string.")
        check_whole(_SUBJECT, "snapshot_bytes", snapshot_bytes, 1)
        self.root = beside_the_caller(__name__) / root
        if sandbox is not None:
            _check_sandbox(sandbox, self.root)
        self.provider_id = name
        self._shell = Shell(env or {}, sandbox)
        self._snapshot_bytes = snapshot_bytes

    def __repr__(self) -> str:
        return f"<workspaces {self.provider_id!r} in {self.root}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LocalWorkspaces) and (other.provider_id, other.root) == (self.provider_id, self.root)

    def __hash__(self) -> int:
        return hash((self.provider_id, self.root))

    @property
    def snapshots(self) -> WorkspaceSnapshots:
        return _Snapshots(self)

    async def open(self, owner: WorkspaceOwner) -> WorkspaceRef:
        await asyncio.to_thread(self.folder(owner.key).make)
        return WorkspaceRef(provider_id=self.provider_id, ref=owner.key)

    async def resolve(self, ref: WorkspaceRef) -> WorkspaceFiles:
        folder = self.folder(ref.ref)
        if not await asyncio.to_thread(folder.exists):
            raise WorkspaceFailedError(
                ref.ref,
                f"there is no such folder in {self.root}. It was deleted, or is on another machine: sessions that move "
                "between machines need a root that all of them see.",
            )
        return _Files(folder, self._shell)

    async def delete(self, owner: WorkspaceOwner, ref: WorkspaceRef | None) -> None:
        await asyncio.to_thread(self.folder(owner.key if ref is None else ref.ref).remove)

    async def close(self) -> None:
        """Nothing is open between two calls."""

    def folder(self, name: str) -> GuardedFolder:
        """The folder of a workspace, by its name in refs."""
        if not _REF.fullmatch(name):
            raise WorkspaceFailedError(name, "this is not the name of a workspace.")
        return GuardedFolder(self.root, name)

    def kept(self, ref: WorkspaceRef) -> FolderSnapshots:
        """The snapshots of a workspace."""
        return FolderSnapshots(self.folder(ref.ref), self._snapshot_bytes)


_: type[WorkspaceProvider] = LocalWorkspaces


def _check_sandbox(sandbox: object, root: Path) -> None:
    if not isinstance(sandbox, Sandbox):
        raise DefinitionError(_SUBJECT, f"sandbox={sandbox!r} is not a Sandbox(…).")
    sandbox.check_root(root)


class _Files:
    def __init__(self, folder: GuardedFolder, shell: Shell) -> None:
        self._folder = folder
        self._shell = shell

    async def read(self, path: str, *, most_bytes: int) -> bytes:
        return await asyncio.to_thread(self._folder.read, path, most_bytes)

    async def write(self, path: str, content: bytes, *, instead_of: bytes | None = None) -> bool:
        return await asyncio.to_thread(self._folder.write, path, content, instead_of)

    async def list(self, path: str = "", *, deep: bool = False, most: int = 1_000) -> Sequence[FileInfo]:
        return await asyncio.to_thread(self._folder.list, path, deep, most)

    async def delete(self, path: str, *, with_contents: bool = False) -> bool:
        return await asyncio.to_thread(self._folder.delete, path, with_contents)

    async def move(self, path: str, target: str) -> None:
        await asyncio.to_thread(self._folder.move, path, target)

    async def run(self, command: str, *, timeout_seconds: float, most_bytes: int) -> CommandResult:
        files = self._folder.root / self._folder.name / FILES
        return await self._shell.run(command, files=files, timeout_seconds=timeout_seconds, most_bytes=most_bytes)


class _Snapshots:
    def __init__(self, provider: LocalWorkspaces) -> None:
        self._provider = provider

    async def create(self, ref: WorkspaceRef, name: str) -> None:
        await asyncio.to_thread(self._provider.kept(ref).create, name)

    async def list(self, ref: WorkspaceRef) -> Sequence[str]:
        return await asyncio.to_thread(self._provider.kept(ref).list)

    async def restore(self, ref: WorkspaceRef, name: str | None, *, source: WorkspaceRef | None = None) -> None:
        origin = self._provider.folder((source or ref).ref)
        await asyncio.to_thread(self._provider.kept(ref).restore, name, origin)

    async def delete(self, ref: WorkspaceRef, name: str) -> None:
        await asyncio.to_thread(self._provider.kept(ref).delete, name)
