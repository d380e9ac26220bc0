"""Time and ids come from outside, so that the engine can be replayed and a test can control the clock."""

from typing import Protocol


class Clock(Protocol):
    """Gives the time of the store."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC."""
        ...


class IdSource(Protocol):
    """Creates ids that cannot be guessed."""

    def new(self, prefix: str) -> str:
        """A fresh id such as `run_3k9…`, of letters, digits and `_` after the prefix."""
        ...
