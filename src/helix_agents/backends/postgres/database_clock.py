"""The database's clock, told without asking it every time."""

# asyncpg carries no types of its own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import time
from typing import Any

from helix_agents.ports.clock import Clock

_LOOK = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"


class DatabaseClock(Clock):
    """Tells the server's time by this process's steady clock and how far the two were apart at the last look.

    All processes agree with the server, and so with each other, whatever their own clocks say: to within half a round
    trip. Every new connection looks, and so does the renewal of a lease.
    """

    def __init__(self) -> None:
        self._ahead = time.time() * 1000 - time.monotonic() * 1000

    def now_ms(self) -> int:
        return int(time.monotonic() * 1000 + self._ahead)

    async def look_at(self, raw: Any) -> None:
        """Ask a connection for the server's time."""
        before = time.monotonic() * 1000
        server: int = await raw.fetchval(_LOOK)
        self._ahead = server - (before + time.monotonic() * 1000) / 2
