"""Skills in folders: each has its own folder with a `SKILL.md`, and with the files that it refers to."""

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

from helix_agents.agent.failures import ToolFailed
from helix_agents.agent.skills import inside
from helix_agents.domain.errors import DefinitionError
from helix_agents.engine.log import log_event
from helix_agents.ports.skills import LineRange, LoadedSkill, SkillFiles, SkillInfo, SkillProvider
from helix_agents.skills.skill_file import MOST_BYTES, SKILL_FILE, SkillFile, SkillFileError, parse_skill_file
from helix_agents.system import beside_the_caller

T = TypeVar("T")

MOST_FILES = 1_000
MOST_BYTES_OF_A_FILE = 10_000_000


class _Stamp(NamedTuple):
    """Changes with every change of a file."""

    inode: int
    size: int
    modified: int
    changed: int


@dataclass(frozen=True)
class _Read:
    """What was in a file when it was read; None if it was not a skill."""

    stamp: _Stamp
    skill: SkillFile | None


class SkillFolder:
    """The skills in some folders: `Agent(skills=SkillFolder("skills"))`.

    A skill is a folder `NAME` with a file `SKILL.md`, in one of the given folders or one level below. Anything that is
    not a valid skill is left out and logged, once; of two skills with the same name, the one in the folder given last
    counts. Folders are read when a run starts and when a model reads a skill, on a thread, so the next run sees every
    change. Nothing outside a skill's own folder is read, whatever a path or a link says.

    Args:
        roots: The folders, relative to the module that defines this, so that they do not depend on where the process is
            started.

    Raises:
        DefinitionError: no folder is named.
    """

    def __init__(self, *roots: str | Path) -> None:
        given = cast("tuple[object, ...]", roots)
        if not given or not all(isinstance(each, str | Path) and str(each) for each in given):
            raise DefinitionError("SkillFolder", 'name the folders: SkillFolder("skills").')
        self.roots = tuple(beside_the_caller(__name__) / root for root in roots)
        self._read: dict[Path, _Read] = {}

    def __repr__(self) -> str:
        return f"<skills in {', '.join(map(str, self.roots))}>"

    async def list_skills(self) -> Sequence[SkillInfo]:
        """Every skill that exists now.

        Raises:
            OSError: one of the folders cannot be read.
        """
        found = await asyncio.to_thread(self._scan)
        return [SkillInfo(name=skill.name, description=skill.description) for _, skill in found.values()]

    async def get_skill(self, name: str) -> LoadedSkill | None:
        """The text of a skill as it is now; None if there is no such skill."""
        return await asyncio.to_thread(self._load, name)

    async def read_resource(self, name: str, path: str, range: LineRange | None = None) -> str | None:
        """A file of a skill, or some lines of it; None if the path is not a file inside its folder.

        Raises:
            ToolFailed: it is not text, or is too large to read.
        """
        text = await asyncio.to_thread(self._open, name, path, _text_of)
        return text if text is None or range is None else range.of(text)

    async def read_bytes(self, name: str, path: str) -> bytes | None:
        """A whole file of a skill, byte for byte; None if the path is not a file inside its folder.

        Raises:
            ToolFailed: it is too large to read.
        """
        return await asyncio.to_thread(self._open, name, path, _bytes_of)

    def _scan(self) -> dict[str, tuple[Path, SkillFile]]:
        """The skills by name, with their folders; only files that have changed are read."""
        seen: dict[Path, _Read] = {}
        found: dict[str, tuple[Path, SkillFile]] = {}
        for root in self.roots:
            for folder in _candidates(root):
                skill = self._look(folder, seen)
                if skill is not None:
                    found[skill.name] = (folder, skill)
        self._read = seen
        return found

    def _look(self, folder: Path, seen: dict[Path, _Read]) -> SkillFile | None:
        file = folder / SKILL_FILE
        try:
            stamp = _stamp(file)
        except OSError:
            # It was removed a moment ago.
            return None
        read = self._read.get(file)
        if read is None or read.stamp != stamp:
            read = _Read(stamp, _skill_in(folder))
        seen[file] = read
        return read.skill

    def _load(self, name: str) -> LoadedSkill | None:
        found = self._scan().get(name)
        if found is None:
            return None
        folder, skill = found
        files = tuple(sorted(_files_in(folder)))
        return LoadedSkill(name=skill.name, description=skill.description, body=skill.body, files=files)

    def _open(self, name: str, path: str, read: Callable[[Path, str], T]) -> T | None:
        found, plain = self._scan().get(name), inside(path)
        file = None if found is None or plain is None else _within(found[0], plain)
        return None if file is None else read(file, path)


_: type[SkillProvider] = SkillFolder
__: type[SkillFiles] = SkillFolder


def _candidates(root: Path) -> Iterator[Path]:
    """The folders that should hold a skill.

    Raises:
        OSError: the root cannot be read.
    """
    for folder in _folders_in(root):
        if _has_one(folder):
            yield folder
            continue
        try:
            yield from filter(_has_one, _folders_in(folder))
        except OSError as problem:
            _left_out(folder, problem)


def _has_one(folder: Path) -> bool:
    # A folder that may not be read has none, and is no reason to leave out the others.
    return os.path.exists(folder / SKILL_FILE)


def _folders_in(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        names = sorted(each.name for each in entries if each.is_dir() and not each.name.startswith("."))
    return [folder / name for name in names]


def _stamp(file: Path) -> _Stamp:
    status = file.stat()
    return _Stamp(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _skill_in(folder: Path) -> SkillFile | None:
    """The skill in a folder; problems with it are logged."""
    try:
        file = _within(folder, SKILL_FILE)
        if file is None:
            raise SkillFileError("it is not a file of this folder: it leads elsewhere")
        with file.open("rb") as opened:
            skill = parse_skill_file(opened.read(MOST_BYTES + 1))
        if skill.name != folder.name:
            raise SkillFileError(
                f"its name is {skill.name!r}, but its folder is {folder.name!r}; give both the same name"
            )
    except (SkillFileError, OSError) as problem:
        _left_out(folder / SKILL_FILE, problem)
        return None
    return skill


def _left_out(path: Path, problem: Exception) -> None:
    reason = problem.strerror if isinstance(problem, OSError) else str(problem)
    log_event("skills.left_out", level=logging.WARNING, path=str(path), reason=reason)


def _within(folder: Path, path: str) -> Path | None:
    """A file inside a folder; None if it does not exist, or is elsewhere by way of a link."""
    real, file = os.path.realpath(folder), os.path.realpath(folder / path)
    is_inside = os.path.commonpath((real, file)) == real
    return Path(file) if is_inside and os.path.isfile(file) else None


def _files_in(folder: Path) -> Iterator[str]:
    """The paths of the files of a skill, except hidden ones; if there are very many, the first ones found."""
    count = 0
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        for name in sorted(files):
            path = Path(where, name).relative_to(folder).as_posix()
            if name.startswith(".") or path == SKILL_FILE or _within(folder, path) is None:
                continue
            yield path
            count += 1
            if count == MOST_FILES:
                return


def _bytes_of(file: Path, path: str) -> bytes:
    with file.open("rb") as opened:
        raw = opened.read(MOST_BYTES_OF_A_FILE + 1)
    if len(raw) > MOST_BYTES_OF_A_FILE:
        raise ToolFailed(f"The file {path!r} has more than {MOST_BYTES_OF_A_FILE:,} bytes, so it is not read.")
    return raw


def _text_of(file: Path, path: str) -> str:
    try:
        return _bytes_of(file, path).decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as problem:
        raise ToolFailed(f"The file {path!r} is not readable text: it is not UTF-8.") from problem
