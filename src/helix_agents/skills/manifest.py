"""Which skills are fetched from where, in a file that people write, and what was fetched, in a file they commit."""

import json
import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias, cast

import msgspec

from helix_agents.domain.errors import DefinitionError

MANIFEST = "helix.skills.json"
LOCK_FORMAT = "helix-skills-lock/1"

_NAME = re.compile(r"[a-z0-9-]{1,64}")
# As git allows them, and nothing that it would take for an option, a pattern, or two names.
_REF = re.compile(r"(?![-+])(?!.*(\.\.|@\{))[^\x00-\x20\x7f~^:?*\[\\]{1,250}")
_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_WITH_PASSWORD = re.compile(r"[a-z+]+://[^/@]*:[^/@]*@")


class GitSource(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="type",
    tag="git",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Skills in a git repository: those in its `skills_dir`, or some of them."""

    url: str
    ref: str | None = None
    sha: str | None = None
    skills_dir: str = "skills"
    include: tuple[str, ...] = ()


class MarketplaceSource(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="type",
    tag="marketplace",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Skills of a plugin that a marketplace lists: a git repository with a `.claude-plugin/marketplace.json`."""

    url: str
    plugin: str
    ref: str | None = None
    sha: str | None = None
    include: tuple[str, ...] = ()


Source: TypeAlias = GitSource | MarketplaceSource


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to fetch, each entry under its own name, and the folder to put it into."""

    folder: str = "skills"
    skills: dict[str, Source]


class LockedEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one source returned: the commit, that of a plugin with its own repository, and a hash over all files."""

    source: Source
    commit: str
    plugin_commit: str | None = None
    skills: tuple[str, ...]
    sha256: str


class Lock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was fetched, by the names of the manifest."""

    format: str = LOCK_FORMAT
    entries: dict[str, LockedEntry] = {}


def lock_path(manifest: Path) -> Path:
    """Where the lock of a manifest is: beside it."""
    return manifest.with_suffix(".lock")


def read_manifest(path: Path) -> Manifest:
    """The manifest in a file.

    Raises:
        DefinitionError: it does not exist, or something in it could not work; says what and where.
    """
    raw = _bytes_of(path)
    if raw is None:
        shape = '{"skills": {"NAME": {"type": "git", "url": "…"}}}'
        raise DefinitionError(str(path), f"there is no such file; write one: {shape}.")
    try:
        manifest = msgspec.json.decode(raw, type=Manifest)
    except msgspec.MsgspecError as problem:
        raise DefinitionError(str(path), f"it is not a skills manifest: {problem}.") from problem
    if not is_inside(manifest.folder):
        raise DefinitionError(str(path), f"folder={manifest.folder!r} is not a path below the manifest's own folder.")
    for name, source in manifest.skills.items():
        problem = _problem_with(name, source)
        if problem is not None:
            raise DefinitionError(f"{path}: {name!r}", f"{problem}.")
    return manifest


def _problem_with(name: str, source: Source) -> str | None:
    if not _NAME.fullmatch(name):
        return "its name has to be 1 to 64 of the characters a-z, 0-9 and -"
    problem = problem_with_pin(source.url, source.ref, source.sha)
    if problem is not None:
        return problem
    if isinstance(source, GitSource) and source.skills_dir != "." and not is_inside(source.skills_dir):
        return f'skills_dir={source.skills_dir!r} is not a path inside the repository; the repository itself is "."'
    unfit = next((each for each in source.include if not _NAME.fullmatch(each)), None)
    return None if unfit is None else f"{unfit!r} in include is not the name of a skill"


def problem_with_pin(url: str, ref: str | None, sha: str | None) -> str | None:
    """Why git cannot or must not be asked for this: it would take it for an option or for something to run."""
    if not url or url.startswith("-") or "::" in url or not url.isprintable():
        return f"url={url!r} is not the address of a git repository"
    if _WITH_PASSWORD.match(url):
        return "its url has a password in it, and anyone can read this file; give it to git's credential helper instead"
    if ref is not None and not (_REF.fullmatch(ref) and ref.isprintable()):
        return f"ref={ref!r} is not the name of a branch or a tag"
    if sha is not None and not _SHA.fullmatch(sha):
        return f"sha={sha!r} is not a full id of a commit, in lower case"
    return None


def is_inside(path: str) -> bool:
    """Whether a relative path stays below where it starts."""
    plain = PurePosixPath(path)
    return bool(plain.parts) and not plain.is_absolute() and ".." not in plain.parts and "\\" not in path


def read_lock(path: Path) -> Lock:
    """What was fetched before; empty if there is no file.

    Raises:
        DefinitionError: the file is not a lock, or belongs to a later release.
    """
    raw = _bytes_of(path)
    if raw is None:
        return Lock()
    try:
        read: Any = msgspec.json.decode(raw)
        given = cast("dict[str, Any]", read).get("format") if isinstance(read, dict) else None
        if given != LOCK_FORMAT:
            raise DefinitionError(str(path), f"it has format {given!r}, not {LOCK_FORMAT!r}; delete it and sync again.")
        lock = msgspec.convert(read, Lock)
    except msgspec.MsgspecError as problem:
        raise DefinitionError(str(path), f"it is not a lock: {problem}. Delete it and sync again.") from problem
    for name, entry in lock.entries.items():
        problem = _problem_with_locked(name, entry)
        if problem is not None:
            raise DefinitionError(f"{path}: {name!r}", f"{problem}. Delete it and sync again.")
    return lock


def _problem_with_locked(name: str, entry: LockedEntry) -> str | None:
    """Names become folders that are replaced and deleted, and commits become words of a command: someone who can change
    this file in a pull request must not be able to choose either."""
    if not _NAME.fullmatch(name):
        return "this is not the name of an entry"
    commits = [each for each in (entry.commit, entry.plugin_commit) if each is not None]
    unfit = next((each for each in commits if not _SHA.fullmatch(each)), None)
    return None if unfit is None else f"{unfit!r} is not the id of a commit"


def write_lock(lock: Lock, path: Path) -> None:
    """Write a lock to a file, completely or not at all; the same lock always gives the same bytes."""
    text = json.dumps(msgspec.to_builtins(lock, order="sorted"), indent=2, ensure_ascii=False, sort_keys=True) + "\n"
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        # A temporary file is private to its owner; this one is code.
        os.chmod(draft, 0o644)
        os.replace(draft, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(draft)
        raise


def _bytes_of(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise DefinitionError(str(path), f"it cannot be read: {problem.strerror}.") from problem
