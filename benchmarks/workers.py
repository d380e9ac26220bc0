"""How much work several processes do on one Postgres: sessions of twenty steps, all at once.

Run: uv run python benchmarks/workers.py [--quick]
"""

import argparse
import asyncio
import json
import time
from typing import Any

from stepping import Steps

from helix_agents.ports.backend import open_backend
from helix_agents.runtimes.in_process import Executor
from helix_agents.testing.postgres_service import PostgresService
from helix_agents.testing.seams import CountingSeam
from helix_agents.testing.workers import Job, Processes

WORKERS = 4
STEPS = 20
AT_ONCE = 25
"""How many sessions one worker runs at a time."""


async def work(job: Job, url: str, worker: int, sessions: int) -> dict[str, Any]:
    """Run all sessions of this worker; returns the seconds it took and the statements it sent."""
    seam = CountingSeam()
    async with (
        await open_backend(url, seam=seam, pool_size=8) as backend,
        Executor(state=backend.state, streams=backend.streams, usage=backend.usage) as helix,
    ):
        agent = Steps(helix).agent(STEPS)
        left = list(range(sessions))

        async def drive() -> None:
            while left:
                handle = await helix.execute(agent, "go", f"worker-{worker}-session-{left.pop()}")
                await handle.output()

        job.wait_for_the_others()
        seam.reset()
        begin = time.perf_counter()
        await asyncio.gather(*(drive() for _ in range(AT_ONCE)))
        took = time.perf_counter() - begin
        kinds: dict[str, int] = {}
        for statement in seam.statements:
            kind = " ".join(statement.split()[:4])
            kinds[kind] = kinds.get(kind, 0) + 1
        return {"seconds": took, "statements": seam.count, "kinds": kinds}


async def measure(url: str, sessions: int) -> dict[str, Any]:
    """Throughput of all workers together."""
    share = sessions // WORKERS
    with Processes(preload=["workers", "helix_agents.backends.postgres"]) as processes:
        jobs = [{"url": url, "worker": number, "sessions": share} for number in range(WORKERS)]
        outcomes = await processes.run("workers:work", jobs, timeout=3_600)
    for outcome in outcomes:
        assert outcome.error is None, outcome.error
    steps = share * WORKERS * STEPS
    seconds = max(outcome.value["seconds"] for outcome in outcomes)
    statements = sum(outcome.value["statements"] for outcome in outcomes)
    async with await open_backend(url) as backend:
        stored = (await backend.state.list_sessions(limit=1)).total
        orphans = await backend.state.list_orphans()
    assert (stored, orphans) == (share * WORKERS, ())
    return {
        "sessions": share * WORKERS,
        "workers": WORKERS,
        "seconds": round(seconds, 2),
        "steps_per_second": round(steps / seconds),
        "sessions_per_second": round(share * WORKERS / seconds, 1),
        "statements_per_step": round(statements / steps, 2),
        "kinds": outcomes[0].value["kinds"],
    }


def main() -> None:
    """Measure, print a table, and the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less than a minute")
    parser.add_argument("--kinds", action="store_true", help="show which statements were sent how often")
    asked = parser.parse_args()
    with PostgresService(durable=True) as postgres:
        figures = asyncio.run(measure(postgres.new_url(), 80 if asked.quick else 1_000))
    kinds = figures.pop("kinds")
    print(f"{figures['sessions']} sessions of {STEPS} steps, {WORKERS} workers, Postgres with fsync on")
    for name in ("seconds", "steps_per_second", "sessions_per_second", "statements_per_step"):
        print(f"{name.replace('_', ' '):24}{figures[name]:>12}")
    if asked.kinds:
        for kind, count in sorted(kinds.items(), key=lambda item: -item[1]):
            print(f"{count:>8}  {kind}")
    print(json.dumps({"postgres": figures}))


if __name__ == "__main__":
    main()
