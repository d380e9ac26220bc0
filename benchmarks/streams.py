"""What a stream costs: how soon another process sees a chunk, how many flushes tokens take, and what waiting costs.

Run: uv run python benchmarks/streams.py [--quick]
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import postgres_streams
from redis.asyncio import Redis

from helix_agents.domain.chunks import TextDelta
from helix_agents.ports.backend import open_backend
from helix_agents.testing.postgres_service import PostgresService
from helix_agents.testing.redis_service import RedisService
from helix_agents.testing.seams import CountingSeam
from helix_agents.testing.workers import Job, Processes

STREAM, RUN = "session-1", "run-1"
# The statement of each backend that every flush sends exactly once.
ONCE_PER_FLUSH = ("COMMIT", "append", "atomic append", postgres_streams.FLUSH)
BACKENDS = {
    "memory": "memory://streams",
    "sqlite": "sqlite:///{folder}/helix.db",
    "postgres": "{postgres}",
    "redis": "{redis}",
}


def stamped() -> TextDelta:
    """A delta that carries the time at which it was written, on the clock that all processes of a machine share."""
    return TextDelta(session_id=STREAM, run_id=RUN, agent_type="writer", step=1, delta=str(time.monotonic_ns()))


# ---------------------------------------------------------------------------------------------------------
# What readers do, in this process or in another
# ---------------------------------------------------------------------------------------------------------


async def follow(job: Job | None, url: str) -> list[float]:
    """Read to the end; returns the milliseconds from writing to reading of each chunk written since this started."""
    async with await open_backend(url) as backend:
        while (reader := await backend.streams.create_reader(STREAM)) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        began = time.monotonic_ns()
        found = [(time.monotonic_ns(), int(chunk.delta)) async for chunk in reader]
        return [(read - written) / 1e6 for read, written in found if written >= began or written == found[-1][1]]


async def follow_raw(job: Job, url: str, chunks: int) -> list[float]:
    """The same for a bare Redis stream, read by the plain driver with blocking reads."""
    async with Redis.from_url(url) as client:
        found: list[float] = []
        last = b"0"
        while len(found) < chunks:
            ((_, entries),) = await client.xread({"raw": last}, block=5_000)
            found += [(time.monotonic_ns() - int(fields[b"at"])) / 1e6 for _, fields in entries]
            last = entries[-1][0]
        return found


async def wait_in_vain(job: Job | None, url: str, seconds: float) -> dict[str, float]:
    """Wait at the end of a stream that no process writes to; returns the processor time and store calls used."""
    seam = CountingSeam()
    async with await open_backend(url, seam=seam) as backend:
        reader = await backend.streams.create_reader(STREAM)
        assert reader is not None
        waiting = asyncio.ensure_future(anext(reader))
        await asyncio.sleep(0.2)
        seam.reset()
        used = time.process_time()
        await asyncio.sleep(seconds)
        figures = {
            "idle_cpu_percent": round((time.process_time() - used) / seconds * 100, 3),
            "waiting_statements_per_second": round(seam.count / seconds, 2),
        }
        waiting.cancel()
        return figures


# ---------------------------------------------------------------------------------------------------------
# What is measured
# ---------------------------------------------------------------------------------------------------------


async def delays(url: str, processes: Processes | None, *, chunks: int, flush: bool) -> dict[str, float]:
    """Milliseconds from writing to reading: each chunk flushed by itself, or as the writer's buffer releases them."""
    async with await open_backend(url) as backend:
        await backend.streams.delete_stream(STREAM)
        writer = await backend.streams.create_writer(STREAM, RUN, "writer")
        reading = asyncio.create_task(read(processes, url))
        await asyncio.sleep(1.0 if processes else 0.05)
        for _ in range(chunks):
            await writer.write(stamped())
            if flush:
                await writer.flush()
            await asyncio.sleep(0.005)
        await writer.close()
        await backend.streams.end_stream(STREAM, RUN, status="completed")
        found = sorted(await reading)
    return {"p50": round(statistics.median(found), 2), "p99": round(found[int(len(found) * 0.99)], 2)}


async def raw_delays(url: str, processes: Processes, chunks: int) -> dict[str, float]:
    """What XADD and a blocking XREAD in another process take by themselves."""
    async with Redis.from_url(url) as client:
        reading = asyncio.create_task(processes.run("streams:follow_raw", [{"url": url, "chunks": chunks}]))
        await asyncio.sleep(1.0)
        for _ in range(chunks):
            await client.xadd("raw", {"at": time.monotonic_ns()})
            await asyncio.sleep(0.005)
        (outcome,) = await reading
    assert outcome.error is None, outcome.error
    found = sorted(outcome.value)
    return {"p50": round(statistics.median(found), 2), "p99": round(found[int(len(found) * 0.99)], 2)}


async def read(processes: Processes | None, url: str) -> list[float]:
    """Read the stream in another process, or in this one if the data cannot leave it."""
    if processes is None:
        return await follow(None, url)
    (outcome,) = await processes.run("streams:follow", [{"url": url}])
    assert outcome.error is None, outcome.error
    return outcome.value


async def flushes(url: str) -> int:
    """How many flushes 1,000 deltas over one second cost."""
    seam = CountingSeam()
    async with await open_backend(url, seam=seam) as backend:
        await backend.streams.delete_stream(STREAM)
        writer = await backend.streams.create_writer(STREAM, RUN, "writer")
        seam.reset()
        started = time.monotonic()
        for n in range(1_000):
            await writer.write(stamped())
            await asyncio.sleep(max(0.0, started + (n + 1) / 1_000 - time.monotonic()))
        await writer.close()
        return sum(statement in ONCE_PER_FLUSH for statement in seam.statements)


async def throughput(url: str, chunks: int) -> int:
    """Chunks per second that one writer stores if nothing slows it down."""
    async with await open_backend(url) as backend:
        await backend.streams.delete_stream(STREAM)
        writer = await backend.streams.create_writer(STREAM, RUN, "writer")
        started = time.monotonic()
        for n in range(chunks):
            await writer.write(stamped())
            if n % 64 == 0:
                await asyncio.sleep(0)
        await writer.close()
        return round(chunks / (time.monotonic() - started))


async def waiting(url: str, processes: Processes | None, seconds: float) -> dict[str, float]:
    """What a reader costs while nothing happens."""
    async with await open_backend(url) as backend:
        await backend.streams.delete_stream(STREAM)
        await backend.streams.create_writer(STREAM, RUN, "writer")
        if processes is None:
            return await wait_in_vain(None, url, seconds)
        (outcome,) = await processes.run("streams:wait_in_vain", [{"url": url, "seconds": seconds}])
        assert outcome.error is None, outcome.error
        return outcome.value


async def measure(name: str, url: str, *, quick: bool) -> dict[str, Any]:
    """All figures of one backend; its readers run in another process if its data can be read there."""
    with Processes(preload=["streams"]) as other:
        processes = other if name != "memory" else None
        chunks = 100 if quick else 1_000
        raw = await raw_delays(url, other, chunks) if name == "redis" else None
        return {
            "raw_latency_ms": raw,
            "latency_ms": await delays(url, processes, chunks=chunks, flush=True),
            "buffered_latency_ms": await delays(url, processes, chunks=chunks, flush=False),
            "flushes_per_1000_deltas": await flushes(url),
            "chunks_per_second": await throughput(url, 5_000 if quick else 50_000),
            **await waiting(url, processes, 2.0 if quick else 10.0),
        }


def raw(figures: dict[str, Any], which: str) -> str:
    """What the technology takes by itself, if that was measured."""
    found = figures["raw_latency_ms"]
    return "" if found is None else f"{found[which]} ms"


def main() -> None:
    """Measure, print a table, and the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less than a minute")
    quick = parser.parse_args().quick
    figures: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder, PostgresService() as postgres, RedisService() as redis:
        for name, url in BACKENDS.items():
            at = url.format(folder=Path(folder), postgres=postgres.new_url(), redis=redis.url)
            figures[name] = asyncio.run(measure(name, at, quick=quick))
        # What the server itself takes to notify another process, without any of our code around it.
        figures["postgres"]["raw_notify_ms"] = asyncio.run(postgres_streams.raw_notify(postgres.url, quick=quick))
    rows = {
        "stored and seen elsewhere, p50 (aim < 10 ms)": lambda f: f"{f['latency_ms']['p50']} ms",
        "stored and seen elsewhere, p99": lambda f: f"{f['latency_ms']['p99']} ms",
        "told by the bare server, p50": lambda f: _ms(f.get("raw_notify_ms"), "p50"),
        "told by the bare server, p99": lambda f: _ms(f.get("raw_notify_ms"), "p99"),
        "the same by XADD and XREAD of the plain driver, p50": lambda f: raw(f, "p50"),
        "the same by XADD and XREAD of the plain driver, p99": lambda f: raw(f, "p99"),
        "through the buffer of 25 ms, p50": lambda f: f"{f['buffered_latency_ms']['p50']} ms",
        "through the buffer of 25 ms, p99": lambda f: f"{f['buffered_latency_ms']['p99']} ms",
        "flushes for 1,000 deltas in a second (at most 45)": lambda f: f["flushes_per_1000_deltas"],
        "chunks a second, unpaced": lambda f: f"{f['chunks_per_second']:,}",
        "processor use of a waiting reader": lambda f: f"{f['idle_cpu_percent']} %",
        "statements a second of a waiting reader (at most 2)": lambda f: f["waiting_statements_per_second"],
    }
    print(f"{'':54}" + "".join(f"{name:>12}" for name in figures))
    for label, show in rows.items():
        print(f"{label:54}" + "".join(f"{show(found)!s:>12}" for found in figures.values()))
    print(json.dumps(figures))


def _ms(figures: dict[str, float] | None, name: str) -> str:
    return f"{figures[name]} ms" if figures is not None else ""


if __name__ == "__main__":
    main()
