"""How a contract gets at the store it tests: one more handle each time, all onto the same data."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

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


class Closable(Protocol):
    """Whatever is opened is closed in the end."""

    async def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


async def opened(opening: T | Awaitable[T]) -> T:
    """What an opener gave, whether it is async or not."""
    return await opening if isinstance(opening, Awaitable) else opening


class Handles(Generic[T]):
    """Opens handles for a test and closes them after it."""

    def __init__(self, open_one: Callable[..., T | Awaitable[T]], clock: ManualClock) -> None:
        self._open_one = open_one
        self._clock = clock
        self._opened: list[T] = []

    async def open(self, **options: Any) -> T:
        """One more handle, on the test's clock unless another is given."""
        handle = await opened(self._open_one(**{"clock": self._clock, **options}))
        self._opened.append(handle)
        return handle

    async def close(self) -> None:
        """Close every handle that was opened."""
        while self._opened:
            await self._opened.pop().close()


StoreHandles: TypeAlias = Handles[SessionStateStore]


class StoreContract(Contract):
    """The fixtures that every part of the state store's contract stands on."""

    port: ClassVar[str] = "state store"
    requirements = STATE_STORE

    @pytest.fixture
    def open_store(self) -> OpenStore:
        """Yours to give: see `OpenStore`."""
        raise NotImplementedError("a concrete class gives the fixture open_store")

    @pytest.fixture
    async def handles(self, open_store: OpenStore, clock: ManualClock) -> AsyncIterator[StoreHandles]:
        handles = StoreHandles(open_store, clock)
        yield handles
        await handles.close()

    @pytest.fixture
    async def store(self, handles: StoreHandles) -> SessionStateStore:
        return await handles.open()
