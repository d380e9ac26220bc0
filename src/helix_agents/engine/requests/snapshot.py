"""A session as a page shows it after a refresh, and the stream position from which the page continues."""

from collections.abc import Iterable

from helix_agents.domain.chunks import StreamChunk
from helix_agents.domain.ids import SessionId
from helix_agents.domain.messages import Message, ToolMessage, UserMessage
from helix_agents.domain.records import JSON, Record
from helix_agents.domain.rendering import render
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.sessions import SessionState, SessionStatus
from helix_agents.domain.streams import StreamSnapshot, StreamStatus
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.ports.streams import StreamManager

MOST_TRIES = 8


class SessionSnapshot(Record):
    """A session at one moment.

    `messages` and `custom_state` are committed. `held` are results of a step that waits for an answer, and `entering`
    the user messages that came meanwhile and follow them. `chunks` is what the stream said since the last commit, up to
    `sequence`. Reading the stream after `sequence` misses nothing and repeats nothing: at any time, `render(later)`
    shows what a reader sees who was there from the beginning.
    """

    session_id: SessionId
    status: SessionStatus
    run: RunRecord | None
    messages: tuple[Message, ...]
    held: tuple[ToolMessage, ...]
    entering: tuple[UserMessage, ...] = ()
    chunks: tuple[StreamChunk, ...]
    custom_state: dict[str, JSON]
    sequence: int
    stream_status: StreamStatus | None

    def render(self, later: Iterable[StreamChunk] = ()) -> tuple[Message, ...]:
        """All messages, including those in the chunks that were read after the snapshot."""
        return render(self.messages, (*self.chunks, *later), held=self.held)

    @property
    def partial(self) -> tuple[Message, ...]:
        """What is visible but not committed: the turn in progress."""
        return self.render()[len(self.messages) :]


async def take_snapshot(store: SessionStateStore, streams: StreamManager, session_id: SessionId) -> SessionSnapshot:
    """Read the session as it is now; state and stream may be in different backends.

    Both reads are anchored on the session's latest checkpoint: its messages cover the stream up to its sequence. If a
    commit comes between the reads, they are repeated, so that nothing appears twice or is missing from both.

    Raises:
        SessionNotFoundError: there is no such session.
    """
    state = await store.load_state(session_id)
    for _ in range(MOST_TRIES):
        snapshot = await _read(store, streams, state)
        now = await store.load_state(session_id)
        if now.version == state.version:
            return snapshot
        state = now
    # The session commits faster than it can be read: later chunks make up for what this misses.
    return await _read(store, streams, state)


async def _read(store: SessionStateStore, streams: StreamManager, state: SessionState) -> SessionSnapshot:
    transcript = await store.load_transcript(state.session_id)
    held = await held_results(store, state)
    run = await store.get_current_run(state.session_id)
    stream = await _read_stream(store, streams, state, run)
    return SessionSnapshot(
        session_id=state.session_id,
        status=state.status,
        run=run,
        messages=tuple(stored.message for stored in transcript if stored.sequence <= state.message_count),
        held=held,
        entering=state.suspension_context.entry_messages if state.suspension_context is not None else (),
        chunks=stream.chunks if stream is not None else (),
        custom_state=state.custom_state,
        sequence=stream.info.latest_sequence if stream is not None else 0,
        stream_status=stream.info.status if stream is not None else None,
    )


async def held_results(store: SessionStateStore, state: SessionState) -> tuple[ToolMessage, ...]:
    """Results of the step that a session waits in; the transcript gets them with those that are missing."""
    if not state.suspended_step_id:
        return ()
    held = await store.get_staged_changes(state.session_id, state.suspended_step_id)
    return tuple(change.message for change in held if isinstance(change.message, ToolMessage))


async def _read_stream(
    store: SessionStateStore, streams: StreamManager, state: SessionState, run: RunRecord | None
) -> StreamSnapshot | None:
    """The stream after the point that the latest checkpoint covers. What earlier runs said without committing it was
    added to the transcript when the current run started, or left behind by a rewind."""
    stream_id = state.stream_id or state.session_id
    checkpoint = await store.get_checkpoint(state.session_id, state.checkpoint_id) if state.checkpoint_id else None
    committed = checkpoint.stream_sequence if checkpoint is not None else 0
    anchor = committed if run is None else max(committed, run.start_sequence)
    stream = await streams.snapshot(stream_id, after=anchor)
    if stream is not None and stream.info.latest_sequence < anchor:
        # The stream was lost and started anew, as one in memory does; nothing in it is committed yet.
        return await streams.snapshot(stream_id)
    return stream
