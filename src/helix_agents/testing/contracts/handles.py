"""How a contract gets at the store it tests: one more handle each time, all onto the same data."""

import inspect
from collections.abc import AsyncIterator, Awaitable
from typing import Any, ClassVar, Protocol

import pytest

from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.contract import Contract
from helix_agents.testing.requirements.state_store import STATE_STORE


class OpenStore(Protocol):
    """Opens one more handle onto the same data, as a second process would; may be async.

    The options a contract passes, each only when it needs it: `namespace`, `clock`, `seam`, `limits`.
    """

    def __call__(self, **options: Any) -> SessionStateStore | Awaitable[SessionStateStore]: ...


class Handles:
    """Opens handles for a test and closes them after it."""

    def __init__(self, open_store: OpenStore, clock: ManualClock) -> None:
        self._open_store = open_store
        self._clock = clock
        self._opened: list[SessionStateStore] = []

    async def open(self, **options: Any) -> SessionStateStore:
        """One more handle, on the test's clock unless another is given."""
        opening = self._open_store(**{"clock": self._clock, **options})
        store = await opening if inspect.isawaitable(opening) else opening
        self._opened.append(store)
        return store

    async def close(self) -> None:
        """Close every handle that was opened."""
        while self._opened:
            await self._opened.pop().close()


class StoreContract(Contract):
    """The fixtures that every part of the state store's contract stands on."""

    port: ClassVar[str] = "state store"
    requirements = STATE_STORE
    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    def open_store(self) -> OpenStore:
        """Yours to give: see `OpenStore`."""
        raise NotImplementedError("a concrete class gives the fixture open_store")

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    async def handles(self, open_store: OpenStore, clock: ManualClock) -> AsyncIterator[Handles]:
        handles = Handles(open_store, clock)
        yield handles
        await handles.close()

    @pytest.fixture
    async def store(self, handles: Handles) -> SessionStateStore:
        return await handles.open()
