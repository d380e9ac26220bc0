"""How a contract gets at the streams it tests: one more handle each time, all onto the same data."""

import inspect
from collections.abc import AsyncIterator, Awaitable
from typing import Any, ClassVar, Protocol

import pytest

from helix_agents.ports.streams import StreamManager
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.contract import Contract
from helix_agents.testing.requirements.streams import STREAMS


class OpenStreams(Protocol):
    """Opens one more handle onto the same data, as a second process would; may be async.

    The options a contract passes, each only when it needs it: `namespace`, `clock`, `seam`, `limits`, `flush`.
    """

    def __call__(self, **options: Any) -> StreamManager | Awaitable[StreamManager]: ...


async def opened(open_streams: OpenStreams, **options: Any) -> StreamManager:
    """One more handle, however it is opened."""
    opening = open_streams(**options)
    return await opening if inspect.isawaitable(opening) else opening


class StreamHandles:
    """Opens handles for a test and closes them after it."""

    def __init__(self, open_streams: OpenStreams, clock: ManualClock) -> None:
        self._open_streams = open_streams
        self._clock = clock
        self._opened: list[StreamManager] = []

    async def open(self, **options: Any) -> StreamManager:
        """One more handle, on the test's clock unless another is given."""
        streams = await opened(self._open_streams, **{"clock": self._clock, **options})
        self._opened.append(streams)
        return streams

    async def close(self) -> None:
        """Close every handle that was opened."""
        while self._opened:
            await self._opened.pop().close()


class StreamsContract(Contract):
    """The fixtures that every part of the streams' contract stands on."""

    port: ClassVar[str] = "streams"
    requirements = STREAMS
    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    def open_streams(self) -> OpenStreams:
        """Yours to give: see `OpenStreams`."""
        raise NotImplementedError("a concrete class gives the fixture open_streams")

    @pytest.fixture
    def store_url(self) -> str:
        """Yours to give: a URL that opens the data of `open_streams` together with the state store beside it.

        Unless the backend says `several_processes = False` it does so in any process.
        """
        raise NotImplementedError("a concrete class gives the fixture store_url")

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    async def handles(self, open_streams: OpenStreams, clock: ManualClock) -> AsyncIterator[StreamHandles]:
        handles = StreamHandles(open_streams, clock)
        yield handles
        await handles.close()

    @pytest.fixture
    async def streams(self, handles: StreamHandles) -> StreamManager:
        return await handles.open()
