"""What nobody asks for any more goes by itself: leases of processes that died, locks that nobody holds."""

from pathlib import Path
from typing import Any

import apsw
import pytest

from helix_agents.domain.locks import FORGOTTEN_AFTER_MS
from helix_agents.domain.runs import DEAD_LEASES_LAST_MS
from helix_agents.ports.backend import open_backend
from helix_agents.testing.clock import ManualClock

pytestmark = pytest.mark.may_block("looks into the file")


def rows(file: Path, table: str) -> Any:
    connection = apsw.Connection(str(file))
    try:
        return connection.execute(f"SELECT count(*) FROM {table} WHERE namespace = 'here'").fetchall()[0][0]
    finally:
        connection.close()


async def test_leases_of_the_dead_go_when_a_living_one_is_renewed(tmp_path: Path) -> None:
    file, clock = tmp_path / "helix.db", ManualClock()
    async with await open_backend(f"sqlite:///{file}", namespace="here", clock=clock) as backend:
        for number in range(20):
            await backend.state.renew_lease(f"dead-{number}", 1_000)
        clock.advance(DEAD_LEASES_LAST_MS + 1_000)
        await backend.state.renew_lease("living", 1_000)
        assert rows(file, "__agents_leases") == 21
        clock.advance(1)
        await backend.state.renew_lease("living", 1_000)
        assert rows(file, "__agents_leases") == 1
        # One that was only held up is as good as new.
        await backend.state.renew_lease("dead-1", 1_000)
        assert await backend.state.find_lease("dead-1") is not None


async def test_locks_that_nobody_has_held_for_long_go_with_the_next_one(tmp_path: Path) -> None:
    file, clock = tmp_path / "helix.db", ManualClock(FORGOTTEN_AFTER_MS)
    async with await open_backend(f"sqlite:///{file}", namespace="here", clock=clock) as backend:
        for number in range(20):
            lock = await backend.locks.acquire(f"key-{number}", ttl_ms=1_000)
            if number % 2:
                await backend.locks.release(lock)
        kept = await backend.locks.acquire("kept", ttl_ms=2 * FORGOTTEN_AFTER_MS)
        clock.advance(FORGOTTEN_AFTER_MS + 1_001)
        await backend.locks.acquire("new", ttl_ms=1_000)
        # Those two, and the highest token of the others.
        assert rows(file, "__agents_locks") == 3
        await backend.locks.release(kept)
