"""How a contract accesses the streams it tests: one more handle each time, all onto the same data."""

from collections.abc import AsyncIterator, Awaitable
from typing import Any, ClassVar, Protocol, TypeAlias

import pytest

from helix_agents.domain.errors import StoreUnavailableError
from helix_agents.ports.backend import Backend, open_backend
from helix_agents.ports.streams import FlushPolicy, StreamManager
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.contract import Contract
from helix_agents.testing.contracts.handles import Handles
from helix_agents.testing.requirements.streams import STREAMS
from helix_agents.testing.seams import ConnectionLostError, DyingSeam


class OpenStreams(Protocol):
    """Opens one more handle onto the same data, as a second process would; may be async.

    The options a contract passes, each only when it needs it: `namespace`, `clock`, `seam`, `limits`, `flush`.
    """

    def __call__(self, **options: Any) -> StreamManager | Awaitable[StreamManager]: ...


StreamHandles: TypeAlias = Handles[StreamManager]

STATEMENTS_OF_ONE_COMMIT = 25
NEVER = FlushPolicy(interval_ms=3_600_000)
LOST = (ConnectionLostError, StoreUnavailableError)


class StreamsContract(Contract):
    """The fixtures on which every part of the streams' contract is built."""

    port: ClassVar[str] = "streams"
    requirements = STREAMS

    @pytest.fixture
    def open_streams(self) -> OpenStreams:
        """For you to implement: see `OpenStreams`."""
        raise NotImplementedError("a concrete class gives the fixture open_streams")

    @pytest.fixture
    def store_url(self) -> str:
        """For you to implement: a URL that opens the data of `open_streams` together with the state store beside it.

        Unless the backend says `several_processes = False`, it has to do so in any process.
        """
        raise NotImplementedError("a concrete class gives the fixture store_url")

    @pytest.fixture
    async def handles(self, open_streams: OpenStreams, clock: ManualClock) -> AsyncIterator[StreamHandles]:
        handles = StreamHandles(open_streams, clock)
        yield handles
        await handles.close()

    @pytest.fixture
    async def streams(self, handles: StreamHandles) -> StreamManager:
        return await handles.open()


class SharedTransactionsContract(StreamsContract):
    """The fixtures for what is stored together: stream and state on one backend, whose connection can be cut."""

    @pytest.fixture
    def seam(self) -> DyingSeam:
        return DyingSeam()

    @pytest.fixture
    async def whole(self, store_url: str, seam: DyingSeam) -> AsyncIterator[Backend]:
        # Nothing is flushed by itself, however long the store takes: each test says when.
        async with await open_backend(store_url, seam=seam, flush=NEVER) as whole:
            yield whole
