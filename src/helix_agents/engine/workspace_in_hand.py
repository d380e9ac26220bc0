"""The workspace of a run's session: opened by the first call that needs it and shared by all calls."""

import asyncio

import msgspec

from helix_agents.agent.agent import AnyAgent
from helix_agents.domain.errors import WorkspaceFailedError
from helix_agents.domain.sessions import SessionState, WorkspaceRef
from helix_agents.domain.workspaces import workspace_key
from helix_agents.engine.desk import Note
from helix_agents.ports.workspaces import WorkspaceFiles, WorkspaceOwner, WorkspaceProvider


def owner_of(session: SessionState) -> WorkspaceOwner:
    """The owner of a session's workspace."""
    return WorkspaceOwner(key=workspace_key(session), session_id=session.session_id, user_id=session.user_id)


def owns(session: SessionState, ref: WorkspaceRef | None) -> bool:
    """Whether a workspace is the session's own, rather than that of the session it branched from."""
    return ref is not None and ref.owner == workspace_key(session)


async def open_for(provider: WorkspaceProvider, session: SessionState) -> WorkspaceRef:
    """A session's own workspace from its provider; every request returns the same one."""
    owner = owner_of(session)
    ref = await provider.open(owner)
    return msgspec.structs.replace(ref, provider_id=provider.provider_id, owner=owner.key, at=None)


class WorkspaceInHand:
    """What a run knows about its session's workspace.

    `ref` is the session's stored reference, or the one that the next commit stores. `files_changed` says that a call of
    this step may have changed files, in any process.
    """

    def __init__(self, ref: WorkspaceRef | None) -> None:
        self.ref = ref
        self.files_changed = False
        self._files: WorkspaceFiles | None = None
        self._opening = asyncio.Lock()

    def take(self, note: Note) -> None:
        """Take in what a call noted, in this process or another."""
        self.ref = note.workspace or self.ref
        self.files_changed = note.changes_files or self.files_changed

    async def open(self, agent: AnyAgent, session: SessionState) -> WorkspaceFiles:
        """The open workspace.

        Raises:
            WorkspaceFailedError: it is not available, or the agent now uses another workspace provider.
            RuntimeError: the agent has no workspace.
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
                        f"it belongs to provider {self.ref.provider_id!r}, but agent {agent.name!r} has "
                        f"{provider.provider_id!r} now; give the agent the one that its sessions use.",
                    )
                self._files = await provider.resolve(self.ref)
            return self._files
