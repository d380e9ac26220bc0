"""Everything visible about a run, as a log with sequence numbers that several processes write and read."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from helix_agents.domain.chunks import Delta, StreamChunk
from helix_agents.domain.errors import DefinitionError
from helix_agents.domain.ids import RunId, StreamId
from helix_agents.domain.records import JSON, Record
from helix_agents.domain.streams import (
    EndStatus,
    StreamAppend,
    StreamClaim,
    StreamError,
    StreamInfo,
    StreamPlace,
    StreamSnapshot,
)

# A chunk about a run carries the run's ids, which may be long.
LEAST_CHUNK_BYTES = 1_000


class StreamLimits(Record):
    """The bounds of a stream: None means no limit.

    `max_chunks` holds at any moment, even within a step: choose it larger than the longest step, or a page that is
    refreshed in the middle of a step misses its beginning. Text longer than `chunk_bytes` is split into several chunks.
    A chunk that says that a run started or ended cannot be split, so there has to be room for it.
    """

    max_chunks: int | None = None
    chunk_bytes: int | None = 1_000_000

    def __post_init__(self) -> None:
        for name, most, least in (
            ("max_chunks", self.max_chunks, 1),
            ("chunk_bytes", self.chunk_bytes, LEAST_CHUNK_BYTES),
        ):
            if most is not None and most < least:
                problem = f"{name}={most} leaves room for nothing; give at least {least:,}, or None for no limit."
                raise DefinitionError("StreamLimits", problem)


class FlushPolicy(Record):
    """When buffered chunks are stored: whichever comes first."""

    interval_ms: int = 25
    chunks: int = 64
    bytes: int = 16_384


class StreamWriter(Protocol):
    """Writes a run's chunks from one event loop. A write is buffered and does not wait for the store; a flush does.

    A store that does not answer for a while is tried again in the background. Only when megabytes are waiting for it
    does a write wait as well, so that memory stays bounded.
    """

    @property
    def writer(self) -> int:
        """The number that the stream gave this writer; a newer writer shuts this one out."""
        ...

    @property
    def sequence(self) -> int:
        """The latest sequence number that this writer knows to be stored, which a commit without chunks accounts
        for."""
        ...

    async def write(self, chunk: StreamChunk) -> None:
        """Accept a chunk; it is stored soon, in order. A `timestamp` of 0 becomes the time at which it was accepted.

        Raises:
            ChunkTooLargeError: it is larger than the stream accepts; it used no sequence number.
            SupersededError: a newer run, attempt or writer owns the stream; nothing more can be written.
        """
        ...

    def extend(self, chunk: Delta, text: str) -> bool:
        """Add to the last written piece of text, if it is this chunk and is not on its way to the store yet.

        False if it is not, or would get too large; the text then has to be written as its own chunk.
        """
        ...

    async def flush(self) -> int:
        """Store everything accepted so far; returns the latest sequence.

        Raises:
            SupersededError: as for `write`.
        """
        ...

    def take(self) -> AbstractAsyncContextManager[StreamAppend | None]:
        """Hand over what is buffered, to become part of a step's transaction:

            async with writer.take() as stream:
                await store.save_state_and_promote_staging(…, commit=StepCommit(…, stream=stream))

        Everything written earlier is stored before the block starts, and nothing written during the block is stored
        before it ends. If the block raises, the next flush stores the chunks once, whether or not they were stored
        before.

        Raises:
            SupersededError: as for `write`.
        """
        ...

    async def close(self) -> None:
        """Flush and close the writer, not the stream; idempotent.

        Raises:
            SupersededError: as for `write`; the writer is closed nevertheless.
        """
        ...


class StreamReader(Protocol):
    """Reads a stream: first what is there, then what comes, until the stream ends, pauses or fails."""

    @property
    def sequence(self) -> int:
        """The cursor: everything up to it was delivered."""
        ...

    def __aiter__(self) -> AsyncIterator[StreamChunk]: ...

    async def __anext__(self) -> StreamChunk:
        """The next chunk.

        Raises:
            StopAsyncIteration: the stream ended or is paused, and everything was delivered.
            StreamFailedError: the stream failed, and everything was delivered.
        """
        ...

    async def close(self) -> None:
        """Stop reading; idempotent."""
        ...


class StreamManager(Protocol):
    """All streams of one namespace. Sequence numbers start at 1, have no gaps when assigned and are never reused."""

    @property
    def limits(self) -> StreamLimits:
        """The bounds of every stream here."""
        ...

    def shares_transactions_with(self, store: object) -> bool:
        """Whether chunks can be part of that state store's step commits."""
        ...

    def claim(self, stream_id: StreamId, agent_type: str) -> StreamClaim:
        """What the start of a run carries to become the writer of this stream in the same transaction."""
        ...

    def writer_at(self, stream_id: StreamId, run_id: RunId, place: StreamPlace) -> StreamWriter:
        """The writer that a run became with its start."""
        ...

    async def create_writer(
        self,
        stream_id: StreamId,
        run_id: RunId,
        agent_type: str,
        *,
        turn: int = 0,
        attempt: int = 1,
        step: int | None = None,
        after: int = 0,
        join: bool = False,
    ) -> StreamWriter:
        """Become the stream's writer. The first writer creates the stream, and later ones shut earlier ones out.

        Given a `step`, chunks that an earlier writer of the same run left at this step or later, under numbers above
        `after`, are discarded, and a `step_discarded` chunk names the range. A paused, ended or failed stream becomes
        active for a new run or attempt.

        With `join`, this becomes one more handle of the writer that this attempt already has, in whichever process: no
        writer is shut out, nothing is discarded, and chunks are stored in the order in which the handles flush them. A
        flush whose reply is lost may then be stored twice. An attempt without a writer gets a new one.

        Raises:
            SupersededError: a later turn, or a later attempt of this run, has written already, or this attempt has
                ended, failed or paused its stream.
        """
        ...

    async def create_reader(self, stream_id: StreamId) -> StreamReader | None:
        """Read from the beginning; None if there is no such stream."""
        ...

    async def create_resumable_reader(self, stream_id: StreamId, *, from_sequence: int = 0) -> StreamReader | None:
        """Read everything after `from_sequence`, never a chunk twice, never one lost, in any process.

        If chunks after it are gone, the first chunk read is a `truncated` chunk. A number that this stream never
        reached comes from another stream: the first chunk read is then a `stream_resync` chunk, followed by everything
        there is.
        """
        ...

    async def end_stream(
        self,
        stream_id: StreamId,
        run_id: RunId,
        *,
        status: EndStatus,
        output: JSON = None,
        attempt: int = 1,
        last: StreamAppend | None = None,
    ) -> None:
        """End the stream of this run; idempotent.

        `last` are its writer's last chunks, stored in the same transaction, before the status changes:

            async with writer.take() as last:
                await streams.end_stream(…, last=last)

        They are checked like any others. If they are refused, nothing changes; if an earlier call has stored them, they
        are not stored again.

        Raises:
            SupersededError: the stream belongs to a newer run or attempt, or does not accept the last chunks.
        """
        ...

    async def fail_stream(
        self,
        stream_id: StreamId,
        run_id: RunId,
        error: StreamError,
        *,
        attempt: int = 1,
        last: StreamAppend | None = None,
    ) -> None:
        """Fail the stream of this run: readers get the history and then the error; idempotent.

        `last` and the exceptions are as for `end_stream`.
        """
        ...

    async def pause_stream(
        self, stream_id: StreamId, run_id: RunId, *, attempt: int = 1, last: StreamAppend | None = None
    ) -> None:
        """Close readers cleanly where the run waits for a person; idempotent.

        `last` and the exceptions are as for `end_stream`.
        """
        ...

    async def resume_stream(self, stream_id: StreamId) -> None:
        """Make a paused stream active; any other is left as it is."""
        ...

    async def reactivate_stream(self, stream_id: StreamId, run_id: RunId, *, turn: int = 0, attempt: int = 1) -> None:
        """Make an ended, failed or paused stream active for a run, which owns it from now on.

        Raises:
            SupersededError: a later turn, or a later attempt of this run, has written already.
        """
        ...

    async def get_stream_info(self, stream_id: StreamId) -> StreamInfo | None:
        """The state of the stream; None if there is no such stream."""
        ...

    async def get_all_chunks(self, stream_id: StreamId) -> tuple[StreamChunk, ...]:
        """Every chunk that is still stored, in order."""
        ...

    async def get_chunks_from_step(
        self, stream_id: StreamId, from_step: int, run_id: RunId | None = None
    ) -> tuple[StreamChunk, ...]:
        """Chunks of this step and later ones, of the given run or of the stream's current run."""
        ...

    async def cleanup_to_step(self, stream_id: StreamId, run_id: RunId, step: int, *, after: int = 0) -> int:
        """Drop the run's chunks of steps after `step` under numbers above `after`; returns how many were dropped.

        A `step_discarded` chunk names each contiguous range that was dropped. Live readers keep their place.
        """
        ...

    async def snapshot(self, stream_id: StreamId, *, after: int = 0) -> StreamSnapshot | None:
        """The state of the stream and the chunks after a sequence, in one consistent read."""
        ...

    async def delete_stream(self, stream_id: StreamId) -> None:
        """Delete the stream; idempotent. Its readers end."""
        ...

    async def prune(self, older_than_ms: int) -> int:
        """Delete the chunks of streams that ended, failed or paused longer ago than this; returns how many were
        deleted.

        A paused stream keeps the chunks that no committed step replaced. Sequence numbers continue where they were.
        """
        ...

    async def close(self) -> None:
        """Release files and connections; idempotent."""
        ...
