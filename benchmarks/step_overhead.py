"""What a step of an agent costs besides its model, compared with a bare transaction and with other frameworks.

Run: uv run python benchmarks/step_overhead.py [--quick]

To compare with the other frameworks: uv run --group bench python benchmarks/step_overhead.py [--quick]
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import postgres_steps
from floor import FloorWriter
from peers import Peer, opened_peers, peer_rounds
from stepping import Floor, Steps, WriteSeam, read_raw, stepping, stored_step

LENGTHS = (10, 100, 1_000)
SIDE_BY_SIDE = 100
PEERS = {
    "langgraph": "LangGraph, its own agent",
    "langchain": "LangGraph, LangChain's",
    "pydantic_ai": "Pydantic AI",
    "openai_agents": "OpenAI Agents",
}
AIMS = (
    ("ratio_floor", "SQLite over the floor, 1,000 steps", "<= 3"),
    ("flatness", "SQLite, step 1,000 over step 10", "<= 1.15"),
    ("vs_langgraph_10", "LangGraph over SQLite, 10 steps", ">= 10"),
    ("vs_langgraph_1000", "LangGraph over SQLite, 1,000 steps", ">= 40"),
    ("vs_langchain_10", "the same with LangChain's agent, 10 steps", ""),
    ("vs_langchain_1000", "the same with LangChain's agent, 1,000 steps", ""),
    ("writes_per_step", "state writes per step", "1"),
    ("stream_flushes_per_step", "stream flushes per step beside them", ""),
    ("idle_writes_per_minute", "writes of an idle executor per minute", ""),
    ("resume_ratio_10", "cold resume over a raw read, 10 steps", ""),
    ("resume_ratio_1000", "cold resume over a raw read, 1,000 steps", "<= 4"),
)
WINDOW = 40
IDLE_SECONDS = 20.0

Run = Callable[[int], Awaitable[float]]


class Effort(NamedTuple):
    """How long to measure. A session of another framework that is likely to take longer than `patience` is left out."""

    rounds: int
    resumes: int
    peer_rounds: int
    patience: float


QUICK = Effort(rounds=2, resumes=4, peer_rounds=1, patience=3.0)
THOROUGH = Effort(rounds=9, resumes=15, peer_rounds=5, patience=3600.0)


async def per_step(run: Run, steps: int) -> float:
    """Seconds per step; short sessions are run several times, one after another."""
    sessions = max(1, 100 // steps)
    return sum([await run(steps) for _ in range(sessions)]) / (steps * sessions)


async def per_step_side_by_side(run: Run) -> float:
    """Seconds per step of ten-step sessions that run at the same time."""
    begin = time.perf_counter()
    await asyncio.gather(*(run(10) for _ in range(SIDE_BY_SIDE)))
    return (time.perf_counter() - begin) / (10 * SIDE_BY_SIDE)


async def measure_steps(sides: dict[str, Run], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds per step of every side at every length, in alternation, so that a disturbance affects all sides."""
    found: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in sides}
    for number in range(rounds):
        for name in sides if number % 2 else reversed(sides):
            for steps in LENGTHS:
                found[name][str(steps)].append(await per_step(sides[name], steps))
            found[name]["side_by_side"].append(await per_step_side_by_side(sides[name]))
    return found


async def measure_flatness(ours: Steps, rounds: int) -> float:
    """A late step of a long session relative to an early one of the session that follows immediately."""
    ratios: list[float] = []
    for _ in range(rounds):
        late = (await ours.step_times(1_000))[-WINDOW:]
        early = (await ours.step_times(WINDOW + 10))[5 : 5 + WINDOW]
        ratios.append(statistics.median(late) / statistics.median(early))
    return statistics.median(ratios)


async def measure_resume(folder: Path, steps: int, times: int) -> tuple[float, float, float]:
    """Seconds from `resume` to the model call in an executor that never saw the session, seconds to open the file and
    read the same rows, and the ratio."""
    file = folder / f"resume-{steps}.db"
    # No janitor: it would resume answered sessions if creating all of them takes long.
    async with stepping(f"sqlite:///{file}", janitor_seconds=None) as ours:
        sessions = [await ours.suspended(steps) for _ in range(times + 1)]
    measured: list[tuple[float, float]] = []
    async with stepping(f"sqlite:///{file}", janitor_seconds=None) as ours:
        await ours.resume(sessions.pop(), steps)
        for session_id in sessions:
            raw = read_raw(file, session_id)
            measured.append((await ours.resume(session_id, steps), raw))
    return (
        statistics.median(mine for mine, _ in measured),
        statistics.median(raw for _, raw in measured),
        statistics.median(mine / raw for mine, raw in measured),
    )


async def count_writes(folder: Path, steps: int) -> dict[str, float]:
    """Transactions per step of one session, from its first model call to its last."""
    seam = WriteSeam()
    async with stepping(f"sqlite:///{folder}/counted.db", seam=seam, probe=seam.counts) as ours:
        await ours.run(steps)
        (writes, flushes), (writes_then, flushes_then) = ours.probed[0], ours.probed[-1]
    return {
        "writes_per_step": (writes_then - writes) / (steps - 1),
        "stream_flushes_per_step": (flushes_then - flushes) / (steps - 1),
    }


async def measure_peers(
    ours: dict[str, Steps], peers: dict[str, Peer], effort: Effort
) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    """Microseconds per step of each peer, and its ratio to ours, which runs right before it."""
    costs: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in peers}
    times: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in ours}
    for name, peer in peers.items():
        theirs = await peer.run(3) / 3
        for steps in LENGTHS:
            if theirs * steps > effort.patience:
                continue
            for _ in range(peer_rounds(steps, effort.peer_rounds)):
                mine = {backend: await per_step(each.run, steps) for backend, each in ours.items()}
                theirs = await per_step(peer.run, steps)
                costs[name][f"step_us_{steps}"].append(theirs * 1e6)
                for backend, seconds in mine.items():
                    times[backend][f"vs_{name}_{steps}"].append(theirs / seconds)
    return _medians(costs), _medians(times)


async def measure(effort: Effort) -> dict[str, Any]:
    """All figures by backend, and of the other frameworks by name."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with AsyncExitStack() as opened:
            idle = WriteSeam()
            await opened.enter_async_context(stepping(f"sqlite:///{folder}/idle.db", seam=idle))
            idle_before, idle_since = idle.writes + idle.flushes, time.monotonic()
            ours = {
                "sqlite": await opened.enter_async_context(stepping(f"sqlite:///{folder}/helix.db")),
                "memory": await opened.enter_async_context(stepping("memory://steps")),
            }
            writer = FloorWriter(str(folder / "floor.db"))
            opened.callback(writer.close)
            floor = Floor(writer, await stored_step(folder))
            runs: dict[str, Run] = {"floor": floor.run, **{name: each.run for name, each in ours.items()}}
            for run in runs.values():
                await run(10)
            found = await measure_steps(runs, effort.rounds)
            figures = {name: _compared(found[name], found["floor"]) for name in ours}
            for backend, each in ours.items():
                figures[backend]["flatness"] = await measure_flatness(each, effort.rounds)
            for steps in (10, 1_000):
                mine, raw, ratio = await measure_resume(folder, steps, effort.resumes)
                figures["sqlite"] |= {
                    f"resume_ms_{steps}": mine * 1e3,
                    f"raw_read_ms_{steps}": raw * 1e3,
                    f"resume_ratio_{steps}": ratio,
                }
            counts = await count_writes(folder, 200)
            with warnings.catch_warnings(action="ignore"):
                peers = await opened.enter_async_context(opened_peers(folder))
                costs, times = await measure_peers(ours, peers, effort)
            for backend, compared in times.items():
                figures[backend] |= compared
            await asyncio.sleep(max(0.0, idle_since + IDLE_SECONDS - time.monotonic()))
            idle_writes = idle.writes + idle.flushes - idle_before
            counts["idle_writes_per_minute"] = idle_writes / (time.monotonic() - idle_since) * 60
    figures["postgres"] = await postgres_steps.measure(rounds=effort.peer_rounds, patience=effort.patience)
    figures["floor"] = {f"step_us_{kind}": statistics.median(values) * 1e6 for kind, values in found["floor"].items()}
    return {**figures, **costs, **counts}


def _medians(groups: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    return {name: {kind: statistics.median(each) for kind, each in kinds.items()} for name, kinds in groups.items()}


def _compared(mine: dict[str, list[float]], floor: dict[str, list[float]]) -> dict[str, float]:
    """Microseconds per step, and ratios to the floor of the same round; `ratio_floor` is for a thousand steps."""
    figures: dict[str, float] = {}
    for kind, seconds in mine.items():
        figures[f"step_us_{kind}"] = statistics.median(seconds) * 1e6
        ratio = statistics.median(each / bare for each, bare in zip(seconds, floor[kind], strict=True))
        figures["ratio_floor" if kind == "1000" else f"ratio_floor_{kind}"] = ratio
    return figures


def show(figures: dict[str, Any], peers_missing: list[str]) -> None:
    """The figures as a table."""
    print("A step: one scripted reply, streamed, and one tool call; floor = its bytes in one bare transaction")
    print(f"{'microseconds per step':26}{'10 steps':>11}{'100':>11}{'1,000':>11}{'100 x 10':>11}")
    for name in ("floor", "sqlite", "memory", *PEERS):
        if name in figures:
            costs = [figures[name].get(f"step_us_{kind}") for kind in ("10", "100", "1000", "side_by_side")]
            print(f"{PEERS.get(name, name):26}" + "".join(f"{cost:>11,.0f}" if cost else f"{'':>11}" for cost in costs))
    sqlite = figures["sqlite"]
    print(f"{'':50}{'measured':>10}{'aim':>10}")
    for key, label, aim in AIMS:
        measured = figures.get(key, sqlite.get(key))
        if measured is not None:
            print(f"{label:50}{measured:>10.2f}{aim:>10}")
    postgres_steps.show(figures["postgres"])
    if peers_missing:
        print(f"Left out, as not installed: {', '.join(peers_missing)}. To have them beside us:")
        print("  uv run --group bench python benchmarks/step_overhead.py")


def main() -> None:
    """Measure, print a table, and the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less than a minute")
    figures = asyncio.run(measure(QUICK if parser.parse_args().quick else THOROUGH))
    show(figures, [label for name, label in PEERS.items() if name not in figures])
    print(json.dumps(_rounded(figures)))


def _rounded(value: Any) -> Any:
    return {key: _rounded(each) for key, each in value.items()} if isinstance(value, dict) else round(value, 3)


if __name__ == "__main__":
    main()
