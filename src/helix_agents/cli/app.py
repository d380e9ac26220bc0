"""The command line as a whole: finds the subcommand, runs it, and turns errors into sentences and exit codes."""

from collections.abc import Sequence
from importlib import import_module
from typing import cast

import click

from helix_agents import __version__
from helix_agents.cli.exit_codes import ExitCode, exit_code_for
from helix_agents.cli.output import Output

# Each command is one module with a click command called `command`, imported when somebody asks for it, so that
# `helix --version` and a typing mistake are answered at once.
COMMANDS = {
    "audit": "helix_agents.cli.audit",
    "backup": "helix_agents.cli.backup",
    "briefing": "helix_agents.cli.briefing",
    "demo": "helix_agents.cli.demo",
    "doctor": "helix_agents.cli.doctor",
    "mcp": "helix_agents.cli.mcp",
    "migrate": "helix_agents.cli.migrate",
    "snapshot": "helix_agents.cli.snapshot",
    "state": "helix_agents.cli.state",
    "vault": "helix_agents.cli.vault",
}


class LazyGroup(click.Group):
    """A command group that imports a subcommand's module only when it is named or listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name)
        return None if module is None else cast("click.Command", import_module(module).command)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the store needs attention, "
    "4 setup needs a change, 5 somebody else was first, 130 interrupted.",
)
@click.version_option(__version__, prog_name="helix")
def app() -> None:
    """Agents that cannot lose work."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; an expected error never shows a traceback."""
    output = Output()
    try:
        outcome = app.main(list(arguments), prog_name="helix", standalone_mode=False, obj=output)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        return ExitCode.INTERRUPTED
    except Exception as error:
        from helix_agents.domain.errors import HelixError

        # Anything else is a bug of ours, and then the traceback is what a report needs.
        if not isinstance(error, HelixError):
            raise
        output.fail(error)
        return exit_code_for(error)
    # Outside its standalone mode click returns the code given to `ctx.exit`, or else what the command returned.
    return outcome if isinstance(outcome, int) else ExitCode.OK
