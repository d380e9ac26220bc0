"""What a step commit costs on Postgres, as a ratio to the same rows in one statement written by hand."""

import asyncio
import time
from typing import Any

import asyncpg
from store_commit import StoreSession, pairs, step_messages, step_writes

from helix_agents.backends.postgres import PostgresStateStore
from helix_agents.domain.records import encode
from helix_agents.testing.postgres_service import PostgresService
from helix_agents.testing.seams import CountingSeam

_TABLES = """
CREATE TABLE floor_sessions (id bigint PRIMARY KEY, version bigint NOT NULL, updated_at bigint, detail text)
    WITH (fillfactor = 60);
CREATE TABLE floor_messages (id bigint PRIMARY KEY, created_at bigint, body text);
CREATE TABLE floor_writes (id bigint PRIMARY KEY, writes text);
CREATE TABLE floor_checkpoints (id bigint PRIMARY KEY, step text, created_at bigint);
"""
_COMMIT = """
WITH s AS (
    UPDATE floor_sessions SET version = version + 1, updated_at = $2, detail = $6 WHERE id = $1
    RETURNING (id << 32) + version * 2 AS at
),
m AS (INSERT INTO floor_messages SELECT (SELECT at FROM s) + place, $2, body
      FROM unnest($3::text[]) WITH ORDINALITY AS u (body, place)),
w AS (INSERT INTO floor_writes SELECT at, $4 FROM s)
INSERT INTO floor_checkpoints SELECT at, $5, $2 FROM s RETURNING id
"""


class ByHand:
    """The same session, as one statement that somebody wrote for nothing else."""

    def __init__(self, raw: Any, number: int) -> None:
        self._raw = raw
        self._number = number
        self.step = 0

    async def create(self) -> None:
        """Create the session."""
        await self._raw.execute("INSERT INTO floor_sessions VALUES ($1, 0, 0, '')", self._number)

    async def commit(self) -> None:
        """Commit the next step: the same objects, encoded the same way."""
        self.step += 1
        bodies = [encode(message).decode() for message in step_messages(self.step)]
        writes = encode(step_writes(self.step)).decode()
        now = time.time_ns() // 1_000_000
        await self._raw.fetchrow(_COMMIT, self._number, now, bodies, writes, f"run.{self.step}", "{}")


async def measure(quick: bool) -> dict[str, float]:
    """All figures of this benchmark for Postgres, with a server that syncs every commit to disk."""
    count, times = (10, 40) if quick else (30, 150)
    service = PostgresService(durable=True)
    await asyncio.to_thread(service.start)
    try:
        seam = CountingSeam()
        url = service.new_url(pool_size=20)
        store = await PostgresStateStore.open(url)
        counted = await PostgresStateStore.open(url, seam=seam)
        raw = await asyncpg.connect(service.url)
        await raw.execute(_TABLES)
        ours, floor = StoreSession(store, 1), ByHand(raw, 1)
        short, long, watched = StoreSession(store, 1000), StoreSession(store, 1001), StoreSession(counted, 1002)
        for session in (ours, floor, short, long, watched):
            await session.create()
        one, floor_one, ratio = await pairs([ours.commit], [floor.commit], count, times)
        for session, history in ((short, 10), (long, 10_000)):
            await session.fill(history)
        _, _, flatness = await pairs([long.commit], [short.commit], count, max(10, times // 4))
        await watched.commit()
        seam.reset()
        await watched.commit()
        many = [StoreSession(store, number) for number in range(2, 52)]
        for session in many:
            await session.create()
        begin = time.perf_counter()
        await asyncio.gather(*(_several(session, 10) for session in many))
        together = (time.perf_counter() - begin) / 500
        for part in (store, counted, raw):
            await part.close()
    finally:
        await asyncio.to_thread(service.close)
    return {
        "commit_us_1": one * 1e6,
        "floor_us_1": floor_one * 1e6,
        "ratio_1": ratio,
        "commit_us_50": together * 1e6,
        "flatness": flatness,
        "round_trips": seam.count,
    }


async def _several(session: StoreSession, times: int) -> None:
    for _ in range(times):
        await session.commit()


def show(figures: dict[str, float]) -> None:
    """The figures as a table."""
    print("Step commit on Postgres, fsync on; floor = the same rows by hand in one statement")
    print(f"{'':24}{'ours':>12}{'floor':>12}{'ratio':>9}{'aim':>9}")
    ours, floor = figures["commit_us_1"], figures["floor_us_1"]
    print(f"{'one session':24}{ours:>9.0f} us{floor:>9.0f} us{figures['ratio_1']:>9.2f}{1.5:>9}")
    print(f"{'50 sessions at once':24}{figures['commit_us_50']:>9.0f} us")
    print(f"{'10,000 over 10 messages':24}{'':>12}{'':>12}{figures['flatness']:>9.2f}{1.1:>9}")
    print(f"{'statements per commit':24}{'':>12}{'':>12}{figures['round_trips']:>9.0f}{1:>9}")
