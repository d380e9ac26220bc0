"""What is known of a stream besides its chunks."""

from typing import Literal, TypeAlias

from helix_agents.domain.chunks import StreamChunk
from helix_agents.domain.ids import RunId, StreamId
from helix_agents.domain.records import JSON, Record

StreamStatus: TypeAlias = Literal["active", "paused", "ended", "failed"]
EndStatus: TypeAlias = Literal["completed", "interrupted"]


class StreamError(Record):
    """Why the run behind a stream failed."""

    code: str
    message: str
    retryable: bool = False


class StreamRest(Record):
    """How a run leaves its stream."""

    status: StreamStatus
    end_status: EndStatus | None = None
    output: JSON = None
    error: StreamError | None = None


class StreamInfo(Record):
    """How a stream stands. `first_sequence` is the oldest chunk still there; numbers are never reused.

    A stream with no chunk left has `first_sequence == latest_sequence + 1`.
    """

    stream_id: StreamId
    status: StreamStatus
    run_id: RunId
    attempt: int = 1
    total_chunks: int
    first_sequence: int
    latest_sequence: int
    end_status: EndStatus | None = None
    output: JSON = None
    error: StreamError | None = None
    created_at: int
    updated_at: int


class StreamSnapshot(Record):
    """A stream at one moment: how it stands and the chunks after a given number."""

    info: StreamInfo
    chunks: tuple[StreamChunk, ...]


class StreamClaim(Record):
    """A run that becomes its stream's writer with its own start, where stream and state share a backend. The bounds are
    those of every stream there."""

    stream_id: StreamId
    agent_type: str
    max_chunks: int | None = None
    chunk_bytes: int | None = None


class StreamPlace(Record):
    """Where a new writer begins: the number the stream gave it, and the latest sequence before it."""

    writer: int
    latest: int


class StreamAppend(Record):
    """Chunks to store at the end of a stream, alone or in a step's transaction where stream and state share a backend.

    `writer` is the number the stream gave its writer; an older one is refused. `batch` counts what this writer sent:
    the same batch again, as its answer was lost, is stored once. `bodies` is the JSON of the chunks, where whoever
    sends them has it in hand already; what is stored follows from the chunks alone.
    """

    stream_id: StreamId
    run_id: RunId
    attempt: int
    writer: int
    batch: int = 0
    chunks: tuple[StreamChunk, ...]
    bodies: tuple[str, ...] = ()


class StreamEnd(Record):
    """How a stream comes to rest with the commit in which its run's last chunks ride.

    `markers` tell readers of the commit, after those chunks; what only the store can know of it is still blank.
    """

    rest: StreamRest
    markers: tuple[StreamChunk, ...]
