"""A clock that stands still until a test moves it."""

from helix_agents.ports.clock import Clock

START_MS = 1_700_000_000_000


class ManualClock(Clock):
    """Gives the time it was set to; leases and deadlines expire exactly when a test says so."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self._now = now_ms

    def now_ms(self) -> int:
        return self._now

    def advance(self, milliseconds: int) -> int:
        """Let time pass; returns the new time."""
        self._now += milliseconds
        return self._now
