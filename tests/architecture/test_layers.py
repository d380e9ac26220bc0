"""The layers hold: each row of the picture knows only the rows below it, and every folder has a row."""

import re
import subprocess
import sys

import pytest

from tests.architecture.source_tree import INNER_RINGS, PACKAGE, ROOT, imports_of, modules, project, shown

# An optional technology is one folder, so that one extra can be left out and one folder can be replaced. The HTTP
# client is of two, which have nothing else in common.
HOME_OF_DEPENDENCY: dict[str, str | tuple[str, ...]] = {
    "apsw": "backends/sqlite",
    "asyncpg": "backends/postgres",
    "redis": "backends/redis",
    "dbos": "runtimes/dbos",
    "temporalio": "runtimes/temporal",
    "pydantic_ai": "llm/pydantic_ai",
    "httpx2": ("llm/pydantic_ai", "server/remote_http.py", "mcp_tools", "runtimes/executor/webhook_posts.py"),
    "starlette": "server",
    "uvicorn": ("server", "capabilities/mcp"),
    "mcp": ("capabilities/mcp", "mcp_tools"),
    "mcp_types": ("capabilities/mcp", "mcp_tools"),
    "jsonschema": "mcp_tools",
    "click": "cli",
    "rich": "cli",
    "pytest": "testing",
    "hypothesis": "testing",
}


def layers() -> list[list[str]]:
    [contract] = [c for c in project()["tool"]["importlinter"]["contracts"] if c["id"] == "layers"]
    return [re.findall(r"\w+", row) for row in contract["layers"]]


def test_the_import_contracts_hold() -> None:
    # In a process of its own, because the linter switches off every logger of the one it runs in.
    command = (
        "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(sys.argv[1], no_cache=True))"
    )
    done = subprocess.run(
        [sys.executable, "-c", command, str(ROOT / "pyproject.toml")], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_folder_of_the_package_has_a_row() -> None:
    """A folder without `__init__.py` is invisible to the import linter, so the folders are counted here too."""
    found = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    placed = {name for row in layers() for name in row}
    assert found <= placed, f"give these a row in [tool.importlinter] of pyproject.toml: {sorted(found - placed)}"


def test_every_folder_of_the_package_is_importable() -> None:
    """Without `__init__.py` a folder escapes the import linter and the type checker."""
    bare = {path.parent for path in modules() if not (path.parent / "__init__.py").exists()}
    assert not bare, f"__init__.py is missing in {sorted(map(shown, bare))}"


def test_the_rows_are_those_of_the_picture() -> None:
    [*_, engine, agent, ports, domain] = layers()
    assert [domain, ports, agent, engine] == [[ring] for ring in INNER_RINGS]


@pytest.mark.parametrize("dependency", sorted(HOME_OF_DEPENDENCY))
def test_an_optional_technology_lives_in_one_folder(dependency: str) -> None:
    homes = HOME_OF_DEPENDENCY[dependency]
    folders = [PACKAGE / home for home in ([homes] if isinstance(homes, str) else homes)]
    strangers = [
        shown(path)
        for path in modules()
        if not any(path.is_relative_to(folder) for folder in folders)
        and any(name == dependency or name.startswith(f"{dependency}.") for name in imports_of(path))
    ]
    assert not strangers, f"{dependency} belongs in {homes}, but is imported by {strangers}"


def test_no_module_enters_through_the_front_door() -> None:
    """`from helix_agents import Agent` is for users: inside, it would tie every layer to every other one."""
    homes = {"__version__", *(path.stem for path in PACKAGE.iterdir())}
    for path in modules():
        for name in imports_of(path):
            package, _, rest = name.partition(".")
            if package == "helix_agents":
                assert rest.split(".")[0] in homes, f"{shown(path)} imports {name}; import it from its home"


def test_imports_climb_no_further_than_their_own_folder() -> None:
    """Checked here because the readers of imports above follow absolute names only."""
    dotted = re.compile(r"^\s*from \.\.", re.MULTILINE)
    climbing = [shown(path) for path in modules() if dotted.search(path.read_text(encoding="utf-8"))]
    assert not climbing, f"write the full name of the module in {climbing}"
