"""Workspaces in the memory of one process, for tests and for agents whose files are not needed afterwards."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from helix_agents.domain.errors import WorkspaceFailedError, WorkspaceFileError
from helix_agents.domain.sessions import WorkspaceRef
from helix_agents.domain.workspaces import parts_of
from helix_agents.ports.workspaces import (
    CommandResult,
    FileInfo,
    WorkspaceCapability,
    WorkspaceFiles,
    WorkspaceOwner,
    WorkspaceProvider,
    WorkspaceSnapshots,
)


@dataclass
class _Held:
    """The files of a workspace by path, and its snapshots. A folder exists while something is in it."""

    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    snapshots: dict[str, dict[str, bytes]] = field(default_factory=dict[str, dict[str, bytes]])


class InMemoryWorkspaces:
    """Workspaces that last as long as their process: `Workspace(InMemoryWorkspaces())`.

    They hold files and snapshots, and have no shell. A session that continues in another process does not find its
    workspace there, and gets an error that says so.

    Args:
        name: How sessions refer to it. If a program has several, each needs its own name.
    """

    capabilities: frozenset[WorkspaceCapability] = frozenset({"fs", "snapshot"})

    def __init__(self, name: str = "memory") -> None:
        self.provider_id = name
        self._held: dict[str, _Held] = {}

    def __repr__(self) -> str:
        return f"<workspaces {self.provider_id!r} in memory>"

    @property
    def snapshots(self) -> WorkspaceSnapshots:
        return _Snapshots(self._held)

    async def open(self, owner: WorkspaceOwner) -> WorkspaceRef:
        self._held.setdefault(owner.key, _Held())
        return WorkspaceRef(provider_id=self.provider_id, ref=owner.key)

    async def resolve(self, ref: WorkspaceRef) -> WorkspaceFiles:
        return _Files(_find(self._held, ref).files)

    async def delete(self, owner: WorkspaceOwner, ref: WorkspaceRef | None) -> None:
        self._held.pop(owner.key if ref is None else ref.ref, None)

    async def close(self) -> None:
        """Nothing is open; the files are kept until the process ends."""


_: type[WorkspaceProvider] = InMemoryWorkspaces


def _find(held: dict[str, _Held], ref: WorkspaceRef) -> _Held:
    found = held.get(ref.ref)
    if found is None:
        raise WorkspaceFailedError(
            ref.ref,
            "it was in the memory of the process that opened it, and is in no other. If sessions move between "
            "processes, or outlive them, use LocalWorkspaces on a disk that all of them see.",
        )
    return found


class _Files:
    def __init__(self, files: dict[str, bytes]) -> None:
        self._files = files

    async def read(self, path: str, *, most_bytes: int) -> bytes:
        content = self._files.get(_name(path))
        if content is None:
            raise WorkspaceFileError(path, "it is a folder." if self._below(path) else "there is no such file.")
        if len(content) > most_bytes:
            raise WorkspaceFileError(path, f"it has {len(content):,} bytes; {most_bytes:,} are the most.")
        return content

    async def write(self, path: str, content: bytes, *, instead_of: bytes | None = None) -> bool:
        name = self._place_for(path)
        if instead_of is not None and self._files.get(name) != instead_of:
            return False
        self._files[name] = content
        return True

    async def list(self, path: str = "", *, deep: bool = False, most: int = 1_000) -> Sequence[FileInfo]:
        name = _name(path)
        if name in self._files:
            return [FileInfo(path=name, kind="file", size=len(self._files[name]))]
        below = self._below(path)
        if name and not below:
            raise WorkspaceFileError(path, "there is no such folder.")
        depth = len(parts_of(path))
        found: dict[str, FileInfo] = {}
        for each in below:
            parts = each.split("/")
            for level in range(depth + 1, len(parts) if deep else min(depth + 2, len(parts))):
                folder = "/".join(parts[:level])
                found[folder] = FileInfo(path=folder, kind="folder")
            if deep or len(parts) == depth + 1:
                found[each] = FileInfo(path=each, kind="file", size=len(self._files[each]))
        return [found[each] for each in sorted(found)][:most]

    async def delete(self, path: str, *, with_contents: bool = False) -> bool:
        name, below = _name(path), self._below(path)
        if not name:
            raise WorkspaceFileError(path, "the workspace itself stays.")
        if below and not with_contents:
            raise WorkspaceFileError(path, "the folder is not empty.")
        gone = [name] if name in self._files else below
        for each in gone:
            del self._files[each]
        return bool(gone)

    async def move(self, path: str, target: str) -> None:
        name, new = _name(path), _name(target)
        moved = [name] if name in self._files else self._below(path)
        if not name or not moved:
            raise WorkspaceFileError(path, "there is no such file or folder.")
        if new in self._files or self._below(target):
            raise WorkspaceFileError(target, "something is there already.")
        if new == name or new.startswith(f"{name}/"):
            raise WorkspaceFileError(target, "a folder cannot be moved into itself.")
        self._place_for(target)
        for each in moved:
            self._files[new + each.removeprefix(name)] = self._files.pop(each)

    async def run(self, command: str, *, timeout_seconds: float, most_bytes: int) -> CommandResult:
        raise WorkspaceFileError("", "this workspace has no shell.")

    def _below(self, path: str) -> Sequence[str]:
        """The files in a folder, at any depth."""
        name = _name(path)
        return [each for each in self._files if not name or each.startswith(f"{name}/")]

    def _place_for(self, path: str) -> str:
        parts = parts_of(path)
        name = "/".join(parts)
        if not name or self._below(path):
            raise WorkspaceFileError(path, "it is a folder.")
        for level in range(1, len(parts)):
            if "/".join(parts[:level]) in self._files:
                raise WorkspaceFileError(path, f"{'/'.join(parts[:level])!r} is a file, not a folder.")
        return name


class _Snapshots:
    def __init__(self, held: dict[str, _Held]) -> None:
        self._held = held

    async def create(self, ref: WorkspaceRef, name: str) -> None:
        found = _find(self._held, ref)
        found.snapshots[name] = dict(found.files)

    async def list(self, ref: WorkspaceRef) -> Sequence[str]:
        found = self._held.get(ref.ref)
        return () if found is None else tuple(found.snapshots)

    async def restore(self, ref: WorkspaceRef, name: str | None, *, source: WorkspaceRef | None = None) -> None:
        kept: dict[str, bytes] = {}
        if name is not None:
            kept = _find(self._held, source or ref).snapshots[name]
        files = _find(self._held, ref).files
        files.clear()
        files.update(kept)

    async def delete(self, ref: WorkspaceRef, name: str) -> None:
        if ref.ref in self._held:
            self._held[ref.ref].snapshots.pop(name, None)


def _name(path: str) -> str:
    return "/".join(parts_of(path))
