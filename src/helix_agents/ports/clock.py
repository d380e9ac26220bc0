"""Time and ids come from outside, so that the engine can be replayed and a test can hold the clock."""

from typing import Protocol


class Clock(Protocol):
    """Tells the time of the store."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC."""
        ...


class IdSource(Protocol):
    """Mints ids nobody can guess."""

    def new(self, prefix: str) -> str:
        """A fresh id such as `run_3k9…`, of letters, digits and `_` after the prefix."""
        ...
