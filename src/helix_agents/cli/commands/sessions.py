"""`helix sessions`: what is stored, and the changes that need no agent."""

import asyncio
import sys

import click

from helix_agents.cli.exit_codes import ExitCode
from helix_agents.cli.options import json_option, page_options, session_argument, store_option
from helix_agents.cli.output import Output

STATUSES = ("active", "completed", "failed", "interrupted", "paused")


@click.group("sessions")
def command() -> None:
    """List, show, branch, rewind and delete sessions."""


@command.command("list")
@click.option("--agent", "agent_type", metavar="NAME", help="Only sessions of this agent.")
@click.option(
    "--status", "statuses", type=click.Choice(STATUSES), multiple=True, help="Only this status; may be repeated."
)
@click.option("--user", "user_id", metavar="ID", help="Only sessions of this user.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Only sessions with this tag; may be repeated.")
@click.option("--all", "with_children", is_flag=True, help="Include sessions of sub-agents.")
@page_options
@store_option
@json_option
@click.pass_obj
def list_command(
    output: Output,
    agent_type: str | None,
    statuses: tuple[str, ...],
    user_id: str | None,
    tags: tuple[str, ...],
    with_children: bool,
    limit: int,
    offset: int,
    store_url: str,
) -> None:
    """List sessions, newest first."""
    from helix_agents.cli.session_views import list_sessions

    asyncio.run(
        list_sessions(
            output,
            store_url,
            offset=offset,
            limit=limit,
            agent_type=agent_type,
            statuses=statuses,
            user_id=user_id,
            tags=tags,
            roots_only=not with_children,
        )
    )


@command.command("show")
@session_argument
@store_option
@json_option
@click.pass_obj
def show_command(output: Output, session_id: str, store_url: str) -> None:
    """Show one session: status, state, waiting calls, children."""
    from helix_agents.cli.session_views import show_session

    asyncio.run(show_session(output, store_url, session_id))


@command.command("messages")
@session_argument
@page_options
@store_option
@json_option
@click.pass_obj
def messages_command(output: Output, session_id: str, limit: int, offset: int, store_url: str) -> None:
    """Show the latest messages of the transcript, oldest first."""
    from helix_agents.cli.session_views import show_messages

    asyncio.run(show_messages(output, store_url, session_id, offset=offset, limit=limit))


@command.command("runs")
@session_argument
@page_options
@store_option
@json_option
@click.pass_obj
def runs_command(output: Output, session_id: str, limit: int, offset: int, store_url: str) -> None:
    """List the session's turns, newest first, with their attempts."""
    from helix_agents.cli.session_views import list_runs

    asyncio.run(list_runs(output, store_url, session_id, offset=offset, limit=limit))


@command.command("checkpoints")
@session_argument
@page_options
@store_option
@json_option
@click.pass_obj
def checkpoints_command(output: Output, session_id: str, limit: int, offset: int, store_url: str) -> None:
    """List the checkpoints to rewind to or branch from."""
    from helix_agents.cli.session_views import list_checkpoints

    asyncio.run(list_checkpoints(output, store_url, session_id, offset=offset, limit=limit))


@command.command("branch")
@session_argument
@click.argument("new_session_id", metavar="NEW_SESSION")
@click.option("--checkpoint", "checkpoint_id", metavar="ID", help="Branch here; by default, at the current end.")
@click.option("--messages", "message_count", type=click.IntRange(0), help="Branch after this many messages.")
@store_option
@json_option
@click.pass_obj
def branch_command(
    output: Output,
    session_id: str,
    new_session_id: str,
    checkpoint_id: str | None,
    message_count: int | None,
    store_url: str,
) -> None:
    """Make a new session from another one's history.

    It costs the same however long the history is. Runs, waiting calls and usage stay behind.
    """
    from helix_agents.cli.session_changes import branch_session

    if checkpoint_id is not None and message_count is not None:
        raise click.UsageError("--checkpoint and --messages exclude each other.")
    asyncio.run(
        branch_session(
            output, store_url, session_id, new_session_id, checkpoint_id=checkpoint_id, message_count=message_count
        )
    )


@command.command("rewind")
@session_argument
@click.argument("checkpoint_id", metavar="CHECKPOINT")
@store_option
@json_option
@click.pass_obj
def rewind_command(output: Output, session_id: str, checkpoint_id: str, store_url: str) -> None:
    """Bring a session back to a checkpoint and leave it there.

    Messages and state are exactly as they were then, and waiting calls are given up. Continue from there with
    `helix resume`, or with `helix run --session` and another message.
    """
    from helix_agents.cli.session_changes import rewind_session

    asyncio.run(rewind_session(output, store_url, session_id, checkpoint_id))


@command.command("delete")
@click.argument("session_ids", metavar="SESSION...", nargs=-1, required=True)
@click.option("--yes", "-y", "sure", is_flag=True, help="Do not ask for confirmation.")
@click.option("--agents", metavar="MODULE:AGENTS", help="Also delete the files in the workspaces of these agents.")
@store_option
@json_option
@click.pass_obj
def delete_command(
    output: Output, session_ids: tuple[str, ...], sure: bool, agents: str | None, store_url: str
) -> ExitCode:
    """Delete sessions, everything below them, and their streams.

    A session with an active run is kept: stop it first with `helix abort`. Only an agent knows where the files of its
    workspaces are: without --agents they are left behind, and named.
    """
    from helix_agents.cli.session_changes import delete_sessions

    if not sure:
        if output.as_json or not sys.stdin.isatty():
            raise click.UsageError("Deleting cannot be undone; without a terminal to confirm it, add --yes.")
        if not output.confirm(f"Delete {', '.join(session_ids)} and everything below for good?"):
            output.say("Nothing was deleted.")
            return ExitCode.FAILED
    return asyncio.run(delete_sessions(output, store_url, session_ids, agents=agents))
