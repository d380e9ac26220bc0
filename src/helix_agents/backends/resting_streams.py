"""How a stream comes to rest and wakes again, for every stream manager: all of it is one change of its head."""

from abc import abstractmethod
from collections.abc import Callable

from helix_agents.backends import stream_rules as rules
from helix_agents.backends.stream_rules import Rest, StreamHead
from helix_agents.domain.ids import RunId, StreamId
from helix_agents.domain.records import JSON
from helix_agents.domain.streams import EndStatus, StreamAppend, StreamError
from helix_agents.ports.streams import StreamManager, StreamReader


class RestingStreams(StreamManager):
    """The part of a stream manager that needs only two ways to change a stream."""

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
        await self._rest(stream_id, run_id, attempt, Rest(status="ended", end_status=status, output=output), last)

    async def fail_stream(
        self,
        stream_id: StreamId,
        run_id: RunId,
        error: StreamError,
        *,
        attempt: int = 1,
        last: StreamAppend | None = None,
    ) -> None:
        await self._rest(stream_id, run_id, attempt, Rest(status="failed", error=error), last)

    async def pause_stream(
        self, stream_id: StreamId, run_id: RunId, *, attempt: int = 1, last: StreamAppend | None = None
    ) -> None:
        await self._rest(stream_id, run_id, attempt, Rest(status="paused"), last)

    async def resume_stream(self, stream_id: StreamId) -> None:
        await self._change(stream_id, "resume_stream", rules.resumed)

    async def reactivate_stream(self, stream_id: StreamId, run_id: RunId, *, turn: int = 0, attempt: int = 1) -> None:
        claim = rules.checked_claim(stream_id, run_id, turn, attempt)
        await self._change(stream_id, "reactivate_stream", lambda head, now: rules.claimed(head, claim, now))

    @abstractmethod
    async def _rest(
        self, stream_id: StreamId, run_id: RunId, attempt: int, rest: Rest, last: StreamAppend | None
    ) -> None:
        """Leave a stream as its run wants it, after the run's last chunks; one that is not there needs no rest.

        Raises:
            SupersededError: another run or attempt owns it, or it is not there to take the last chunks.
        """

    @abstractmethod
    async def _change(self, stream_id: StreamId, what: str, change: Callable[[StreamHead, int], StreamHead]) -> None:
        """Change a stream's head, if there is one; `what` is the operation's name."""
