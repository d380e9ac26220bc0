"""Sessions as users ask for them: one, many, their messages, runs and checkpoints."""

import asyncio
from collections.abc import Awaitable, Callable

from helix_agents.domain.checkpoints import Checkpoint
from helix_agents.domain.ids import SessionId
from helix_agents.domain.messages import StoredMessage
from helix_agents.domain.paging import DEFAULT_LIMIT, Page
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.sessions import SessionFilter, SessionState, SessionSummary
from helix_agents.domain.writes import Merged, StepWrites
from helix_agents.engine.snapshot import SessionSnapshot, take_snapshot
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.ports.streams import StreamManager


class Sessions:
    """What is stored, for reading and for the few changes that need no run."""

    def __init__(
        self,
        store: SessionStateStore,
        streams: StreamManager,
        forget_elsewhere: Callable[[SessionSummary], Awaitable[None]],
    ) -> None:
        self._store = store
        self._streams = streams
        self._forget_elsewhere = forget_elsewhere

    async def get(self, session_id: SessionId) -> SessionState:
        """One session; raises `SessionNotFoundError`."""
        return await self._store.load_state(session_id)

    async def list(
        self, where: SessionFilter | None = None, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[SessionSummary]:
        """Sessions that match, newest first."""
        return await self._store.list_sessions(where, offset=offset, limit=limit)

    async def messages(
        self, session_id: SessionId, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[StoredMessage]:
        """A page of the transcript, newest first."""
        return await self._store.get_messages(session_id, offset=offset, limit=limit)

    async def runs(self, session_id: SessionId, *, offset: int = 0, limit: int = DEFAULT_LIMIT) -> Page[RunRecord]:
        """The session's turns, newest first."""
        return await self._store.list_runs(session_id, offset=offset, limit=limit)

    async def checkpoints(
        self, session_id: SessionId, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[Checkpoint]:
        """Where the session can be rewound to or branched from, newest first."""
        return await self._store.list_checkpoints(session_id, offset=offset, limit=limit)

    async def snapshot(self, session_id: SessionId) -> SessionSnapshot:
        """What a page shows after a refresh, and from where it reads on."""
        return await take_snapshot(self._store, self._streams, session_id)

    async def update_state(self, session_id: SessionId, writes: StepWrites) -> Merged:
        """Change the custom state from outside a run."""
        return await self._store.merge_custom_state(session_id, writes)

    async def delete(self, session_id: SessionId) -> None:
        """Remove the session, everything below it, here and at other services, and its stream; idempotent."""
        streams = [session_id]
        while True:
            # Companions that stand on their own have streams of their own.
            below = SessionFilter(root_session_id=session_id)
            page = await self._store.list_sessions(below, offset=len(streams) - 1, limit=200)
            streams.extend(item.session_id for item in page.items)
            await asyncio.gather(*map(self._forget_elsewhere, page.items))
            if not page.has_more:
                break
        await self._store.delete_session(session_id)
        for stream_id in dict.fromkeys(streams):
            await self._streams.delete_stream(stream_id)
