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
CREATE TABLE floor_sessions (
    session_id text COLLATE "C" PRIMARY KEY, key bigint NOT NULL, run_id text NOT NULL, attempt bigint NOT NULL,
    status text NOT NULL, version bigint NOT NULL, step_count bigint NOT NULL, message_count bigint NOT NULL,
    state_count bigint NOT NULL, checkpoint bigint, updated_at bigint NOT NULL, filler text NOT NULL
) WITH (fillfactor = 60);
CREATE TABLE floor_messages (
    id bigint PRIMARY KEY, session_id text COLLATE "C" NOT NULL, created_at bigint NOT NULL, body text NOT NULL
);
CREATE TABLE floor_writes (id bigint PRIMARY KEY, writes text NOT NULL);
CREATE TABLE floor_checkpoints (
    id bigint PRIMARY KEY, session_id text COLLATE "C" NOT NULL, run_id text, step_id text, step_count bigint NOT NULL,
    status text NOT NULL, message_count bigint NOT NULL, state_count bigint NOT NULL, has_writes boolean NOT NULL,
    stream_sequence bigint NOT NULL, source text NOT NULL, created_at bigint NOT NULL
);
"""
_COMMIT = """
WITH s AS (
    UPDATE floor_sessions SET version = version + 1, step_count = $5::bigint,
        message_count = message_count + cardinality($6::text[]), state_count = state_count + 1,
        checkpoint = (key << 32) + version + 1, updated_at = $4::bigint, filler = $9
    WHERE session_id = $1::text AND run_id = $2::text AND attempt = $3
    RETURNING key << 32 AS base, checkpoint, message_count, state_count, status
),
m AS (
    INSERT INTO floor_messages
    SELECT s.base + s.message_count - cardinality($6::text[]) + u.place, $1::text, $4::bigint, u.body
    FROM s, unnest($6::text[]) WITH ORDINALITY AS u (body, place)
),
w AS (INSERT INTO floor_writes SELECT base + state_count, $7::text FROM s)
INSERT INTO floor_checkpoints
SELECT checkpoint, $1::text, $2::text, $8::text, $5::bigint, status, message_count, state_count, true, 0, 'staging',
    $4::bigint
FROM s RETURNING id
"""
# As many bytes as a session's row has in our table besides the columns above.
_FILLER = "x" * 160


class ByHand:
    """The same rows and bytes, in one statement written by hand for this purpose alone."""

    def __init__(self, raw: Any, number: int) -> None:
        self._raw = raw
        self._number = number
        self._id = f"floor-{number}"
        self._run = f"run-{number}"
        self.step = 0

    async def create(self) -> None:
        """Create the session."""
        insert = "INSERT INTO floor_sessions VALUES ($1, $2, $3, 1, 'active', 0, 0, 0, 0, NULL, 0, $4)"
        await self._raw.execute(insert, self._id, self._number, self._run, _FILLER)

    async def commit(self) -> None:
        """Commit the next step: the same objects, encoded the same way."""
        self.step += 1
        bodies = [encode(message).decode() for message in step_messages(self.step)]
        writes = encode(step_writes(self.step)).decode()
        now = time.time_ns() // 1_000_000
        step_id = f"{self._run}.{self.step}"
        await self._raw.fetchrow(_COMMIT, self._id, self._run, 1, now, self.step, bodies, writes, step_id, _FILLER)


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
