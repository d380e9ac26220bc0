"""How a stream is claimed, comes to rest and wakes again, for every stream manager; each is one change of its head."""

from abc import abstractmethod
from collections.abc import Callable

from helix_agents.backends import stream_rules as rules
from helix_agents.backends.buffered_writer import BufferedWriter, WriterSettings
from helix_agents.backends.stream_rules import StreamHead
from helix_agents.domain.ids import RunId, StreamId
from helix_agents.domain.records import JSON
from helix_agents.domain.streams import EndStatus, StreamAppend, StreamClaim, StreamError, StreamPlace, StreamRest
from helix_agents.ports.streams import StreamManager, StreamReader, StreamWriter


class RestingStreams(StreamManager):
    """The part of a stream manager that only needs two ways to change a stream and one to append to it."""

    _writers: WriterSettings

    def claim(self, stream_id: StreamId, agent_type: str) -> StreamClaim:
        limits = self.limits
        return StreamClaim(
            stream_id=stream_id,
            agent_type=agent_type,
            max_chunks=limits.max_chunks,
            chunk_bytes=limits.chunk_bytes,
        )

    def writer_at(self, stream_id: StreamId, run_id: RunId, place: StreamPlace) -> StreamWriter:
        return BufferedWriter(rules.head_at(stream_id, run_id, place), self._append, self._writers)

    async def create_reader(self, stream_id: StreamId) -> StreamReader | None:
        return await self.create_resumable_reader(stream_id)

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
        await self._rest(stream_id, run_id, attempt, StreamRest(status="ended", end_status=status, output=output), last)

    async def fail_stream(
        self,
        stream_id: StreamId,
        run_id: RunId,
        error: StreamError,
        *,
        attempt: int = 1,
        last: StreamAppend | None = None,
    ) -> None:
        await self._rest(stream_id, run_id, attempt, StreamRest(status="failed", error=error), last)

    async def pause_stream(
        self, stream_id: StreamId, run_id: RunId, *, attempt: int = 1, last: StreamAppend | None = None
    ) -> None:
        await self._rest(stream_id, run_id, attempt, StreamRest(status="paused"), last)

    async def resume_stream(self, stream_id: StreamId) -> None:
        await self._change(stream_id, "resume_stream", rules.resumed)

    async def reactivate_stream(self, stream_id: StreamId, run_id: RunId, *, turn: int = 0, attempt: int = 1) -> None:
        claim = rules.checked_claim(stream_id, run_id, turn, attempt)
        await self._change(stream_id, "reactivate_stream", lambda head, now: rules.claimed(head, claim, now))

    @abstractmethod
    async def _append(self, append: StreamAppend) -> int:
        """Store a batch from the stream's current writer; returns the latest sequence.

        Raises:
            SupersededError: the sender is not the current writer, or there is no such stream.
        """

    @abstractmethod
    async def _rest(
        self, stream_id: StreamId, run_id: RunId, attempt: int, rest: StreamRest, last: StreamAppend | None
    ) -> None:
        """Bring a stream to rest the way its run wants, after the run's last chunks. A missing stream needs no rest.

        Raises:
            SupersededError: another run or attempt owns the stream, or it is missing and cannot take the last chunks.
        """

    @abstractmethod
    async def _change(self, stream_id: StreamId, what: str, change: Callable[[StreamHead, int], StreamHead]) -> None:
        """Change a stream's head, if the stream exists; `what` is the operation's name."""
