"""How a contract accesses what it tests: one more handle each time, all onto the same data, all closed at the end."""

from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

from helix_agents.testing.clock import ManualClock


class Closable(Protocol):
    """Whatever is opened is closed at the end."""

    async def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


async def opened(opening: T | Awaitable[T]) -> T:
    """What an opener returned, whether it is async or not."""
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
