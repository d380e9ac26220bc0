"""One shape for every list that the stores return."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Generic, TypeVar

from helix_agents.domain.errors import InvalidPageError
from helix_agents.domain.records import Record

DEFAULT_LIMIT = 50
MAX_LIMIT = 200
MAX_OFFSET = 2**62
"""No list is this long; databases cannot count beyond it."""

T = TypeVar("T")


class Page(Record, Generic[T]):
    """Part of a list, newest first, and its position in the whole.

    `for item in page`, `len(page)` and `page[0]` cover this page only; `total` counts the whole list.
    """

    items: tuple[T, ...]
    total: int
    offset: int
    limit: int

    @property
    def has_more(self) -> bool:
        return self.offset + len(self.items) < self.total

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, at: int) -> T:
        return self.items[at]


def check_page(offset: int, limit: int) -> None:
    """Reject a page that no listing has.

    Raises:
        InvalidPageError: offset is negative or greater than any list is long, or limit is not 1 to 200.
    """
    counts = isinstance(offset, int) and isinstance(limit, int)  # pyright: ignore[reportUnnecessaryIsInstance]
    if not counts or not 0 <= offset <= MAX_OFFSET or not 1 <= limit <= MAX_LIMIT:
        raise InvalidPageError(offset, limit, MAX_LIMIT)


async def whole_list(read: Callable[[int], Awaitable[Page[T]]]) -> list[T]:
    """Every item of a list, however many pages it has; `read` gets the offset of the next page."""
    found: list[T] = []
    while True:
        page = await read(len(found))
        found.extend(page.items)
        if not page.items or not page.has_more:
            return found
