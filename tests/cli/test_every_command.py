"""No command is left out: each is typed in one of these files, as a process of its own."""

import re
from collections.abc import Iterator
from pathlib import Path

import click

from helix_agents.cli.app import app

HERE = Path(__file__).parent
FILES = [file for file in sorted(HERE.glob("test_*.py")) if file != Path(__file__)]
TYPED = "\n".join(file.read_text(encoding="utf-8") for file in FILES)


def commands_below(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if not isinstance(command, click.Group):
        yield words
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from commands_below(below, (*words, name))


def is_typed(words: tuple[str, ...]) -> bool:
    """As arguments one by one, or as the beginning of a line that is split."""
    between = r"""(?:\s|["'],\s*["'])"""
    return re.search(r"""["']""" + between.join(map(re.escape, words)) + r"""["'\s]""", TYPED) is not None


def test_every_command_is_typed_somewhere() -> None:
    assert [" ".join(words) for words in commands_below(app) if not is_typed(words)] == []
