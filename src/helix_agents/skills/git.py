"""Reads files from git repositories with the `git` program; nothing is checked out, so nothing in them can run."""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from helix_agents.domain.errors import DefinitionError

SECONDS = 300
"""How long one git command may take."""

ANYWHERE = ("https", "http", "ssh", "git", "file")
"""The protocols that a manifest, which the user wrote, may name."""

ELSEWHERE = ("https", "ssh")
"""The protocols that a file from elsewhere may name."""

_OURS = frozenset(("100644", "100755"))
_LONGEST_WORDS = 500


class SourceTrouble(Exception):  # noqa: N818  # it becomes an error where the entry's name is known
    """A source does not return what it should; says why."""


class Blob(NamedTuple):
    """A file in a commit; `is_file` is false for a link, or a repository within the repository."""

    path: str
    oid: str
    size: int
    is_file: bool


class Repository:
    """Commits of repositories, fetched into a bare repository that is deleted with its folder."""

    def __init__(self, folder: Path, base: Path) -> None:
        self._folder = folder
        self._base = base
        self._git("init", "--quiet", "--bare", "--template=", str(folder), inside=False)

    def fetch(self, url: str, *, ref: str | None, sha: str | None, protocols: Sequence[str]) -> str:
        """Fetch a commit and return it; `sha` is a commit by its id, and takes precedence over a `ref`.

        Raises:
            SourceTrouble: it is not available.
        """
        # Whatever follows the two dashes is never an option, whatever it looks like.
        shallow = ("fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--", url)
        # A stricter setting of the user's is respected.
        theirs = os.environ.get("GIT_ALLOW_PROTOCOL", ":".join(protocols)).split(":")
        allowed = {"GIT_ALLOW_PROTOCOL": ":".join(each for each in protocols if each in theirs)}
        if sha is None:
            self._git(*shallow, ref or "HEAD", more=allowed)
            return self._git("rev-parse", "--verify", "FETCH_HEAD^{commit}").decode().strip()
        try:
            self._git(*shallow, sha, more=allowed)
        except SourceTrouble:
            # Not every server returns a commit by its id.
            all_of_it = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
            self._git("fetch", "--quiet", "--no-recurse-submodules", "--", url, *all_of_it, more=allowed)
        try:
            return self._git("rev-parse", "--verify", f"{sha}^{{commit}}").decode().strip()
        except SourceTrouble as problem:
            raise SourceTrouble(f"it has no commit {sha}") from problem

    def list_blobs(self, commit: str) -> list[Blob]:
        """Every file of a commit, by its path."""
        raw = self._git("ls-tree", "-r", "-l", "-z", "--full-tree", commit)
        found: list[Blob] = []
        for line in raw.split(b"\0"):
            if line:
                about, _, path = line.partition(b"\t")
                mode, kind, oid, size = about.decode().split()
                is_file = kind == "blob" and mode in _OURS
                found.append(Blob(os.fsdecode(path), oid, int(size) if is_file else 0, is_file))
        return found

    def read(self, blobs: Sequence[Blob]) -> list[bytes]:
        """The contents of files."""
        if not blobs:
            return []
        raw = self._git("cat-file", "--batch", given="".join(f"{blob.oid}\n" for blob in blobs).encode())
        contents: list[bytes] = []
        at = 0
        for blob in blobs:
            begins = raw.index(b"\n", at) + 1
            contents.append(raw[begins : begins + blob.size])
            at = begins + blob.size + 1
        return contents

    def _git(
        self, *words: str, inside: bool = True, given: bytes = b"", more: Mapping[str, str] | None = None
    ) -> bytes:
        where = ("--git-dir", str(self._folder)) if inside else ()
        # There is no one to type a password, and settings that a shell has for another repository do not apply.
        kept = {name: value for name, value in os.environ.items() if name not in _OF_A_REPOSITORY}
        environment = {**kept, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", **(more or {})}
        try:
            done = subprocess.run(
                ("git", *where, *words),
                cwd=self._base,
                env=environment,
                input=given,
                capture_output=True,
                check=False,
                timeout=SECONDS,
            )
        except FileNotFoundError as problem:
            raise DefinitionError(
                "git", "the program is not installed, but it is needed to fetch skills; install it."
            ) from problem
        except subprocess.TimeoutExpired as problem:
            raise SourceTrouble(f"git took longer than {SECONDS} seconds") from problem
        if done.returncode:
            raise SourceTrouble(_words(done.stderr))
        return done.stdout


# What git sets for its hooks, from which this may be called.
_OF_A_REPOSITORY = frozenset(
    (
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_COMMON_DIR",
        "GIT_DIR",
        "GIT_INDEX_FILE",
        "GIT_NAMESPACE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_PREFIX",
        "GIT_SHALLOW_FILE",
        "GIT_WORK_TREE",
    )
)
_PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")


def _words(raw: bytes) -> str:
    """What git complains about, on one line, without the part of an address before the host."""
    said = " ".join(raw.decode(errors="replace").split()).removeprefix("fatal: ")
    return _PASSWORD.sub("", said)[:_LONGEST_WORDS] or "git failed and said nothing"
