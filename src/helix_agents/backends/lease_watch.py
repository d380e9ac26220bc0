"""Leases that only look alive, because the clock was set back after their process had died."""

import time

from helix_agents.domain.runs import Lease


class LeaseWatch:
    """Says how long leases are alive in a store that uses the machine's clock, which may be set back.

    A lease that ends later than it would if it were renewed now was written before the clock was set back. If its
    process lives, it renews the lease within the lease's own length. Once that much time has passed here without a
    renewal, on a clock that cannot be set, the process is dead. Until then it counts as alive, whatever the clock says.
    """

    def __init__(self) -> None:
        self._standing_still: dict[str, tuple[int, int]] = {}

    def alive_until(self, lease: Lease, ttl_ms: int, now: int) -> int:
        """When a lease of this length ends on the store's clock unless it is renewed; at most `now` if it has ended."""
        if lease.expires_at - now <= ttl_ms:
            self._standing_still.pop(lease.owner, None)
            return lease.expires_at
        written, since = self._standing_still.get(lease.owner, (None, 0))
        if written != lease.expires_at:
            since = steady_ms()
            self._standing_still[lease.owner] = lease.expires_at, since
        return now + max(ttl_ms - (steady_ms() - since), 0)


def steady_ms() -> int:
    """Milliseconds on a clock that only moves forward, and is only compared with itself."""
    return time.monotonic_ns() // 1_000_000
