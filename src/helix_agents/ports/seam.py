"""The single point that every statement of a backend passes, so that tests can count, hold or kill."""

from collections.abc import Awaitable
from typing import Protocol


class Seam(Protocol):
    """Called after each statement that a backend sent, with its text, including `BEGIN` and `COMMIT`.

    If it raises, the backend treats that as the loss of the connection at that point. A backend that runs on the event
    loop awaits what it returns; one that runs in its own thread calls it there and expects None.
    """

    def __call__(self, statement: str, /) -> Awaitable[None] | None: ...
