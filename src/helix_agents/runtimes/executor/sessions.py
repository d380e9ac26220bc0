"""Access to stored sessions: one, many, their messages, runs and checkpoints."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from helix_agents.agent.agent import AnyAgent
from helix_agents.domain.checkpoints import Checkpoint
from helix_agents.domain.door import check_input, check_merge
from helix_agents.domain.errors import InvalidInputError, WorkspaceFailedError
from helix_agents.domain.ids import CheckpointId, RunId, SessionId, StreamId, check_id, check_new_session_id
from helix_agents.domain.messages import StoredMessage, ToolMessage
from helix_agents.domain.paging import DEFAULT_LIMIT, MAX_LIMIT, Page
from helix_agents.domain.queued import (
    ChangeOutcome,
    DropOutcome,
    NotQueued,
    QueueChange,
    QueuedTurn,
    QueuedTurnBegun,
    QueuedTurnChanged,
    QueuedTurnDropped,
    TakenTurn,
)
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.sessions import BranchPoint, SessionFilter, SessionState, SessionSummary
from helix_agents.domain.sub_sessions import SubSessionRef
from helix_agents.domain.writes import Merged, StepWrites
from helix_agents.engine.requests.snapshot import SessionSnapshot, held_results, take_snapshot
from helix_agents.engine.requests.workspaces import delete_workspaces
from helix_agents.engine.workspace_in_hand import owns
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.ports.streams import StreamManager
from helix_agents.ports.workspaces import WorkspaceFiles, WorkspaceProvider
from helix_agents.runtimes.executor.inputs import Input, check_filter, messages_of


class Sessions:
    """The stored sessions, for reading and for the few changes that need no run.

    Every method raises `InvalidIdError` for an id that no session can have.
    """

    def __init__(
        self,
        store: SessionStateStore,
        streams: StreamManager,
        forget_elsewhere: Callable[[SessionSummary], Awaitable[None]],
        agent_of: Callable[[SessionState], Awaitable[AnyAgent | None]],
        check_at_rest: Callable[[SessionId], Awaitable[object]],
        workspace_providers: Callable[[], Mapping[str, WorkspaceProvider]],
    ) -> None:
        self._store = store
        self._streams = streams
        self._forget_elsewhere = forget_elsewhere
        self._agent_of = agent_of
        self._check_at_rest = check_at_rest
        self._workspace_providers = workspace_providers

    def now_ms(self) -> int:
        """The store's clock, which all times of sessions, runs and messages come from."""
        return self._store.now_ms()

    async def get(self, session_id: SessionId) -> SessionState:
        """One session; raises `SessionNotFoundError`."""
        return await self._store.load_state(check_id(session_id))

    async def find(self, session_id: SessionId) -> SessionSummary | None:
        """A session as a listing shows it; None if it does not exist."""
        return await self._store.find_session(check_id(session_id))

    async def list(
        self, where: SessionFilter | None = None, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[SessionSummary]:
        """Matching sessions, newest first.

        Raises:
            InvalidInputError: it is not a filter, or one of its conditions is of the wrong type.
        """
        check_filter(where, SessionFilter, "user_id=…")
        return await self._store.list_sessions(where, offset=offset, limit=limit)

    async def messages(
        self, session_id: SessionId, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[StoredMessage]:
        """A page of the transcript, newest first."""
        return await self._store.get_messages(check_id(session_id), offset=offset, limit=limit)

    async def runs(self, session_id: SessionId, *, offset: int = 0, limit: int = DEFAULT_LIMIT) -> Page[RunRecord]:
        """The session's turns, newest first."""
        return await self._store.list_runs(check_id(session_id), offset=offset, limit=limit)

    async def delegations(self, session_id: SessionId) -> tuple[SubSessionRef, ...]:
        """The sessions directly below, and which call created each of them."""
        return await self._store.get_sub_session_refs(check_id(session_id))

    async def count_running(self, user_id: str | None) -> int:
        """How many of a user's conversations have a running run, in whichever process."""
        return await self._store.count_running(user_id)

    async def checkpoints(
        self, session_id: SessionId, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[Checkpoint]:
        """The points to which the session can be rewound, or from which it can be branched, newest first."""
        return await self._store.list_checkpoints(check_id(session_id), offset=offset, limit=limit)

    async def branch(
        self, session_id: SessionId, new_session_id: SessionId, *, checkpoint_id: CheckpointId | None = None
    ) -> SessionState:
        """Create a new session with the messages, state, agent and user of this one, as it is now or was at a
        checkpoint. Both continue independently.

        Raises:
            SessionNotFoundError: there is no such session.
            SessionAlreadyExistsError: the new id is taken.
            CheckpointNotFoundError: the session has no such checkpoint.
        """
        source = BranchPoint(from_session_id=check_id(session_id), checkpoint_id=checkpoint_id)
        return await self._store.clone_session(source, check_new_session_id(new_session_id))

    async def snapshot(self, session_id: SessionId) -> SessionSnapshot:
        """What a page shows after a refresh, and the position in the stream from which it continues reading."""
        return await take_snapshot(self._store, self._streams, check_id(session_id))

    async def held(self, session_id: SessionId) -> tuple[ToolMessage, ...]:
        """Results of a step that waits for an answer; the transcript gets them with the others. Empty if no step waits.

        Raises:
            SessionNotFoundError: there is no such session.
        """
        return await held_results(self._store, await self._store.load_state(check_id(session_id)))

    async def update_state(self, session_id: SessionId, writes: StepWrites) -> Merged:
        """Change the custom state from outside a run. If the agent is known here, state that it could not read is
        refused.

        Raises:
            SessionNotFoundError: there is no such session.
            InvalidInputError: these are no writes.
            InvalidStateError: the state would no longer fit the agent; nothing was stored.
            InvalidWriteError: an append meets something that is not a list; nothing was stored.
        """
        check_input(writes, StepWrites, "change of the state", "give StepWrites(ops=(Replace(key=…, value=…),))")
        check_merge(writes)
        session = await self.get(session_id)
        agent = await self._agent_of(session)
        if agent is not None:
            agent.check_writes(session.custom_state, session.agent_version, writes)
        return await self._store.merge_custom_state(session_id, writes)

    async def workspace(self, session_id: SessionId) -> WorkspaceFiles | None:
        """The files that a session's agent works with, to read and to change; None if no tool has opened them yet.

        Raises:
            SessionNotFoundError: there is no such session.
            WorkspaceFailedError: the workspace is not available, or no agent here has its provider.
        """
        session = await self.get(session_id)
        ref = session.workspace_ref
        if ref is None or not owns(session, ref):
            return None
        provider = self._workspace_providers().get(ref.provider_id)
        if provider is None:
            raise WorkspaceFailedError(ref.ref, f"no agent here has the workspace provider {ref.provider_id!r}.")
        return await provider.resolve(ref)

    async def queued(self, session_id: SessionId) -> tuple[QueuedTurn, ...]:
        """The messages that wait in a session, in the order in which they are to be taken: first those for the run in
        progress (`steers`), then the turns that wait until it is over."""
        return await self._store.list_queued(check_id(session_id))

    async def change_queued(
        self,
        session_id: SessionId,
        run_id: RunId,
        *,
        message: Input | None = None,
        steers: bool | None = None,
        first: bool = False,
    ) -> ChangeOutcome:
        """Change a message that waits: what it says, whether the run in progress is to take it in (`steers`) or it is
        a turn of its own, or that it comes `first` among its like. The outcome says what became of it.

        Raises:
            SessionNotFoundError: there is no such session.
            InvalidInputError: there is nothing to change, or the run in progress could not take it in, because it
                brings a state, an expiry or a budget.
        """
        check_id(session_id)
        check_id(run_id, "run id")
        if message is None and steers is None and not first:
            raise InvalidInputError("change", "it changes nothing; give message=…, steers=… or first=True")
        messages = None
        if message is not None:
            there = await self._store.find_queued(session_id, run_id)
            if not isinstance(there, QueuedTurn):
                return await self._left_queue(session_id, run_id)
            # The id of its last message is what a repeated call is recognised by.
            messages = messages_of(message, there.messages[-1].id)
        change = QueueChange(messages=messages, steers=steers, first=first)
        turn = await self._store.change_queued(session_id, run_id, change)
        return await self._left_queue(session_id, run_id) if turn is None else QueuedTurnChanged(turn=turn)

    async def drop_queued(self, session_id: SessionId, run_id: RunId) -> DropOutcome:
        """Remove a message that waits. The outcome says what became of it.

        Raises:
            SessionNotFoundError: there is no such session.
        """
        check_id(session_id)
        if await self._store.drop_queued(session_id, check_id(run_id, "run id")):
            return QueuedTurnDropped(run_id=run_id)
        return await self._left_queue(session_id, run_id)

    async def _left_queue(self, session_id: SessionId, run_id: RunId) -> QueuedTurnBegun | NotQueued:
        """What became of a message that does not wait any more."""
        there = await self._store.find_queued(session_id, run_id)
        if isinstance(there, TakenTurn):
            return QueuedTurnBegun(run_id=there.taken_by)
        run = await self._store.get_run(run_id)
        is_here = run is not None and run.session_id == session_id
        return QueuedTurnBegun(run_id=run_id) if is_here else NotQueued()

    async def delete(self, session_id: SessionId, *, unless_running: bool = False) -> None:
        """Delete the session and everything below it, here and in other services, with their streams and workspaces.
        Idempotent. A workspace whose provider no agent here has is left alone, and logged.

        Raises:
            AgentAlreadyRunningError: its run is running, and `unless_running` was given.
            NotARootSessionError: it is driven by its parent, and `unless_running` was given.
        """
        check_id(session_id)
        if unless_running:
            await self._check_at_rest(session_id)
        await self._forget_elsewhere_below(session_id)
        if await self._store.session_exists(session_id):
            session = await self._store.load_state(session_id)
            # Before the session itself: a process that dies in between leaves a session that can be deleted again.
            await delete_workspaces(self._store, session, self._workspace_providers())
        if not self._streams.shares_transactions_with(self._store):
            # Before the session itself, for the same reason.
            for stream_id in await self._streams_of_tree(session_id):
                await self._streams.delete_stream(stream_id)
        await self._store.delete_session(session_id)

    async def _forget_elsewhere_below(self, session_id: SessionId) -> None:
        offset, has_more = 0, True
        while has_more:
            below = SessionFilter(root_session_id=session_id)
            page = await self._store.list_sessions(below, offset=offset, limit=MAX_LIMIT)
            await asyncio.gather(*map(self._forget_elsewhere, page.items))
            offset, has_more = offset + len(page.items), page.has_more

    async def _streams_of_tree(self, session_id: SessionId) -> tuple[StreamId, ...]:
        """The streams of a session and of every session below it: companions have their own streams."""
        ahead, streams = [session_id], {session_id: None}
        for member in ahead:
            offset, page = 0, None
            while page is None or page.has_more:
                below = SessionFilter(parent_session_id=member)
                page = await self._store.list_sessions(below, offset=offset, limit=MAX_LIMIT)
                offset += len(page.items)
                ahead.extend(item.session_id for item in page.items if item.session_id not in ahead)
            if await self._store.session_exists(member):
                streams[(await self._store.load_state(member)).stream_id or member] = None
        return tuple(streams)
