"""No command is left out: each is typed in one of these files, as a process of its own."""

import re
from collections.abc import Iterator
from pathlib import Path

import click

from helix_agents.capabilities.catalogue import CATALOGUE
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


def cut_in_listing(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[str]:
    """Commands whose line in the help of their group breaks off, in a terminal of 80 columns."""
    context = click.Context(group)
    names = group.list_commands(context)
    room = 80 - 6 - max(map(len, names))
    for name in names:
        below = group.get_command(context, name)
        assert below is not None
        if below.get_short_help_str(room).endswith("..."):
            yield " ".join((*words, name))
        if isinstance(below, click.Group):
            yield from cut_in_listing(below, (*words, name))


def test_the_help_of_a_group_shows_each_command_in_a_whole_sentence() -> None:
    """Except for state capabilities: their descriptions are written for models, and are the same in every interface."""
    assert isinstance(app, click.Group)
    purposes = tuple(each.purpose for each in CATALOGUE.values())
    long = [words for words in cut_in_listing(app) if not help_of(words).startswith(purposes)]
    assert long == []


def help_of(words: str) -> str:
    command: click.Command = app
    for name in words.split():
        assert isinstance(command, click.Group)
        below = command.get_command(click.Context(command), name)
        assert below is not None
        command = below
    return command.help or ""
