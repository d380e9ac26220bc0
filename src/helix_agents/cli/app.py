"""The command line as a whole: finds the subcommand, runs it, and turns errors into sentences and exit codes."""

import os
import sys
from collections.abc import Sequence
from errno import ENOSPC
from importlib import import_module
from io import TextIOWrapper
from typing import TextIO, cast

import click

from helix_agents import __version__
from helix_agents.cli.exit_codes import MEANINGS, ExitCode, exit_code_for
from helix_agents.cli.here import is_folder_gone
from helix_agents.cli.output import Output

# Each is a module of `commands/` with a click command called `command`, imported only when it is needed, so that `helix
# --version` and a typing mistake are answered at once.
COMMANDS = {
    name: f"helix_agents.cli.commands.{name}"
    for name in (
        "abort",
        "audit",
        "backup",
        "briefing",
        "chat",
        "demo",
        "doctor",
        "interrupt",
        "janitor",
        "mcp",
        "migrate",
        "pending",
        "resume",
        "retry",
        "run",
        "schedules",
        "serve",
        "sessions",
        "skills",
        "snapshot",
        "state",
        "tools",
        "usage",
        "vault",
        "webhooks",
        "worker",
    )
}


class LazyGroup(click.Group):
    """A command group that imports a subcommand's module only when it is named or listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name)
        return None if module is None else cast("click.Command", import_module(module).command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as unknown:
            # The group itself knows no names before they are asked for, and would suggest none.
            raise click.NoSuchCommand(unknown.command_name, possibilities=COMMANDS, ctx=ctx) from unknown


_CODES = "\n".join(f"  {code.value:>3}  {meaning}" for code, meaning in MEANINGS.items())


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=f"\b\nExit codes:\n{_CODES}\n\n"
    'Completion for bash (zsh and fish likewise): eval "$(_HELIX_COMPLETE=bash_source helix)"',
)
@click.version_option(__version__, prog_name="helix")
def app() -> None:
    """LLM agents whose work survives crashes. Start with `helix demo`."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; an expected error never shows a traceback."""
    _replace_closed_streams()
    _read_whatever_comes()
    output = Output()
    output.spell_out()
    try:
        return _run(arguments, output)
    finally:
        output.release()


def _run(arguments: Sequence[str], output: Output) -> int:
    try:
        _check_encoding(arguments)
        outcome = app.main(list(arguments), prog_name="helix", standalone_mode=False, obj=output)
    except click.ClickException as error:
        # A mistake may keep click from coming to the option at all.
        output.as_json = output.as_json or _wants_json(arguments)
        if output.as_json:
            output.fail_with("usage", error.format_message())
        else:
            error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of the answer has closed the pipe.
        _forget_unwritten()
        return ExitCode.FAILED
    except OSError as error:
        if error.errno == ENOSPC:
            return _explain_full(error, output)
        return _explain_gone(output) if is_folder_gone() else _explain(error, output)
    except Exception as error:
        return _explain(error, output)
    # Outside its standalone mode click returns the code given to `ctx.exit`, or else what the command returned.
    return outcome if isinstance(outcome, int) else ExitCode.OK


def _replace_closed_streams() -> None:
    """Replace streams that the caller closed: a file that is opened next must not take their place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - open as long as the process


def _read_whatever_comes() -> None:
    """Let input that is not text come in: the command that reads it refuses it, and says what it was for."""
    stream: TextIO = sys.stdin
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors="surrogateescape")


def _forget_unwritten() -> None:
    """Python must not complain about unread output when it flushes."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _explain_full(error: OSError, output: Output) -> int:
    where = f"to {error.filename}" if error.filename else "something, perhaps the answer"
    message = f"Could not write {where}: {error.strerror}."
    try:
        output.fail_with("no_space", message)
    except OSError:
        # There is no room for this answer either.
        click.echo(f"Error: {message}", err=True)
    output.release()
    _forget_unwritten()
    return ExitCode.SERVICE


def _explain_gone(output: Output) -> int:
    output.fail_with("no_folder", "The folder you are in was deleted; change to another one and try again.")
    return ExitCode.SETUP


def _check_encoding(arguments: Sequence[str]) -> None:
    """Refuse arguments that are not text: neither a session's id nor a message could be stored."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError as problem:
            raise click.UsageError(f"{argument!r} is not UTF-8 text.") from problem


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether `--json` is among the options; what follows a `--` is none."""
    return "--json" in arguments[: arguments.index("--") if "--" in arguments else None]


def _explain(error: Exception, output: Output) -> int:
    from helix_agents.domain.errors import HelixError, SessionNotFoundError

    if isinstance(error, HelixError):
        output.fail(error)
        if isinstance(error, SessionNotFoundError) and not output.store_was_named:
            # The likeliest reason: the session is in a store that this shell did not name.
            output.note("This looked in helix.db in this directory; --store or HELIX_STORE names another store.")
        return exit_code_for(error)
    if os.environ.get("HELIX_DEBUG"):
        raise error
    output.fail_with(
        "internal_error",
        f"Unexpected error: {type(error).__name__}: {error}. This is a bug; please report it with the output that "
        "HELIX_DEBUG=1 gives.",
    )
    return ExitCode.BUG
