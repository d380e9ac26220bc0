"""Writes the page on the command line from the commands themselves: uv run python docs/cli_reference.py."""

from collections.abc import Iterator
from pathlib import Path

import click

from helix_agents.cli.app import app
from helix_agents.cli.exit_codes import MEANINGS

PAGE = Path(__file__).parent / "reference" / "cli.md"

HEAD = """# The `helix` command

`uv run python docs/cli_reference.py` writes this page from the commands themselves; a test keeps it up to date.

Every command that uses a store takes `--store URL` and falls back to `HELIX_STORE`, then to `sqlite:///helix.db`.
With `--json`, standard output carries one JSON document and nothing else. If the command fails, the document is
`{"error": {"code", "message"}}`. Records have all their fields, and lists are
`{"items", "total", "offset", "limit", "has_more"}`. If a [state capability](state-capabilities.md) refuses a call, its
command prints the error as agents get it: `{"error": "VersionConflict", "message", "recovery", "retryable",
"context"}`. Answers go to standard output, progress to standard error. Commands that only read or write stored data
need no agents.
"""


def render() -> str:
    """The whole page."""
    codes = "\n".join(f"| {code.value} | {meaning} |" for code, meaning in MEANINGS.items())
    commands = "\n".join(_section(name, command, context) for name, command, context in _commands())
    return f"{HEAD}\n## Exit codes\n\n| code | means |\n|---|---|\n{codes}\n\n{commands}"


def _commands() -> Iterator[tuple[str, click.Command, click.Context]]:
    top = click.Context(app, info_name="helix", terminal_width=100, max_content_width=100)
    top.help_option_names = ["-h", "--help"]
    for name in app.list_commands(top):
        command = app.get_command(top, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=top)
        if not isinstance(command, click.Group):
            yield f"helix {name}", command, context
            continue
        for below in command.list_commands(context):
            inner = command.get_command(context, below)
            assert inner is not None
            yield f"helix {name} {below}", inner, click.Context(inner, info_name=below, parent=context)


def _section(name: str, command: click.Command, context: click.Context) -> str:
    help_text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    return f"## {name}\n\n```text\n{help_text}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
