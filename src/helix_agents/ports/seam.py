"""The one place every statement of a backend passes, so that tests can count, hold or kill."""

from collections.abc import Awaitable
from typing import Protocol


class Seam(Protocol):
    """Called after each statement a backend sent, with its text, `BEGIN` and `COMMIT` included.

    An exception from it is treated as the loss of the connection at that point. A backend that runs on the event
    loop awaits what it returns; one that runs in a thread of its own calls it there and expects None.
    """

    def __call__(self, statement: str, /) -> Awaitable[None] | None: ...
