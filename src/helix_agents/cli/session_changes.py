"""Changes to stored sessions that need no run: branching, rewinding, deleting."""

import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack

import click

from helix_agents.cli.agent_modules import load_agents
from helix_agents.cli.exit_codes import ExitCode
from helix_agents.cli.opened import desk_of, open_desk
from helix_agents.cli.output import Output
from helix_agents.cli.plain import plain, shown_count
from helix_agents.cli.stored import open_stored
from helix_agents.domain.errors import AgentAlreadyRunningError, NotARootSessionError, SessionNotFoundError
from helix_agents.domain.sessions import BranchPoint
from helix_agents.engine.requests.workspaces import workspace_providers, workspaces_of_others

# From this many on, a person wants to see progress.
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
    """Create a session from another one's history."""
    source = BranchPoint(from_session_id=session_id, checkpoint_id=checkpoint_id, message_count=message_count)
    async with open_stored(url) as backend:
        branch = await backend.state.clone_session(source, new_session_id)
    output.answer({"session": plain(branch)})
    # A call that was open at the branch point has got a result, so the branch may have one message more than requested.
    output.say(f"{new_session_id} is a branch of {session_id}, with {shown_count(branch.message_count, 'message')}.")


async def rewind_session(output: Output, url: str, session_id: str, checkpoint_id: str) -> None:
    """Bring a session back to a checkpoint."""
    async with open_desk(url) as helix:
        session = await helix.rewind(session_id, checkpoint_id)
    output.answer({"session": plain(session)})
    output.say(f"{session_id} is back at {checkpoint_id}, with {shown_count(session.message_count, 'message')}.")


async def delete_sessions(output: Output, url: str, session_ids: Sequence[str], *, agents: str | None) -> ExitCode:
    """Delete sessions, with the workspaces of these agents. A session that does not exist, or is not at rest, is
    reported, and so is a workspace that none of the agents has; the others are still deleted."""
    known = load_agents(agents) if agents is not None else None
    deleted: list[str] = []
    missing: list[str] = []
    kept: list[str] = []
    left: list[str] = []
    async with open_stored(url) as backend, AsyncExitStack() as leaving:
        helix = desk_of(backend, known)
        # Providers of workspaces may hold something open.
        leaving.push_async_callback(helix.close)
        providers = workspace_providers(helix.agents.everyone())
        many = not output.as_json and len(session_ids) >= MANY
        with click.progressbar(session_ids, label="deleting", file=sys.stderr, hidden=not many) as going:
            for session_id in going:
                try:
                    session = await helix.sessions.get(session_id)
                    others = await workspaces_of_others(backend.state, session, providers)
                    await helix.sessions.delete(session_id, unless_running=True)
                except SessionNotFoundError as problem:
                    missing.append(session_id)
                    output.note(f"{problem}")
                except (AgentAlreadyRunningError, NotARootSessionError) as problem:
                    kept.append(session_id)
                    output.note(f"{problem}")
                else:
                    deleted.append(session_id)
                    left.extend(each.ref for each in others)
    output.answer({"deleted": deleted, "missing": missing, "kept": kept, "workspaces_left": left})
    if left:
        output.note(
            f"Left {shown_count(len(left), 'workspace')} with files: {', '.join(left)}. They go with their session "
            "where --agents MODULE:AGENTS names the agents that have them; these are yours to delete."
        )
    if deleted:
        output.say(f"Deleted {', '.join(deleted)}.")
    return ExitCode.FAILED if missing or kept else ExitCode.OK
