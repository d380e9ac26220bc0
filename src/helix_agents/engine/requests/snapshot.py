"""A session as a page shows it after a refresh, and the stream position from which the page goes on."""

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

    `messages` are committed, and so is `custom_state`. `held` are results of a step that waits for somebody, `entering`
    what the user said meanwhile and follows them, `chunks` what the stream said since the last commit, up to
    `sequence`. Reading the stream after `sequence` misses nothing and
    repeats nothing: `render(later)` shows at any time what a reader who was there from the beginning sees.
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
        """All messages, given also the chunks that were read after the snapshot."""
        return render(self.messages, (*self.chunks, *later), held=self.held)

    @property
    def partial(self) -> tuple[Message, ...]:
        """What is visible but not committed: the turn that is going on."""
        return self.render()[len(self.messages) :]


async def take_snapshot(store: SessionStateStore, streams: StreamManager, session_id: SessionId) -> SessionSnapshot:
    """Show the session as it is now; state and stream may live in different backends.

    Both are anchored on the session's latest checkpoint: its messages stand for the stream up to its sequence. When a
    commit comes between the reads they are made again, so that nothing appears twice or in neither.

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
    # A session that commits faster than it can be read: later chunks replace what this misses.
    return await _read(store, streams, state)


async def _read(store: SessionStateStore, streams: StreamManager, state: SessionState) -> SessionSnapshot:
    transcript = await store.load_transcript(state.session_id)
    held = await store.get_staged_changes(state.session_id, state.suspended_step_id) if state.suspended_step_id else ()
    run = await store.get_current_run(state.session_id)
    stream = await _read_stream(store, streams, state, run)
    return SessionSnapshot(
        session_id=state.session_id,
        status=state.status,
        run=run,
        messages=tuple(stored.message for stored in transcript if stored.sequence <= state.message_count),
        held=tuple(change.message for change in held if isinstance(change.message, ToolMessage)),
        entering=state.suspension_context.entry_messages if state.suspension_context is not None else (),
        chunks=stream.chunks if stream is not None else (),
        custom_state=state.custom_state,
        sequence=stream.info.latest_sequence if stream is not None else 0,
        stream_status=stream.info.status if stream is not None else None,
    )


async def _read_stream(
    store: SessionStateStore, streams: StreamManager, state: SessionState, run: RunRecord | None
) -> StreamSnapshot | None:
    """The stream after the point the latest checkpoint answers for. What runs before the current one said, and did not
    come to commit, was taken over into the transcript when that began, or left behind by a rewind."""
    stream_id = state.stream_id or state.session_id
    checkpoint = await store.get_checkpoint(state.session_id, state.checkpoint_id) if state.checkpoint_id else None
    committed = checkpoint.stream_sequence if checkpoint is not None else 0
    anchor = committed if run is None else max(committed, run.start_sequence)
    stream = await streams.snapshot(stream_id, after=anchor)
    if stream is not None and stream.info.latest_sequence < anchor:
        # The stream was lost and began anew, as one in memory does; nothing it says was committed yet.
        return await streams.snapshot(stream_id)
    return stream
