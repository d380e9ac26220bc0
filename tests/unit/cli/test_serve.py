"""`helix serve` says what is missing before it opens anything."""

import sys
from pathlib import Path

import pytest

from helix_agents import Agent, ScriptedModel
from helix_agents.cli.agent_modules import load_agents
from helix_agents.cli.app import run
from helix_agents.cli.exit_codes import ExitCode

ONE = Agent(name="one", model=ScriptedModel(["hello"]))
SEVERAL = [ONE]
MISSPELT = Agent(name="two", model=ONE.model, tools=[Agent(name="x", description="X.", model="antropic:x").as_tool()])
NONE: list[object] = []
HERE = "tests.unit.cli.test_serve"


@pytest.mark.parametrize("name", ["ONE", "SEVERAL"])
def test_an_agent_or_a_list_of_them_is_found(name: str) -> None:
    module = sys.modules[__name__]
    (agent,) = load_agents(f"{module.__name__}:{name}")
    assert agent.name == "one"


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["serve", f"{HERE}:ONE"], ExitCode.USAGE, "Say who may call"),
        (["serve", "nowhere.at.all:agents", "--token", "t"], ExitCode.SETUP, "no module 'nowhere'"),
        (["serve", f"{HERE}:MISSING", "--token", "t"], ExitCode.SETUP, "has no 'MISSING'"),
        (["serve", f"{HERE}:NONE", "--token", "t"], ExitCode.SETUP, "has to be an Agent, a list of them"),
        (["serve", f"{HERE}:HERE", "--token", "t"], ExitCode.SETUP, "has to be an Agent, a list of them"),
        (["serve", f"{HERE}:MISSPELT", "--token", "t"], ExitCode.SETUP, "No provider is installed for 'antropic'"),
        (["serve", "not_here", "--token", "t"], ExitCode.SETUP, "no module 'not_here'"),
        (["serve", f"{HERE}:ONE", "--token", "t", "--port", "70000"], ExitCode.USAGE, "70000"),
    ],
)
def test_a_wrong_command_line_is_explained(
    arguments: list[str],
    code: ExitCode,
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HELIX_TOKEN", raising=False)
    assert run(arguments) == code
    assert told in capsys.readouterr().err


def test_a_port_that_is_taken_is_explained(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert run(["serve", f"{HERE}:ONE", "--token", "t", "--port", port, "--store", "memory://"]) == ExitCode.FAILED
    assert "cannot listen" in capsys.readouterr().err


def test_a_store_that_does_not_open_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["serve", f"{HERE}:ONE", "--token", "t", "--port", "0", "--store", "sqlite:////nowhere/at/all.db"]
    assert run(arguments) == ExitCode.SERVICE
    assert "cannot be opened" in capsys.readouterr().err
