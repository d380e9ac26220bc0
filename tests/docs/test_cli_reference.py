"""The page on the command line is written from the commands, and says what they say today."""

from docs.cli_reference import PAGE, render
from helix_agents.cli.app import COMMANDS


def test_the_page_on_the_command_line_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run: uv run python docs/cli_reference.py"


def test_every_command_has_a_section() -> None:
    page = render()
    for name in COMMANDS:
        assert f"## helix {name}" in page


def test_the_page_does_not_depend_on_the_terminal(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("HELIX_STORE", "memory://")
    assert render() == PAGE.read_text(encoding="utf-8")
