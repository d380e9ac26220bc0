"""Lists that are kept newest first, read only as far back as needed."""

from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from helix_agents.domain.paging import MAX_LIMIT, Page

T = TypeVar("T")

FIRST_PAGE = 20
"""Most responses are the latest of their conversation, and short."""


class ReadPage(Protocol[T]):
    """One page of a list."""

    def __call__(self, *, offset: int, limit: int) -> Awaitable[Page[T]]: ...


class Backwards(Generic[T]):
    """The part of a list that was read so far; `items` starts with the newest, `total` counts the whole list."""

    def __init__(self, read: ReadPage[T]) -> None:
        self._read = read
        self.items: list[T] = []
        self.total: int | None = None

    @property
    def is_whole(self) -> bool:
        return self.total is not None and len(self.items) >= self.total

    async def until(self, enough: Callable[[T], bool]) -> T | None:
        """Read on to the first item that satisfies `enough`; None if the list ends before that."""
        place = await self._place_of(enough)
        return None if place is None else self.items[place]

    async def newer_than(self, enough: Callable[[T], bool]) -> list[T]:
        """Read on to the first item that satisfies `enough`; returns the items before it, or all if there is none."""
        return self.items[: await self._place_of(enough)]

    async def _place_of(self, enough: Callable[[T], bool]) -> int | None:
        seen = 0
        while True:
            for place in range(seen, len(self.items)):
                if enough(self.items[place]):
                    return place
            seen = len(self.items)
            if self.is_whole:
                return None
            page = await self._read(offset=seen, limit=MAX_LIMIT if self.items else FIRST_PAGE)
            self.items += page.items
            self.total = page.total if page.items else seen
