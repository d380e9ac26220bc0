"""The repository as the architecture tests read it: its files, its modules and what they import."""

import ast
import subprocess
import tomllib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "helix_agents"
INNER_RINGS = ("domain", "ports", "agent", "engine")


@cache
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def modules(folder: Path = PACKAGE) -> list[Path]:
    return sorted(folder.rglob("*.py"))


@cache
def syntax_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def imports_of(path: Path) -> tuple[str, ...]:
    """Every absolute name a module imports, at its top or inside a function; `from a import b` counts as `a.b`."""
    found: list[str] = []
    for node in ast.walk(syntax_of(path)):
        if isinstance(node, ast.Import):
            found.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.extend(f"{node.module}.{alias.name}" for alias in node.names)
    return tuple(found)


@cache
def committed_files() -> tuple[Path, ...]:
    """What is, or with the next commit would be, part of the repository."""
    try:
        listing = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=ROOT,
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        files = [ROOT / name for name in listing.split("\0") if name]
    except (FileNotFoundError, subprocess.CalledProcessError):
        # An unpacked archive has no git; then everything that no tool leaves behind counts.
        left_behind = {"__pycache__", "uv.lock", "dist", "build"}
        files = [
            path
            for path in ROOT.rglob("*")
            if not any(
                part in left_behind or (part.startswith(".") and part != ".ci") for part in path.relative_to(ROOT).parts
            )
        ]
    return tuple(path for path in files if path.is_file())
