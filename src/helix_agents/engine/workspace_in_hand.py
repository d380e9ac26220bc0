"""The workspace of the session whose run is in hand: opened by the first call that needs it, for all of them."""

import asyncio

import msgspec

from helix_agents.agent.agent import AnyAgent
from helix_agents.domain.errors import WorkspaceFailedError
from helix_agents.domain.sessions import SessionState, WorkspaceRef
from helix_agents.domain.workspaces import workspace_key
from helix_agents.engine.desk import Note
from helix_agents.ports.workspaces import WorkspaceFiles, WorkspaceOwner, WorkspaceProvider


def owner_of(session: SessionState) -> WorkspaceOwner:
    """Whose workspace a session's is."""
    return WorkspaceOwner(key=workspace_key(session), session_id=session.session_id, user_id=session.user_id)


def owns(session: SessionState, ref: WorkspaceRef | None) -> bool:
    """Whether a workspace is a session's own; that of the session it is a branch of is not."""
    return ref is not None and ref.owner == workspace_key(session)


async def open_for(provider: WorkspaceProvider, session: SessionState) -> WorkspaceRef:
    """A session's own workspace, as its provider gives it; the same one however often it is asked for."""
    owner = owner_of(session)
    ref = await provider.open(owner)
    return msgspec.structs.replace(ref, provider_id=provider.provider_id, owner=owner.key, at=None)


class WorkspaceInHand:
    """What a run knows of its session's workspace.

    `ref` is as the session has it, or as the next commit leaves it. `files_changed` says that a call of this step may
    have changed files, in whichever process.
    """

    def __init__(self, ref: WorkspaceRef | None) -> None:
        self.ref = ref
        self.files_changed = False
        self._files: WorkspaceFiles | None = None
        self._opening = asyncio.Lock()

    def take(self, note: Note) -> None:
        """Have in hand what a call noted, here or elsewhere."""
        self.ref = note.workspace or self.ref
        self.files_changed = note.changes_files or self.files_changed

    async def open(self, agent: AnyAgent, session: SessionState) -> WorkspaceFiles:
        """The open workspace.

        Raises:
            WorkspaceFailedError: it is not to be had, or the agent's workspaces are of another provider by now.
            RuntimeError: the agent has none.
        """
        if agent.workspace is None:
            raise RuntimeError("this agent has no workspace; give it one with Agent(workspace=Workspace(…))")
        provider = agent.workspace.provider
        async with self._opening:
            if self._files is None:
                if self.ref is None or not owns(session, self.ref):
                    self.ref = await open_for(provider, session)
                if self.ref.provider_id != provider.provider_id:
                    raise WorkspaceFailedError(
                        self.ref.ref,
                        f"it is of provider {self.ref.provider_id!r}, and agent {agent.name!r} has "
                        f"{provider.provider_id!r} now; give the agent the one that its sessions know.",
                    )
                self._files = await provider.resolve(self.ref)
            return self._files
