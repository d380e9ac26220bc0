"""Fetches the skills that a manifest entry names: from a repository, or from a plugin in a marketplace."""

import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, cast

from helix_agents.skills.git import ANYWHERE, ELSEWHERE, Blob, Repository, SourceTrouble
from helix_agents.skills.manifest import GitSource, LockedEntry, MarketplaceSource, Source, problem_with_pin
from helix_agents.skills.skill_file import SKILL_FILE, SkillFileError, parse_skill_file

MOST_FILES = 2_000
MOST_BYTES = 50_000_000
"""The limits for one entry, because a person reviews what is fetched."""
MOST_BYTES_OF_A_LIST = 1_000_000

_LONGEST_NAME = 256
_IN_LFS = b"version https://git-lfs.github.com/spec/"

_MARKETPLACE = ".claude-plugin/marketplace.json"
_PLUGIN = ".claude-plugin/plugin.json"
_SKILLS = "skills"

Files = Mapping[str, bytes]


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """What a source returned: the files of each skill by name, and the commits they come from."""

    commit: str
    plugin_commit: str | None = None
    skills: Mapping[str, Files]

    @property
    def sha256(self) -> str:
        """One hash over everything."""
        return hash_of(self.skills)


def hash_of(skills: Mapping[str, Files]) -> str:
    """One hash over skills: over their files in the order of their paths, each by its own hash."""
    whole = hashlib.sha256()
    files = {f"{name}/{path}": content for name in skills for path, content in skills[name].items()}
    for path in sorted(files):
        # A path that contains a line end must not read like two paths.
        line = path.replace("\\", "\\\\").replace("\n", "\\n")
        whole.update(f"{hashlib.sha256(files[path]).hexdigest()}  {line}\n".encode(errors="surrogateescape"))
    return whole.hexdigest()


def fetch(source: Source, base: Path, locked: LockedEntry | None = None) -> Fetched:
    """What a source returns, at the commits of a lock if there is one; paths in addresses are relative to `base`.

    Raises:
        SourceTrouble: it does not return it, or returns something that may not be used.
        DefinitionError: git is not installed.
    """
    with tempfile.TemporaryDirectory(prefix="helix-skills-", ignore_cleanup_errors=True) as folder:
        repository = Repository(Path(folder) / "git", base)
        sha = source.sha if locked is None else locked.commit
        commit = repository.fetch(source.url, ref=source.ref, sha=sha, protocols=ANYWHERE)
        tree = _Tree(repository, commit)
        if isinstance(source, GitSource):
            skills = _skills_in(tree, [_plain(source.skills_dir)], source.include)
            return Fetched(commit=commit, skills=_chosen(tree, skills, source.include))
        return _fetch_plugin(tree, source, None if locked is None else locked.plugin_commit)


class _Tree:
    """The files of a commit."""

    def __init__(self, repository: Repository, commit: str) -> None:
        self.repository = repository
        self.commit = commit
        self.blobs = {blob.path: blob for blob in repository.list_blobs(commit)}

    def read_json(self, path: str) -> dict[str, Any] | None:
        blob = self.blobs.get(path)
        if blob is None or not blob.is_file:
            return None
        if blob.size > MOST_BYTES_OF_A_LIST:
            raise SourceTrouble(f"its {path} has more than {MOST_BYTES_OF_A_LIST:,} bytes")
        try:
            found: object = json.loads(self.repository.read([blob])[0])
        except (ValueError, RecursionError) as problem:
            raise SourceTrouble(f"its {path} is not JSON: {problem}") from problem
        if not isinstance(found, dict):
            raise SourceTrouble(f"its {path} is not a JSON object")
        return cast("dict[str, Any]", found)

    def below(self, folder: str) -> list[Blob]:
        return [blob for path, blob in self.blobs.items() if not folder or path.startswith(f"{folder}/")]


def _fetch_plugin(market: _Tree, source: MarketplaceSource, plugin_commit: str | None) -> Fetched:
    listed = market.read_json(_MARKETPLACE)
    if listed is None:
        raise SourceTrouble(f"it is not a marketplace: it has no {_MARKETPLACE}")
    plugins = {str(each.get("name")): each for each in _dicts(listed.get("plugins"))}
    plugin = plugins.get(source.plugin)
    if plugin is None:
        raise SourceTrouble(f"it lists no plugin {source.plugin!r}; there are: {', '.join(sorted(plugins)) or 'none'}")
    given = plugin.get("source")
    if isinstance(given, str):
        metadata = listed.get("metadata")
        roots = cast("dict[str, Any]", metadata).get("pluginRoot") if isinstance(metadata, dict) else None
        is_short = isinstance(roots, str) and not given.startswith(".")
        tree, root = market, _plain(f"{roots}/{given}" if is_short else given)
    else:
        tree, root = _elsewhere(market, source, given, plugin_commit)
    own = tree.read_json(_joined(root, _PLUGIN)) or {}
    told = [*_paths(plugin.get(_SKILLS)), *_paths(own.get(_SKILLS))]
    folders = [_joined(root, _plain(path)) for path in told]
    # A plugin has its skills in `skills` and wherever else it says; one that is not strict, only where the list says.
    if not told or plugin.get("strict", True):
        folders.insert(0, _joined(root, _SKILLS))
    skills = _skills_in(tree, folders, source.include)
    return Fetched(
        commit=market.commit,
        plugin_commit=None if tree is market else tree.commit,
        skills=_chosen(tree, skills, source.include),
    )


def _elsewhere(market: _Tree, source: MarketplaceSource, given: object, locked: str | None) -> tuple[_Tree, str]:
    """A plugin in its own repository, which the marketplace names."""
    place = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    kind, url = place.get("source"), place.get("url")
    if kind == "github":
        url = f"https://github.com/{place.get('repo')}.git"
    elif kind not in ("url", "git-subdir"):
        raise SourceTrouble(f"its plugin {source.plugin!r} is not in a git repository, but: {json.dumps(given)[:200]}")
    ref, sha = place.get("ref"), place.get("sha")
    is_told = isinstance(url, str) and isinstance(ref, str | None) and isinstance(sha, str | None)
    problem = problem_with_pin(str(url), ref, sha) if is_told else "its address is not valid"
    if problem is not None:
        raise SourceTrouble(f"its plugin {source.plugin!r} cannot be fetched: {problem}")
    # A list from elsewhere must not make us read repositories on this machine, unless the list itself is on this
    # machine.
    protocols = ANYWHERE if _is_local(source.url) else ELSEWHERE
    commit = market.repository.fetch(str(url), ref=ref, sha=locked or sha, protocols=protocols)
    path = place.get("path") if kind == "git-subdir" else "."
    return _Tree(market.repository, commit), _plain(str(path))


def _is_local(url: str) -> bool:
    """Whether an address is a path; git@host:path is not."""
    return url.startswith("file://") or ("://" not in url and ":" not in url.partition("/")[0])


def _skills_in(tree: _Tree, folders: Sequence[str], include: Sequence[str]) -> dict[str, str]:
    """The folders of skills by name: a folder that is a skill itself, or all skills in it. Problems with a skill that
    is not wanted do not matter."""
    found: dict[str, str] = {}
    for place, raw in _skill_files(tree, folders):
        try:
            name = parse_skill_file(raw).name
        except SkillFileError as problem:
            if include and PurePosixPath(place).name not in include:
                continue
            raise SourceTrouble(f"{_joined(place, SKILL_FILE)} is not a skill: {problem}") from problem
        if found.setdefault(name, place) != place and (not include or name in include):
            raise SourceTrouble(f"{found[name] or '.'} and {place} both hold a skill {name!r}")
    return found


def _skill_files(tree: _Tree, folders: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    for folder in folders:
        paths = (blob.path.removeprefix(f"{folder}/" if folder else "") for blob in tree.below(folder))
        inner = {_joined(folder, path.split("/")[0]) for path in paths}
        places = [folder] if _joined(folder, SKILL_FILE) in tree.blobs else sorted(inner)
        found = {place: tree.blobs.get(_joined(place, SKILL_FILE)) for place in places}
        files = {place: blob for place, blob in found.items() if blob is not None and blob.is_file}
        _check_size(f"the skills in {folder or '.'}", list(files.values()))
        yield from zip(files, tree.repository.read(list(files.values())), strict=True)


def _chosen(tree: _Tree, skills: Mapping[str, str], include: Sequence[str]) -> dict[str, Files]:
    unknown = sorted({*include} - {*skills})
    if unknown or not skills:
        wanted = f"no skill {unknown[0]!r}" if unknown else "no skills there"
        raise SourceTrouble(f"it has {wanted}; it has: {', '.join(sorted(skills)) or 'none'}")
    chosen = {name: _files_of(tree, skills[name]) for name in sorted(include or skills)}
    _check_size("what is wanted of it", [blob for files in chosen.values() for blob in files.values()])
    return {name: _contents(tree, files) for name, files in chosen.items()}


def _files_of(tree: _Tree, folder: str) -> dict[str, Blob]:
    """Every file of a skill except hidden ones, by its path within the skill."""
    taken: dict[str, Blob] = {}
    for blob in tree.below(folder):
        path = blob.path.removeprefix(f"{folder}/" if folder else "")
        parts = path.split("/")
        if any(part.startswith(".") and part.strip(".") for part in parts):
            continue
        if not blob.is_file:
            raise SourceTrouble(f"{blob.path} is a link or a submodule; neither is fetched")
        if not all(map(_is_fit, parts)):
            raise SourceTrouble(f"{blob.path!r} is not a path inside its folder, made of visible characters")
        taken[path] = blob
    return taken


def _is_fit(part: str) -> bool:
    """Whether a file or folder may have this name; unprintable characters would be invisible to a reviewer."""
    return part.strip(".") != "" and "\\" not in part and part.isprintable() and len(part.encode()) < _LONGEST_NAME


def _contents(tree: _Tree, files: Mapping[str, Blob]) -> Files:
    contents = dict(zip(files, tree.repository.read(list(files.values())), strict=True))
    elsewhere = next((path for path, content in contents.items() if content.startswith(_IN_LFS)), None)
    if elsewhere is not None:
        raise SourceTrouble(f"{files[elsewhere].path} is in Git LFS, so only a pointer to it would be fetched")
    return contents


def _check_size(what: str, blobs: Sequence[Blob]) -> None:
    if len(blobs) > MOST_FILES or sum(blob.size for blob in blobs) > MOST_BYTES:
        raise SourceTrouble(f"{what}: more than {MOST_FILES:,} files or {MOST_BYTES:,} bytes")


def _plain(path: str) -> str:
    plain = PurePosixPath(path)
    if plain.is_absolute() or ".." in plain.parts:
        raise SourceTrouble(f"{path!r} leads out of the repository")
    return "" if str(plain) == "." else str(plain)


def _joined(folder: str, path: str) -> str:
    return "/".join(each for each in (folder, path) if each)


def _paths(given: object) -> list[str]:
    several = cast("list[object]", given) if isinstance(given, list) else [given]
    return [each for each in several if isinstance(each, str)]


def _dicts(given: object) -> list[dict[str, Any]]:
    several = cast("list[object]", given) if isinstance(given, list) else []
    return [cast("dict[str, Any]", each) for each in several if isinstance(each, dict)]
