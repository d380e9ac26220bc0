"""Keeping files and conversation together, even if the conversation is rewound or branched.

Files are kept at those places of a conversation at which they changed. After a rewind, or in a branch, they are
restored to the last such place that the conversation still has; if that is not possible, the model is told.
"""

import logging

import msgspec

from helix_agents.agent.failures import Contained, ControlFlow
from helix_agents.agent.workspace import Workspace
from helix_agents.domain.errors import WorkspaceFailedError
from helix_agents.domain.sessions import WorkspaceRef
from helix_agents.domain.texts import said_by
from helix_agents.domain.workspaces import files_message, latest_standing, may_have_changed, place_of, stands
from helix_agents.engine.desk import WORKSPACE, Note
from helix_agents.engine.log import log_event, log_exception
from helix_agents.engine.scope import RunScope
from helix_agents.engine.steps.step_work import StepWork
from helix_agents.engine.workspace_in_hand import open_for, owns

TAKEN_BACK = (
    "This conversation was taken back to an earlier point, but the files in your workspace were not: they are as they "
    "were left, or as they were at an even earlier point. Look at a file before you rely on what you know about it."
)
BRANCHED = (
    "This conversation is a branch of another one, and has its own workspace. Not all files that were written before "
    "this point are in it. Look at a file before you rely on what you know about it."
)


async def settle_files(scope: RunScope, workspace: Workspace, step: int) -> None:
    """Make the files match the conversation. This runs before a model is asked, and so before any call changes a file.

    Raises:
        WorkspaceFailedError: the provider failed; a retry asks it again.
    """
    ref, session, told = scope.workspace.ref, scope.session, scope.transcript
    if ref is None:
        return
    is_own = owns(session, ref)
    if is_own and (ref.at is None or stands(ref.at, told)):
        return
    try:
        with scope.stop.cutting(), Contained("The provider of workspaces"):
            own = ref if is_own else await open_for(workspace.provider, session)
            kept = await _brought_back(scope, workspace, own, source=ref)
            is_whole = not may_have_changed(told, kept) and (workspace.keeps_snapshots or not is_own)
            notices = () if is_whole else (files_message(TAKEN_BACK if is_own else BRANCHED),)
            settled = msgspec.structs.replace(own, at=kept)
            await scope.note(step, WORKSPACE, Note(workspace=settled, notices=notices))
    except WorkspaceFailedError:
        raise
    except (Exception, ControlFlow) as problem:
        log_exception("workspace.failed", problem, session_id=session.session_id)
        raise WorkspaceFailedError(ref.ref, f"{type(problem).__name__}: {said_by(problem)}") from problem


async def _brought_back(scope: RunScope, workspace: Workspace, own: WorkspaceRef, source: WorkspaceRef) -> str | None:
    """Restore the files to the last place of the conversation at which they were kept; None if there is no such place.
    Without snapshots they stay as they are."""
    provider = workspace.provider
    if not workspace.keeps_snapshots or source.provider_id != provider.provider_id:
        return None
    kept = latest_standing(await provider.snapshots.list(source), scope.transcript)
    await provider.snapshots.restore(own, kept, source=None if source is own else source)
    log_event("workspace.restored", session_id=scope.session.session_id, workspace=own.ref, snapshot=kept)
    return kept


async def keep_files(scope: RunScope, work: StepWork) -> None:
    """Add to the commit which workspace the session has and at which place its files last changed, and take a snapshot
    if the agent keeps them. A failed snapshot does not hold up the step; the place then has none."""
    hand, workspace = scope.workspace, scope.agent.workspace
    if hand.ref is None:
        return
    if hand.files_changed:
        before = len(scope.transcript) - len(scope.carried.notices)
        last = work.messages[-1] if work.messages else scope.transcript[-1] if scope.transcript else None
        place = place_of(before + len(work.messages), last)
        hand.ref = msgspec.structs.replace(hand.ref, at=place)
        if workspace is not None and workspace.keeps_snapshots:
            try:
                with Contained("The provider of workspaces"):
                    await workspace.provider.snapshots.create(hand.ref, place)
            except (Exception, ControlFlow) as problem:
                session_id, reason = scope.session.session_id, said_by(problem)
                log_event("workspace.not_kept", logging.WARNING, session_id=session_id, reason=reason)
    if hand.ref != scope.session.workspace_ref:
        work.record["workspace_ref"] = hand.ref
