"""What a step of an agent costs on Postgres, compared with LangGraph and its Postgres saver in the same run."""

import asyncio
import statistics
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from peers import LangGraph, Peer, peer_rounds
from stepping import stepping

from helix_agents.testing.postgres_service import PostgresService

LENGTHS = (10, 100, 1_000)
AIMS = (
    ("vs_langgraph_10", "LangGraph over us on Postgres, 10 steps", ">= 7"),
    ("vs_langgraph_1000", "LangGraph over us on Postgres, 1,000 steps", ">= 30"),
    ("flatness", "Postgres, step 1,000 over step 10", "<= 1.15"),
)
WINDOW = 40


async def measure(*, rounds: int, patience: float) -> dict[str, float]:
    """Microseconds per step, and the ratio of LangGraph's step to ours, on a server that syncs every commit."""
    service = PostgresService(durable=True)
    await asyncio.to_thread(service.start)
    try:
        async with stepping(service.new_url()) as ours, _langgraph(service.url) as peer:
            found: dict[str, list[float]] = defaultdict(list)
            await ours.run(10)
            theirs = await peer.run(3) / 3 if peer is not None else 0.0
            for steps in LENGTHS:
                for _ in range(peer_rounds(steps, rounds)):
                    mine = await _per_step(ours, steps)
                    found[f"step_us_{steps}"].append(mine * 1e6)
                    if peer is None or theirs * steps > patience:
                        continue
                    theirs = await _per_step(peer, steps)
                    found[f"langgraph_step_us_{steps}"].append(theirs * 1e6)
                    found[f"vs_langgraph_{steps}"].append(theirs / mine)
            for _ in range(max(rounds, 2)):
                # Early steps before and after the late ones, so that a machine that slows down meanwhile affects both.
                before = (await ours.step_times(WINDOW + 10))[5 : 5 + WINDOW]
                late = (await ours.step_times(1_000))[-2 * WINDOW :]
                after = (await ours.step_times(WINDOW + 10))[5 : 5 + WINDOW]
                found["flatness"].append(statistics.median(late) / statistics.median([*before, *after]))
    finally:
        await asyncio.to_thread(service.close)
    return {name: statistics.median(values) for name, values in found.items()}


async def _per_step(side: Peer, steps: int) -> float:
    sessions = max(1, 100 // steps)
    return sum([await side.run(steps) for _ in range(sessions)]) / (steps * sessions)


@asynccontextmanager
async def _langgraph(url: str) -> AsyncIterator[Any]:
    """LangGraph with its Postgres saver, if it is installed."""
    try:
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    except ImportError:
        yield None
        return
    async with AsyncPostgresSaver.from_conn_string(url) as saver:
        await saver.setup()
        yield LangGraph(saver)


def show(figures: dict[str, float]) -> None:
    """The figures as a table."""
    print(f"{'Postgres, fsync on, microseconds per step':42}" + "".join(f"{steps:>11,}" for steps in LENGTHS))
    for name, label in (("step_us", "ours"), ("langgraph_step_us", "LangGraph with its Postgres saver")):
        costs = [figures.get(f"{name}_{steps}") for steps in LENGTHS]
        print(f"{label:42}" + "".join(f"{cost:>11,.0f}" if cost else f"{'':>11}" for cost in costs))
    for key, label, aim in AIMS:
        if key in figures:
            print(f"{label:50}{figures[key]:>10.2f}{aim:>10}")
