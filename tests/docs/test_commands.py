"""Every command line that a page shows is one that the `helix` command understands."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from helix_agents.cli.app import app
from tests.docs.pages import ROOT, blocks, written_pages

PAGES = [*written_pages(), *ROOT.glob("*.md"), ROOT / "examples" / "README.md"]


def shown_on(page: Path) -> Iterator[str]:
    """Lines of shell blocks, and what stands in the text as code."""
    for block in blocks(page):
        if block.language == "sh":
            yield from block.code.replace("\\\n", " ").splitlines()
    yield from re.findall(r"(?<!`)`([^`\n]*)`(?!`)", page.read_text(encoding="utf-8"))


def commands_in(line: str) -> Iterator[list[str]]:
    """What follows `helix` where it is called, at the beginning of a line or after `uv run`."""
    for part in re.split(r"&&|\|", line.partition(" #")[0]):
        found = re.match(r"\s*(?:uv run (?:--\S+ (?:anthropic )?)*)?helix\s+(.+)", part)
        if found is not None:
            yield shlex.split(found[1])


def problem_with(words: list[str]) -> str | None:
    """What the command would not understand: a subcommand or an option that is not there."""
    command: click.Command = app
    context = click.Context(app)
    for at, word in enumerate(words):
        if word.startswith("-"):
            options = {opt for each in command.params for opt in (*each.opts, *each.secondary_opts)}
            if word.partition("=")[0] not in options | {"--help", "-h"}:
                return f"{word} is not an option of {' '.join(words[:at])}"
        elif isinstance(command, click.Group):
            below = command.get_command(context, word)
            if below is None:
                return f"there is no command {word!r}"
            command = below
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_are_understood(page: Path) -> None:
    wrong = {
        " ".join(words): problem
        for line in shown_on(page)
        for words in commands_in(line)
        if (problem := problem_with(words)) is not None
    }
    assert wrong == {}


def test_a_command_that_is_not_there_is_noticed() -> None:
    assert list(commands_in("uv run --no-dev helix demo --yes   # see")) == [["demo", "--yes"]]
    assert problem_with(["sessions", "shew", "x"]) == "there is no command 'shew'"
    assert problem_with(["demo", "--loud"]) == "--loud is not an option of demo"
    assert problem_with(["resume", "app:agents", "SESSION", "--json"]) is None
