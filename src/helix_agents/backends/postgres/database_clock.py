"""The database's clock, known without asking for it every time."""

# asyncpg carries no types of its own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import time
from typing import Any

from helix_agents.ports.clock import Clock

SERVER_MS = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
SLOW_SECONDS = 1.0
"""An answer that took longer says less about the time than what was known before."""

_LOOK = f"SELECT {SERVER_MS}"


class DatabaseClock(Clock):
    """Derives the server's time from this process's monotonic clock and the offset between the two at the last look.

    All processes agree with the server, and so with each other, to within half a round trip, whatever their own clocks
    say. Every new connection looks, and so does every renewal of a lease.
    """

    def __init__(self) -> None:
        self._ahead = time.time() * 1000 - time.monotonic() * 1000

    def now_ms(self) -> int:
        return int(time.monotonic() * 1000 + self._ahead)

    async def look_at(self, raw: Any) -> None:
        """Ask a connection for the server's time."""
        asked = time.monotonic()
        self.heard(await raw.fetchval(_LOOK), asked)

    def heard(self, server_ms: int, asked: float) -> None:
        """Take in the server's time, received with the answer to a query sent at `asked` on the monotonic clock."""
        now = time.monotonic()
        if now - asked < SLOW_SECONDS:
            self._ahead = server_ms - (asked + now) * 500
