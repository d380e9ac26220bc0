"""How soon a bare Postgres notifies another process: the floor for our streams."""

import asyncio
import statistics
import time
from typing import Any

import asyncpg

from helix_agents.backends.postgres.stream_rows import APPEND as FLUSH
from helix_agents.testing.workers import Job, Processes

CHANNEL = "bench"

__all__ = ["FLUSH", "listen", "raw_notify"]


async def listen(job: Job, url: str, count: int) -> list[float]:
    """Milliseconds from sending to hearing each notification."""
    raw = await asyncpg.connect(url)
    heard: list[float] = []
    done = asyncio.Event()

    def hear(_raw: Any, _process: int, _channel: str, sent: object) -> None:
        heard.append((time.monotonic_ns() - int(str(sent))) / 1e6)
        if len(heard) >= count:
            done.set()

    await raw.add_listener(CHANNEL, hear)
    job.report("listening")
    await done.wait()
    await raw.close()
    return heard


async def raw_notify(url: str, *, quick: bool) -> dict[str, float]:
    """A row inserted and a notification sent in one statement, and received in another process."""
    count = 100 if quick else 1_000
    raw = await asyncpg.connect(url)
    await raw.execute("CREATE TABLE bench_rows (id bigserial PRIMARY KEY, body text)")
    with Processes(preload=["postgres_streams"]) as processes:
        hearing = asyncio.create_task(processes.run("postgres_streams:listen", [{"url": url, "count": count}]))
        while not await raw.fetchval("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        for _ in range(count):
            sent = str(time.monotonic_ns())
            await raw.fetchval(
                "WITH r AS (INSERT INTO bench_rows (body) VALUES ($1) RETURNING id)"
                " SELECT pg_notify('bench', $1) FROM r",
                sent,
            )
            await asyncio.sleep(0.005)
        (outcome,) = await hearing
    await raw.close()
    assert outcome.error is None, outcome.error
    found = sorted(outcome.value)
    return {"p50": round(statistics.median(found), 2), "p99": round(found[int(len(found) * 0.99)], 2)}
