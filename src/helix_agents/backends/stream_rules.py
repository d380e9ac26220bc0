"""The rules of streams, written once for every manager: who may write, how chunks are numbered, what gets removed."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from helix_agents.domain.chunks import MARKERS, StepCommitted, StepDiscarded, StreamChunk, StreamResync, Truncated
from helix_agents.domain.commits import Committed, told_of
from helix_agents.domain.errors import ChunkTooLargeError, StreamFailedError, SupersededError
from helix_agents.domain.ids import RunId, StreamId, check_id
from helix_agents.domain.records import JSON, Record, encode
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.streams import (
    EndStatus,
    StreamAppend,
    StreamClaim,
    StreamEnd,
    StreamError,
    StreamInfo,
    StreamPlace,
    StreamRest,
    StreamStatus,
)

UNKNOWN_STEP: Final = 1 << 62


class StreamHead(Record):
    """Everything known about a stream besides its chunks.

    `writer` counts the writers so far, and `batch` is the last batch the current one stored. Chunks numbered below
    `floor` were truncated. `committed` is the newest `step_committed` of the stream's own session. `top_step` bounds
    searches: the current run has no content of a later step, and content of that step starts at `top_first` at the
    earliest. `prunable_since` is when the stream came to rest with something left to prune.
    """

    stream_id: StreamId
    agent_type: str
    status: StreamStatus = "active"
    run_id: RunId
    turn: int = 0
    attempt: int = 1
    writer: int = 0
    batch: int = 0
    latest: int = 0
    floor: int = 1
    count: int = 0
    max_chunks: int | None = None
    committed: int = 0
    top_step: int = -1
    top_first: int = 1
    prunable_since: int | None = None
    end_status: EndStatus | None = None
    output: JSON = None
    error: StreamError | None = None
    created_at: int
    updated_at: int


class Claim(Record):
    """The run on whose behalf a call is made."""

    stream_id: StreamId
    run_id: RunId
    turn: int = 0
    attempt: int = 1


# ---------------------------------------------------------------------------------------------------------
# Who owns it
# ---------------------------------------------------------------------------------------------------------


def checked_claim(stream_id: StreamId, run_id: RunId, turn: int, attempt: int) -> Claim:
    """A claim whose ids have been checked.

    Raises:
        InvalidIdError: one of them cannot be an id.
    """
    check_id(stream_id, "stream id")
    check_id(run_id, "run id")
    return Claim(stream_id=stream_id, run_id=run_id, turn=turn, attempt=attempt)


def new_head(claim: Claim, agent_type: str, now: int) -> StreamHead:
    """A stream that has had no writer yet."""
    return StreamHead(
        stream_id=claim.stream_id,
        agent_type=agent_type,
        run_id=claim.run_id,
        turn=claim.turn,
        attempt=claim.attempt,
        created_at=now,
        updated_at=now,
    )


def claimed(head: StreamHead, claim: Claim, now: int) -> StreamHead:
    """The stream, active and owned by the claimant.

    Raises:
        SupersededError: a later turn, or a later attempt of the same run, owns the stream.
    """
    active = replace(
        head, status="active", prunable_since=None, end_status=None, output=None, error=None, updated_at=now
    )
    if claim.run_id == head.run_id:
        if claim.attempt < head.attempt:
            raise superseded(claim, f"attempt {head.attempt} of it took over")
        return replace(active, attempt=claim.attempt, turn=max(claim.turn, head.turn))
    if claim.turn < head.turn:
        raise superseded(claim, f"run {head.run_id!r} of a later turn took over")
    # A run of a later turn is new to this stream. Any other run may have written before, and what it wrote is unknown.
    top_step, top_first = (-1, head.latest + 1) if claim.turn > head.turn else (UNKNOWN_STEP, 1)
    return replace(
        active,
        run_id=claim.run_id,
        turn=claim.turn,
        attempt=claim.attempt,
        top_step=top_step,
        top_first=top_first,
    )


def can_join(head: StreamHead | None, claim: Claim) -> bool:
    """Whether the claimant's attempt already has a writer that another handle can join."""
    if head is None or head.status != "active" or head.writer == 0:
        return False
    return (head.run_id, head.attempt) == (claim.run_id, claim.attempt)


def with_new_writer(
    head: StreamHead | None, claim: Claim, agent_type: str, max_chunks: int | None, now: int
) -> StreamHead:
    """The stream with a new writer, which shuts out all earlier ones.

    Raises:
        SupersededError: a later turn or attempt owns the stream, or this attempt has brought it to rest.
    """
    if head is None:
        return replace(new_head(claim, agent_type, now), writer=1, max_chunks=max_chunks)
    owned = claimed(head, claim, now)
    if head.status != "active" and (head.run_id, head.attempt) == (claim.run_id, claim.attempt):
        # A late repeat of finished work. A new writer would leave readers waiting on a run that is over.
        raise superseded(claim, f"it has {head.status} its stream" if head.status != "paused" else "it is paused")
    return replace(owned, agent_type=agent_type, writer=head.writer + 1, batch=0, max_chunks=max_chunks)


def with_started_run(head: StreamHead | None, claim: StreamClaim, run: RunRecord, now: int) -> StreamHead | None:
    """The stream with a starting run as its writer; None if the stream belongs to a later run or attempt."""
    owner = Claim(stream_id=claim.stream_id, run_id=run.run_id, turn=run.turn, attempt=run.attempt)
    try:
        return with_new_writer(head, owner, claim.agent_type, claim.max_chunks, now)
    except SupersededError:
        return None


def place_of(head: StreamHead) -> StreamPlace:
    """Where the stream's newest writer starts."""
    return StreamPlace(writer=head.writer, latest=head.latest)


def head_at(stream_id: StreamId, run_id: RunId, place: StreamPlace) -> StreamHead:
    """The parts of a stream's head that the writer of a run's first attempt needs."""
    return StreamHead(
        stream_id=stream_id,
        agent_type="",
        run_id=run_id,
        writer=place.writer,
        latest=place.latest,
        created_at=0,
        updated_at=0,
    )


def check_append(head: StreamHead, append: StreamAppend, chunk_bytes: int | None = None) -> None:
    """Accept an append only from the stream's current writer.

    Raises:
        SupersededError: the sender is not the current writer, or the stream no longer takes chunks.
        ChunkTooLargeError: a chunk is larger than `chunk_bytes`.
    """
    claim = claim_of(append)
    check_owner(head, claim)
    if append.attempt != head.attempt or append.writer != head.writer:
        raise superseded(claim, "a newer writer took over")
    if head.status != "active":
        raise superseded(claim, f"the stream is {head.status}")
    if chunk_bytes is not None:
        for chunk in append.chunks:
            check_chunk_size(append.stream_id, len(encode(chunk)), chunk_bytes)


def check_owner(head: StreamHead, claim: Claim) -> None:
    """Accept only the run that owns the stream, in its present attempt or a later one.

    Raises:
        SupersededError: another run, or a later attempt, owns the stream.
    """
    if claim.run_id != head.run_id:
        raise superseded(claim, f"run {head.run_id!r} took over")
    if claim.attempt < head.attempt:
        raise superseded(claim, f"attempt {head.attempt} of it took over")


def check_chunk_size(stream_id: StreamId, size: int, limit: int | None) -> None:
    """Accept only a chunk within the limit; None means no limit.

    Raises:
        ChunkTooLargeError: the chunk is larger.
    """
    if limit is not None and size > limit:
        raise ChunkTooLargeError(stream_id, size, limit)


def claim_of(append: StreamAppend) -> Claim:
    """The claim of the run that sends an append."""
    return Claim(stream_id=append.stream_id, run_id=append.run_id, attempt=append.attempt)


def deleted(append: StreamAppend) -> SupersededError:
    """The error for a writer whose stream no longer exists."""
    return superseded(claim_of(append), "the stream was deleted")


def superseded(claim: Claim, reason: str) -> SupersededError:
    """The error for a writer that has to stop."""
    return SupersededError(claim.stream_id, claim.run_id, claim.attempt, reason)


# ---------------------------------------------------------------------------------------------------------
# How it grows and shrinks
# ---------------------------------------------------------------------------------------------------------


def is_repeated(head: StreamHead, append: StreamAppend) -> bool:
    """Whether the stream has already stored this batch; called after `check_append`."""
    return append.batch != 0 and append.batch <= head.batch


def appended(head: StreamHead, append: StreamAppend, now: int) -> tuple[StreamHead, tuple[StreamChunk, ...]]:
    """The stream after an append, and the chunks with their sequence numbers."""
    grown, chunks = numbered(head, append.chunks, now)
    return replace(grown, batch=append.batch or head.batch), chunks


def numbered(head: StreamHead, chunks: Sequence[StreamChunk], now: int) -> tuple[StreamHead, tuple[StreamChunk, ...]]:
    """The stream with these chunks at its end, and the chunks with their sequence numbers."""
    placed = tuple(replace(chunk, sequence=sequence) for sequence, chunk in enumerate(chunks, head.latest + 1))
    growth = growth_of(chunks, head.run_id)
    top_step, top_first = head.top_step, head.top_first
    if growth.top_step > top_step:
        top_step, top_first = growth.top_step, head.latest + growth.top_first
    grown = replace(
        head,
        latest=head.latest + len(placed),
        count=head.count + len(placed),
        committed=head.latest + growth.committed if growth.committed else head.committed,
        top_step=top_step,
        top_first=top_first,
        updated_at=now,
    )
    return grown, placed


class Growth(NamedTuple):
    """How chunks at the end of a stream change its head; chunks are identified by place, counted from 1."""

    committed: int
    top_step: int
    top_first: int


def growth_of(chunks: Sequence[StreamChunk], run_id: RunId) -> Growth:
    """How these chunks change the head of a stream that this run owns.

    `committed` is the place of the last `step_committed` of the stream's own session, 0 if there is none. `top_step` is
    the latest step the run has content for, and `top_first` is the place of the first content of that step.
    """
    committed, top_step, top_first = 0, -1, 0
    for place, chunk in enumerate(chunks, 1):
        if isinstance(chunk, StepCommitted) and chunk.parent_tool_call_id is None:
            committed = place
        if chunk.step > top_step and chunk.run_id == run_id and not isinstance(chunk, MARKERS):
            top_step, top_first = chunk.step, place
    return Growth(committed, top_step, top_first)


def search_from(head: StreamHead, run_id: RunId, step: int, after: int = 0) -> int:
    """The lowest number above `after` that can hold content of this step of a run, or of a later step."""
    if run_id != head.run_id or step < head.top_step:
        return max(head.floor, after + 1)
    return max(head.top_first if step == head.top_step else head.latest + 1, after + 1)


def is_content(chunk: StreamChunk, run_id: RunId, step: int) -> bool:
    """Whether a chunk is removed when this step of a run and all later ones are discarded."""
    return chunk.run_id == run_id and chunk.step >= step and not isinstance(chunk, MARKERS)


def ranges_of(found: Iterable[tuple[int, bool]]) -> list[tuple[int, int]]:
    """The inclusive ranges of chunks to remove, given every number searched, in order, and whether it is removed."""
    ranges: list[tuple[int, int]] = []
    connected = False
    for sequence, goes in found:
        if goes and connected:
            ranges[-1] = (ranges[-1][0], sequence)
        elif goes:
            ranges.append((sequence, sequence))
        connected = goes
    return ranges


def discarded(
    head: StreamHead, claim: Claim, step: int, ranges: Sequence[tuple[int, int]], gone: int, now: int, after: int = 0
) -> tuple[StreamHead, tuple[StreamChunk, ...]]:
    """The stream after `gone` chunks in these ranges above `after` were removed, and the chunks that report it."""
    notes = tuple(
        StepDiscarded(
            session_id=head.stream_id,
            run_id=claim.run_id,
            agent_type=head.agent_type,
            step=step,
            timestamp=now,
            from_sequence=first,
            to_sequence=last,
        )
        for first, last in ranges
    )
    shrunk, placed = numbered(replace(head, count=head.count - gone), notes, now)
    if claim.run_id == head.run_id and not after:
        shrunk = replace(shrunk, top_step=step, top_first=shrunk.latest + 1)
    return shrunk, placed


def trimmed(head: StreamHead, floor: int, gone: int) -> StreamHead:
    """The stream after the `gone` chunks below `floor` were removed for lack of room or by age."""
    return replace(head, floor=max(floor, head.floor), count=head.count - gone)


def pruned(head: StreamHead) -> StreamHead:
    """The stream with nothing left to prune."""
    return replace(head, prunable_since=None)


def prunable_below(head: StreamHead) -> int:
    """Chunks below this number may go by age; what a paused stream wrote since its last commit exists nowhere else."""
    return head.committed + 1 if head.status == "paused" else head.latest + 1


# ---------------------------------------------------------------------------------------------------------
# How it comes to rest, and what readers are told
# ---------------------------------------------------------------------------------------------------------


def rested(head: StreamHead, claim: Claim, rest: StreamRest, now: int) -> StreamHead:
    """The stream as its run left it; one that has ended or failed keeps its first outcome.

    Raises:
        SupersededError: another run, or a later attempt, owns the stream.
    """
    check_owner(head, claim)
    if head.status in ("ended", "failed") or head.status == rest.status:
        return head
    return replace(
        head,
        status=rest.status,
        end_status=rest.end_status,
        output=rest.output,
        error=rest.error,
        attempt=claim.attempt,
        prunable_since=now,
        updated_at=now,
    )


def last_of(append: StreamAppend, end: StreamEnd, committed: Committed, now: int) -> StreamAppend:
    """The final append that brings a stream to rest, after the chunks that a commit carried."""
    markers = tuple(replace(marker, timestamp=marker.timestamp or now) for marker in told_of(committed, end.markers))
    return replace(append, batch=append.batch and append.batch + 1, chunks=markers, bodies=())


def check_last(head: StreamHead, claim: Claim, last: StreamAppend, chunk_bytes: int | None = None) -> bool:
    """Whether the last chunks of a run that leaves its stream have yet to be stored.

    Raises:
        SupersededError: another run or attempt owns the stream, or the stream does not take the chunks.
        ChunkTooLargeError: a chunk is larger than `chunk_bytes`.
    """
    check_owner(head, claim)
    if claim_of(last) != claim:
        raise superseded(claim, f"its last chunks are of run {last.run_id!r}, attempt {last.attempt}")
    if (last.attempt, last.writer) == (head.attempt, head.writer) and is_repeated(head, last):
        # The stream already took these chunks, and may have come to rest with them.
        return False
    check_append(head, last, chunk_bytes)
    return True


def resumed(head: StreamHead, now: int) -> StreamHead:
    """The stream, active again if it was paused."""
    if head.status != "paused":
        return head
    return replace(head, status="active", prunable_since=None, updated_at=now)


def info_of(head: StreamHead, first_sequence: int | None) -> StreamInfo:
    """A stream's public description; `first_sequence` is that of its oldest stored chunk, if there is one."""
    return StreamInfo(
        stream_id=head.stream_id,
        status=head.status,
        run_id=head.run_id,
        attempt=head.attempt,
        total_chunks=head.count,
        first_sequence=head.latest + 1 if first_sequence is None else first_sequence,
        latest_sequence=head.latest,
        end_status=head.end_status,
        output=head.output,
        error=head.error,
        created_at=head.created_at,
        updated_at=head.updated_at,
    )


def notice(head: StreamHead, cursor: int, now: int) -> Truncated | StreamResync | None:
    """What a reader at this cursor must be told before it reads on; the note takes the place of the missing chunks."""
    if cursor > head.latest:
        return StreamResync(
            session_id=head.stream_id,
            run_id=head.run_id,
            agent_type=head.agent_type,
            sequence=head.floor - 1,
            timestamp=now,
            reason=f"this stream never reached {cursor}",
        )
    if cursor < head.floor - 1:
        return Truncated(
            session_id=head.stream_id,
            run_id=head.run_id,
            agent_type=head.agent_type,
            sequence=head.floor - 1,
            timestamp=now,
            first_sequence=head.floor,
        )
    return None


def failure_of(head: StreamHead) -> StreamFailedError:
    """The error a reader of a failed stream gets once it has read everything."""
    error = head.error or StreamError(code="unknown", message="no reason was given")
    return StreamFailedError(head.stream_id, error.code, error.message)
