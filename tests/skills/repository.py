"""A git repository as a server has it, for who fetches skills out of it."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

SKILL = "---\nname: {name}\ndescription: Does {name}.\n---\n{body}\n"


class Repository:
    """A bare repository, as a server has it, and a clone to work in."""

    def __init__(self, folder: Path) -> None:
        self.bare, self.clone = folder / "served.git", folder / "clone"
        _git(folder, "init", "--quiet", "--bare", "--initial-branch=main", str(self.bare))
        _git(folder, "init", "--quiet", "--initial-branch=main", str(self.clone))
        self.git("remote", "add", "origin", str(self.bare))

    @property
    def url(self) -> str:
        return f"file://{self.bare}"

    def git(self, *words: str) -> str:
        return _git(self.clone, *words)

    def commit(self, files: dict[str, str], tag: str | None = None) -> str:
        for path, text in files.items():
            file = self.clone / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        return self.push(tag)

    def push(self, tag: str | None = None) -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "Another one")
        if tag is not None:
            self.git("tag", tag)
        self.git("push", "--quiet", "--tags", "origin", "main")
        return self.git("rev-parse", "HEAD")


def _git(folder: Path, *words: str) -> str:
    who = {
        "GIT_AUTHOR_NAME": "A",
        "GIT_AUTHOR_EMAIL": "a@b.c",
        "GIT_COMMITTER_NAME": "A",
        "GIT_COMMITTER_EMAIL": "a@b.c",
    }
    environment = {**os.environ, **who, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    done = subprocess.run(("git", *words), cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def skill(name: str, body: str = "Do it.") -> str:
    return SKILL.format(name=name, body=body)


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def write(place: Path, **entries: dict[str, Any]) -> None:
    (place / "helix.skills.json").write_text(json.dumps({"skills": entries}))
