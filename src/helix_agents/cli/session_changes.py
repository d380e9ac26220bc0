"""Changes to stored sessions that need no agent: branching, rewinding, deleting."""

import sys
from collections.abc import Sequence

import click

from helix_agents.cli.exit_codes import ExitCode
from helix_agents.cli.opened import open_desk
from helix_agents.cli.output import Output
from helix_agents.cli.plain import plain, shown_count
from helix_agents.cli.stored import open_stored
from helix_agents.domain.errors import AgentAlreadyRunningError, NotARootSessionError, SessionNotFoundError
from helix_agents.domain.sessions import BranchPoint

# From so many on a person wants to see that something happens.
MANY = 20


async def branch_session(
    output: Output,
    url: str,
    session_id: str,
    new_session_id: str,
    *,
    checkpoint_id: str | None,
    message_count: int | None,
) -> None:
    """Make a new session from another one's history."""
    source = BranchPoint(from_session_id=session_id, checkpoint_id=checkpoint_id, message_count=message_count)
    async with open_stored(url) as backend:
        branch = await backend.state.clone_session(source, new_session_id)
    output.answer({"session": plain(branch)})
    # An open call at its end has got a result, so it may have one more than it was asked for.
    output.say(f"{new_session_id} is a branch of {session_id}, with {shown_count(branch.message_count, 'message')}.")


async def rewind_session(output: Output, url: str, session_id: str, checkpoint_id: str) -> None:
    """Bring a session back to a checkpoint."""
    async with open_desk(url) as helix:
        session = await helix.rewind(session_id, checkpoint_id)
    output.answer({"session": plain(session)})
    output.say(f"{session_id} is back at {checkpoint_id}, with {shown_count(session.message_count, 'message')}.")


async def delete_sessions(output: Output, url: str, session_ids: Sequence[str]) -> ExitCode:
    """Delete sessions; one that is not there, or not at rest, is told, and the others go nevertheless."""
    deleted: list[str] = []
    missing: list[str] = []
    kept: list[str] = []
    async with open_desk(url) as helix:
        many = not output.as_json and len(session_ids) >= MANY
        with click.progressbar(session_ids, label="deleting", file=sys.stderr, hidden=not many) as going:
            for session_id in going:
                try:
                    await helix.sessions.get(session_id)
                    await helix.sessions.delete(session_id, unless_running=True)
                except SessionNotFoundError as problem:
                    missing.append(session_id)
                    output.note(f"{problem}")
                except (AgentAlreadyRunningError, NotARootSessionError) as problem:
                    kept.append(session_id)
                    output.note(f"{problem}")
                else:
                    deleted.append(session_id)
    output.answer({"deleted": deleted, "missing": missing, "kept": kept})
    if deleted:
        output.say(f"Deleted {', '.join(deleted)}.")
    return ExitCode.FAILED if missing or kept else ExitCode.OK
