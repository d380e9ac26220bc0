"""Makes a folder contain what a manifest names: fetched, pinned in a lock, and checked against it."""

import os
import re
import shutil
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from helix_agents.domain.errors import DefinitionError, SkillSourceError
from helix_agents.skills.fetching import Fetched, Files, fetch, hash_of
from helix_agents.skills.git import SourceTrouble
from helix_agents.skills.manifest import LockedEntry, Source, lock_path, read_lock, read_manifest, write_lock
from helix_agents.skills.swapping import swap

LEFT_BEHIND_SECONDS = 600
"""Writing an entry never takes this long."""

# These characters reverse the direction of the text around them, or print nothing at all: a reviewer would read a
# different text than a model.
_UNSEEN = re.compile("[\u200b\u2060-\u2064\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]")


@dataclass(frozen=True, kw_only=True)
class EntryReport:
    """The result for one entry: what is different, a sentence for each difference, and whether the folder has it now.

    `unseen` are the places of invisible characters in texts.
    """

    entry: str
    folder: Path
    commit: str | None = None
    skills: tuple[str, ...] = ()
    sha256: str | None = None
    changes: tuple[str, ...] = ()
    written: bool = False
    unseen: tuple[str, ...] = ()


def sync_skills(manifest_path: Path, *, check: bool = False, upgrade: bool = False) -> Iterator[EntryReport]:
    """Bring every entry's folder in line with the manifest, one after another; each is complete, or as before.

    An entry that was fetched stays at its commit until the manifest says otherwise, or until `upgrade` asks its source
    again. With `check` nothing is written; without `upgrade`, no source is asked either.

    Raises:
        DefinitionError: the manifest or the lock cannot be used, git is not installed, or something is in the way.
        SkillSourceError: a source does not return what it should.
    """
    manifest_path = manifest_path.absolute()
    manifest = read_manifest(manifest_path)
    sync = _Sync(manifest_path.parent, manifest_path.parent / manifest.folder, lock_path(manifest_path), check, upgrade)
    for name in sorted(sync.lock.entries.keys() - manifest.skills.keys()):
        yield sync.drop(name)
    names: dict[str, str] = {}
    for name, source in sorted(manifest.skills.items()):
        report = sync.bring(name, source, names)
        names |= dict.fromkeys(report.skills, name)
        yield report


class _Sync:
    def __init__(self, base: Path, folder: Path, lock_file: Path, check: bool, upgrade: bool) -> None:
        self._base = base
        self._folder = folder
        self._lock_file = lock_file
        self._check = check
        self._upgrade = upgrade
        self.lock = read_lock(lock_file)

    def drop(self, name: str) -> EntryReport:
        """Remove an entry that the manifest no longer names."""
        place, locked = self._folder / name, self.lock.entries[name]
        changes = tuple(f"{skill} is gone" for skill in locked.skills)
        if not self._check:
            if place.is_dir() and _hash_in(place) != locked.sha256:
                raise DefinitionError(
                    str(place), "the manifest no longer names it, but it was changed here; delete it, or move it away."
                )
            if place.exists():
                with self._aside(name) as aside:
                    os.replace(place, aside / "old")
            self._write_lock({key: entry for key, entry in self.lock.entries.items() if key != name})
        return EntryReport(entry=name, folder=place, changes=changes or (f"{name} is gone",), written=not self._check)

    def bring(self, name: str, source: Source, taken: Mapping[str, str]) -> EntryReport:
        """Put an entry's skills into its folder; `taken` names the skills that come from another entry."""
        place, locked = self._folder / name, self.lock.entries.get(name)
        if locked is not None and locked.source != source:
            locked = None
        here = _skills_in(place)
        report = EntryReport(entry=name, folder=place, skills=tuple(here))
        if locked is not None and not self._upgrade:
            report = replace(report, commit=locked.commit, skills=locked.skills, sha256=locked.sha256)
            if hash_of(here) == locked.sha256:
                return report
            if self._check:
                return replace(report, changes=("what is in the folder is not what was fetched",))
        elif self._check and not self._upgrade:
            is_new = name not in self.lock.entries
            change = "it was never fetched" if is_new else "its entry in the manifest has changed"
            return replace(report, changes=(change,))
        fetched = self._fetch(name, source, None if self._upgrade else locked)
        self._refuse_doubles(name, fetched, taken)
        entry = LockedEntry(
            source=source,
            commit=fetched.commit,
            plugin_commit=fetched.plugin_commit,
            skills=tuple(fetched.skills),
            sha256=fetched.sha256,
        )
        changes = [*_changes(here, fetched.skills)]
        if not changes and entry != self.lock.entries.get(name):
            changes.append("its files are unchanged, but its entry in the lock is not")
        if changes and not self._check:
            self._write(name, place, here, fetched)
            self._write_lock({**self.lock.entries, name: entry})
        return replace(
            report,
            commit=entry.commit,
            skills=entry.skills,
            sha256=entry.sha256,
            changes=tuple(changes),
            written=bool(changes) and not self._check,
            unseen=tuple(_unseen_in(fetched.skills)) if changes else (),
        )

    def _fetch(self, name: str, source: Source, locked: LockedEntry | None) -> Fetched:
        try:
            fetched = fetch(source, self._base, locked)
        except SourceTrouble as trouble:
            raise SkillSourceError(name, str(trouble)) from trouble
        if locked is not None and fetched.sha256 != locked.sha256:
            reason = f"commit {locked.commit} holds other files than the lock says; review it, then sync with --upgrade"
            raise SkillSourceError(name, reason)
        return fetched

    def _refuse_doubles(self, name: str, fetched: Fetched, taken: Mapping[str, str]) -> None:
        for skill in fetched.skills:
            if skill in taken:
                reason = f"{taken[skill]!r} also has a skill {skill!r}; name those you want with include"
                raise SkillSourceError(name, reason)

    def _write(self, name: str, place: Path, here: Mapping[str, Files], fetched: Fetched) -> None:
        """Put skills into a new folder, which replaces the old one when it is complete."""
        if here and name not in self.lock.entries and hash_of(here) != fetched.sha256:
            cure = "move it away, or rename the entry in the manifest"
            raise DefinitionError(str(place), f"something is there that was not fetched; {cure}.")
        if place.is_symlink():
            raise DefinitionError(str(place), "it is a link, but skills are fetched into folders; move it away.")
        with self._aside(name) as aside:
            for skill, files in fetched.skills.items():
                for path, content in files.items():
                    file = aside / "new" / skill / path
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(content)
            swap(aside / "new", place)

    @contextmanager
    def _aside(self, name: str) -> Generator[Path]:
        """A hidden folder beside an entry's own, deleted with the block; those of processes that died are deleted as
        well."""
        prefix = f".helix-{name}."
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for left in self._folder.glob(f"{prefix}*"):
                if time.time() - left.stat().st_mtime > LEFT_BEHIND_SECONDS:
                    shutil.rmtree(left, ignore_errors=True)
            aside = Path(tempfile.mkdtemp(prefix=prefix, dir=self._folder))
            try:
                yield aside
            finally:
                shutil.rmtree(aside, ignore_errors=True)
        except OSError as problem:
            raise DefinitionError(str(self._folder / name), f"it cannot be written: {problem.strerror}.") from problem

    def _write_lock(self, entries: Mapping[str, LockedEntry]) -> None:
        self.lock = msgspec.structs.replace(self.lock, entries=dict(sorted(entries.items())))
        write_lock(self.lock, self._lock_file)


def _skills_in(place: Path) -> dict[str, Files]:
    """What is in an entry's folder, by skill, without hidden files; a link counts as its text, and is not followed."""
    found: dict[str, dict[str, bytes]] = {}
    for where, folders, files in os.walk(place):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        linked = [each for each in folders if Path(where, each).is_symlink()]
        for name in sorted((*files, *linked)):
            file = Path(where, name)
            skill, *rest = file.relative_to(place).parts
            if not name.startswith("."):
                content = b"-> " + os.fsencode(os.readlink(file)) if file.is_symlink() else file.read_bytes()
                found.setdefault(skill, {})["/".join(rest)] = content
    return {name: found[name] for name in sorted(found)}


def _hash_in(place: Path) -> str:
    return hash_of(_skills_in(place))


def _changes(before: Mapping[str, Files], after: Mapping[str, Files]) -> Iterator[str]:
    for name in sorted({*before, *after}):
        if name not in after:
            yield f"{name} is gone"
        elif name not in before:
            yield f"{name} is new"
        elif before[name] != after[name]:
            paths = {*before[name], *after[name]}
            other = sorted(path for path in paths if before[name].get(path) != after[name].get(path))
            more = f", and {len(other) - 5} more" if len(other) > 5 else ""
            yield f"{name} has a different {', '.join(other[:5])}{more}"


def _unseen_in(skills: Mapping[str, Files]) -> Iterator[str]:
    """Where a text has characters that a reviewer does not see."""
    for name, files in skills.items():
        for path, content in files.items():
            try:
                lines = content.decode().splitlines()
            except UnicodeDecodeError:
                continue
            for number, line in enumerate(lines, 1):
                if _UNSEEN.search(line):
                    yield f"{name}/{path}:{number}"
