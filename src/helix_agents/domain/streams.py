"""What is known about a stream besides its chunks."""

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
    """The state in which a run leaves its stream."""

    status: StreamStatus
    end_status: EndStatus | None = None
    output: JSON = None
    error: StreamError | None = None


class StreamInfo(Record):
    """The state of a stream. `first_sequence` is the oldest chunk still stored; numbers are never reused.

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
    """A stream at one moment: its state and the chunks after a given number."""

    info: StreamInfo
    chunks: tuple[StreamChunk, ...]


class StreamClaim(Record):
    """A run that becomes its stream's writer with its own start, if stream and state share a backend. The bounds are
    those of every stream there."""

    stream_id: StreamId
    agent_type: str
    max_chunks: int | None = None
    chunk_bytes: int | None = None


class StreamPlace(Record):
    """Where a new writer starts: the number that the stream gave it, and the latest sequence before it."""

    writer: int
    latest: int


class StreamAppend(Record):
    """Chunks to store at the end of a stream, alone or in a step's transaction if stream and state share a backend.

    `writer` is the number that the stream gave its writer; an older one is refused. `batch` counts what this writer
    sent: if the same batch is sent again because the reply was lost, it is stored once. `bodies` is the JSON of the
    chunks, if the sender already has it; what is stored follows from the chunks alone.
    """

    stream_id: StreamId
    run_id: RunId
    attempt: int
    writer: int
    batch: int = 0
    chunks: tuple[StreamChunk, ...]
    bodies: tuple[str, ...] = ()


class StreamEnd(Record):
    """How a stream comes to rest with the commit that carries its run's last chunks.

    `markers` tell readers about the commit, after those chunks; fields that only the store can know are still blank.
    """

    rest: StreamRest
    markers: tuple[StreamChunk, ...]
