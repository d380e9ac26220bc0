"""Deleting workspaces together with sessions that end for good."""

import logging
from collections.abc import AsyncGenerator, Iterable, Mapping

from helix_agents.agent.agent import AnyAgent
from helix_agents.domain.errors import DefinitionError
from helix_agents.domain.paging import MAX_LIMIT
from helix_agents.domain.sessions import SessionFilter, SessionState, WorkspaceRef
from helix_agents.engine.log import log_event
from helix_agents.engine.workspace_in_hand import owner_of, owns
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.ports.workspaces import WorkspaceProvider


def workspace_providers(agents: Iterable[AnyAgent]) -> dict[str, WorkspaceProvider]:
    """The workspace providers of these agents, by the names that sessions use for them.

    Raises:
        DefinitionError: two different providers have the same name.
    """
    found: dict[str, WorkspaceProvider] = {}
    for agent in agents:
        if agent.workspace is None:
            continue
        provider = agent.workspace.provider
        if found.setdefault(provider.provider_id, provider) != provider:
            raise DefinitionError(
                f"Agent {agent.name!r}",
                f"another provider of workspaces is also called {provider.provider_id!r}, and sessions refer to it by "
                "that name; share one between the agents, or give one of them name=….",
            )
    return found


async def delete_workspaces(
    store: SessionStateStore, session: SessionState, providers: Mapping[str, WorkspaceProvider]
) -> int:
    """Delete the workspaces of a session and of all sessions below it, with their snapshots; returns how many snapshots
    were deleted. A process may have opened a workspace and died before that was recorded, so providers are asked
    too."""
    if not providers and session.workspace_ref is None:
        return 0
    count = 0
    async for each in _tree(store, session):
        ref = each.workspace_ref if owns(each, each.workspace_ref) else None
        if ref is not None and ref.provider_id not in providers:
            about = {"session_id": each.session_id, "provider": ref.provider_id, "workspace": ref.ref}
            log_event("workspace.left", logging.WARNING, reason="no agent here has this provider", **about)
            continue
        asked = providers.values() if ref is None else (providers[ref.provider_id],)
        for provider in asked:
            count += await _delete(provider, each, ref)
    return count


async def workspaces_of_others(
    store: SessionStateStore, session: SessionState, providers: Mapping[str, WorkspaceProvider]
) -> tuple[WorkspaceRef, ...]:
    """Workspaces of a session and of all sessions below it that would be left behind, because no given provider has
    them."""
    own = [each.workspace_ref async for each in _tree(store, session) if owns(each, each.workspace_ref)]
    return tuple(ref for ref in own if ref is not None and ref.provider_id not in providers)


async def _delete(provider: WorkspaceProvider, session: SessionState, ref: WorkspaceRef | None) -> int:
    kept = await provider.snapshots.list(ref) if ref is not None and "snapshot" in provider.capabilities else ()
    await provider.delete(owner_of(session), ref)
    return len(kept)


async def _tree(store: SessionStateStore, session: SessionState) -> AsyncGenerator[SessionState]:
    """A session and all sessions below it. They are found by their parents, because the session need not be a root."""
    yield session
    ahead = [session.session_id]
    for above in ahead:
        offset, has_more = 0, True
        while has_more:
            page = await store.list_sessions(SessionFilter(parent_session_id=above), offset=offset, limit=MAX_LIMIT)
            for each in page.items:
                ahead.append(each.session_id)
                yield await store.load_state(each.session_id)
            offset, has_more = offset + len(page.items), page.has_more
