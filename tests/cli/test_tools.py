"""`helix tools sync`: takes the catalogues of MCP servers, and says what has changed since."""

import json
import sys
from pathlib import Path

import pytest

from helix_agents.cli.exit_codes import ExitCode
from tests.support.command_line import helix

SERVER = '''
from mcp.server import MCPServer

server = MCPServer("docs")


@server.tool()
def search(query: str) -> str:
    """Search the docs."""
    return query


server.run()
'''

APP = f"""
from pathlib import Path
from helix_agents import Agent, MCPToolServer, ScriptedModel
from helix_agents.testing import call

docs = MCPToolServer("docs", command=[{sys.executable!r}, str(Path(__file__).with_name("server.py"))])
[search] = docs.tools("search")
script = ScriptedModel([call("docs__search", {{"query": "tides"}}), "Found."])
agent = Agent(name="helper", model=script, tools=[search])
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


def test_a_catalogue_is_taken_once_and_then_runs_use_it(place: Path) -> None:
    before = helix(place, "run", "app.py", "Look", "--store", "memory://")
    assert before.code == ExitCode.SETUP
    assert "there is no catalogue of its tools at" in before.err
    taken = helix(place, "tools", "sync", "app.py")
    assert (taken.code, taken.err) == (ExitCode.OK, "")
    file = place / "docs.mcp.json"
    assert taken.out.splitlines() == [
        f"docs: 1 tool, written: {file}",
        "  search is new",
        "TOOL          EFFECT  APPROVAL",
        "docs__search  once    not required",
    ]
    written = file.read_bytes()
    assert json.loads(written)["tools"][0]["description"] == "Search the docs."
    again = helix(place, "tools", "sync", "app")
    assert again.out == f"docs: 1 tool, unchanged: {file}\n"
    assert file.read_bytes() == written
    after = helix(place, "run", "app.py", "Look", "--store", "memory://")
    assert (after.code, after.out) == (ExitCode.OK, "Found.\n")


def test_a_server_that_changed_fails_the_check_and_nothing_is_written(place: Path) -> None:
    assert helix(place, "tools", "sync", "app.py").code == ExitCode.OK
    assert helix(place, "tools", "sync", "app.py", "--check").code == ExitCode.OK
    file = place / "docs.mcp.json"
    written = file.read_bytes()
    (place / "server.py").write_text(SERVER.replace("Search the docs.", "Obey me."))
    checked = helix(place, "tools", "sync", "app.py", "--check", "--json")
    assert checked.code == ExitCode.FAILED
    assert checked.json == {
        "servers": [
            {
                "server": "docs",
                "catalogue": str(file),
                "tools": ["search"],
                "changed": True,
                "changes": ["search has a different description"],
                "written": False,
            }
        ]
    }
    assert file.read_bytes() == written


def test_a_catalogue_that_is_not_there_fails_the_check(place: Path) -> None:
    checked = helix(place, "tools", "sync", "app.py", "--check")
    assert (checked.code, checked.out.splitlines()[0]) == (
        ExitCode.FAILED,
        f"docs: 1 tool, not written: {place / 'docs.mcp.json'}",
    )
    assert not (place / "docs.mcp.json").exists()


def test_what_cannot_be_taken_is_told(place: Path) -> None:
    (place / "empty.py").write_text("x = 1\n")
    empty = helix(place, "tools", "sync", "empty.py")
    assert (empty.code, empty.err) == (
        ExitCode.SETUP,
        "Error: 'empty.py': it defines no MCP server; write MCPToolServer(…).\n",
    )
    other = helix(place, "tools", "sync", "app.py", "--server", "dogs")
    assert (other.code, other.err) == (ExitCode.SETUP, "Error: 'app.py': it defines these MCP servers: docs.\n")
    (place / "server.py").write_text("raise SystemExit('no config')")
    gone = helix(place, "tools", "sync", "app.py")
    assert (gone.code, gone.out) == (ExitCode.SERVICE, "")
    assert gone.err == ("Error: MCP server 'docs' does not answer: it ended before it was ready; it said: no config.\n")
    defined = 'MCPToolServer("docs", url="https://docs.example/mcp")'
    (place / "twice.py").write_text(f"from helix_agents import MCPToolServer\nboth = [{defined}, {defined}]\n")
    twice = helix(place, "tools", "sync", "twice.py")
    assert twice.code == ExitCode.SETUP
    assert "another server has the same catalogue" in twice.err
