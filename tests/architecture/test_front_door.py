"""`import helix_agents` offers each public name to editors, to programs and to `dir`, and loads it on first use."""

import ast
import importlib
import subprocess
import sys

import pytest

import helix_agents
from tests.architecture.source_tree import PACKAGE, syntax_of

# Named by those who have the extra; each says which one it needs.
NEED_AN_EXTRA = {"AgentServer", "DBOSAgentExecutor", "OpenTelemetryHooks", "TemporalAgentExecutor"}
HOMES: dict[str, str] = vars(helix_agents)["_HOME"]


def names_for_editors() -> dict[str | None, str | None]:
    return {
        alias.asname: node.module
        for block in ast.walk(syntax_of(PACKAGE / "__init__.py"))
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_the_names_for_editors_are_the_names_at_run_time() -> None:
    """Each is written `from home import Name as Name`: without the `as`, a strict type checker takes it for private."""
    assert names_for_editors() == HOMES
    assert sorted(helix_agents.__all__) == sorted({"__version__", *HOMES} - NEED_AN_EXTRA)
    assert set(dir(helix_agents)) >= set(HOMES)


def test_every_name_is_found_in_its_home() -> None:
    for name, home in HOMES.items():
        assert getattr(helix_agents, name) is getattr(importlib.import_module(home), name)


def test_everything_can_be_imported_with_no_extra_installed() -> None:
    program = (
        "import sys\n"
        "for extra in ('dbos', 'temporalio', 'starlette', 'uvicorn', 'httpx2', 'mcp', 'asyncpg', 'redis', 'tink',\n"
        "              'argon2', 'cryptography', 'pydantic_ai', 'anthropic', 'openai', 'pytest', 'hypothesis'):\n"
        "    sys.modules[extra] = None\n"
        "from helix_agents import *\n"
        "print(Agent.__name__, tool.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("Agent tool\n", "")


def test_a_name_is_loaded_when_it_is_first_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HOMES, "HelixError", "helix_agents.domain.errors")
    helix_agents.__dict__.pop("HelixError", None)
    try:
        assert helix_agents.HelixError.__module__ == "helix_agents.domain.errors.root"
        assert "HelixError" in vars(helix_agents)
    finally:
        helix_agents.__dict__.pop("HelixError", None)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing_of_ours'"):
        _ = helix_agents.nothing_of_ours
