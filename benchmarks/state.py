"""What shared state costs on SQLite: compared alternately with a bare transaction, a bare read, and LangGraph's store.

Run: uv run --group bench python benchmarks/state.py [--quick]
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw

from helix_agents.capabilities.client import StateClient, open_state
from helix_agents.capabilities.vault.speed import measure_backup

VALUE = {"text": "the tides of the northern sea " * 16, "n": 1}
KEYS = 50
CLIENTS = 8

Act = Callable[[], Awaitable[None]]


class Floor:
    """One fsynced transaction of as many bytes on a bare connection, on a thread, as a store would run it."""

    def __init__(self, path: Path) -> None:
        self._connection = apsw.Connection(str(path))
        self._connection.pragma("journal_mode", "WAL")
        self._connection.pragma("synchronous", "FULL")
        self._connection.execute(
            "CREATE TABLE entries (key TEXT PRIMARY KEY, version INTEGER, value TEXT) WITHOUT ROWID"
        )
        self._text = json.dumps(VALUE)
        self._number = 0

    async def set(self) -> None:
        await asyncio.to_thread(self._set)

    def _set(self) -> None:
        self._number += 1
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute(
            "INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", (f"k{self._number % KEYS}", self._number, self._text)
        )
        self._connection.execute("COMMIT")

    async def get(self) -> None:
        self._number += 1
        self._connection.execute("SELECT * FROM entries WHERE key = ?", (f"k{self._number % KEYS}",)).fetchall()

    def close(self) -> None:
        self._connection.close()


class Ours:
    """The whole capability: policy, version check, history, change event, quota, notice and audit row."""

    def __init__(self, state: StateClient) -> None:
        self._state = state
        self._versions = dict.fromkeys((f"k{number}" for number in range(KEYS)), 0)
        self._number = 0

    async def set(self) -> None:
        self._number += 1
        key = f"k{self._number % KEYS}"
        self._versions[key] = await self._state.shared.set(key, VALUE, expected_version=self._versions[key])

    async def get(self) -> None:
        self._number += 1
        await self._state.gateway.store.find("shared", f"k{self._number % KEYS}")


class LangGraphStore:
    """LangGraph's SQLite store, which keeps no versions, history, quota, events or audit log."""

    def __init__(self, path: Path) -> None:
        try:
            from langgraph.store.sqlite import SqliteStore
        except ModuleNotFoundError as problem:
            raise SystemExit(
                f"There is no {problem.name} to measure beside ours; run it with "
                "`uv run --group bench python benchmarks/state.py`."
            ) from problem

        self._opened = SqliteStore.from_conn_string(str(path))
        self._store: Any = self._opened.__enter__()
        self._store.setup()
        self._number = 0

    async def set(self) -> None:
        self._number += 1
        await asyncio.to_thread(self._store.put, ("shared",), f"k{self._number % KEYS}", VALUE)

    def close(self) -> None:
        self._opened.__exit__(None, None, None)


def at_once(act: Act, clients: int = CLIENTS) -> Act:
    """Several clients of one store that do the same at the same moment, each with its own key."""

    async def acts() -> None:
        await asyncio.gather(*(act() for _ in range(clients)))

    return acts


async def timed(act: Act, times: int) -> float:
    """Median seconds of an act."""
    taken: list[float] = []
    for _ in range(times):
        begin = time.perf_counter()
        await act()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


async def in_turns(acts: dict[str, Act], rounds: int, times: int) -> dict[str, list[float]]:
    """Medians of each act, round by round; the acts take turns in going first."""
    for act in acts.values():
        await timed(act, times)
    taken: dict[str, list[float]] = {name: [] for name in acts}
    order = list(acts)
    for _ in range(rounds):
        for name in order:
            taken[name].append(await timed(acts[name], times))
        order = order[1:] + order[:1]
    return taken


def ratio(taken: dict[str, list[float]], one: str, other: str) -> float:
    """The median of the ratios of two acts in the same rounds."""
    return statistics.median(mine / theirs for mine, theirs in zip(taken[one], taken[other], strict=True))


async def watch_latency(url: str, times: int) -> float:
    """Median seconds from a set until another client sees it."""
    async with open_state(url, agent="reader") as reader, open_state(url, agent="writer") as writer:
        watch = await reader.shared.watch("w")
        began: dict[str, float] = {}
        taken: list[float] = []
        seen = asyncio.Event()

        async def read() -> None:
            async for event in watch:
                taken.append(time.perf_counter() - began[event.key])  # pyright: ignore[reportAttributeAccessIssue]
                seen.set()
                if len(taken) == times:
                    return

        reading = asyncio.create_task(read())
        await asyncio.sleep(0.2)
        for number in range(times):
            seen.clear()
            began[f"w{number}"] = time.perf_counter()
            await writer.shared.set(f"w{number}", number, expected_version=0)
            await asyncio.wait_for(seen.wait(), 10)
        await reading
    return statistics.median(taken)


async def measure(quick: bool) -> dict[str, float]:
    """All figures of this benchmark."""
    rounds, times = (10, 30) if quick else (30, 80)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        url = f"sqlite:///{home}/state.db"
        floor, peer = Floor(home / "floor.db"), LangGraphStore(home / "langgraph.db")
        async with open_state(url, agent="writer") as state:
            ours = Ours(state)
            sets = await in_turns({"ours": ours.set, "floor": floor.set, "langgraph": peer.set}, rounds, times)
            crowd = {"ours": at_once(ours.set), "langgraph": at_once(peer.set)}
            crowds = await in_turns(crowd, rounds, max(5, times // CLIENTS))
            gets = await in_turns({"ours": ours.get, "floor": floor.get}, rounds, times * 20)
            latency = await watch_latency(url, 50 if quick else 200)
        floor.close()
        peer.close()
        speed = await measure_backup(home, 16 if quick else 64)
    return {
        "set_us": statistics.median(sets["ours"]) * 1e6,
        "floor_us": statistics.median(sets["floor"]) * 1e6,
        "langgraph_us": statistics.median(sets["langgraph"]) * 1e6,
        "set_ratio": ratio(sets, "ours", "floor"),
        "vs_langgraph": ratio(sets, "langgraph", "ours"),
        "set_us_of_8_clients": statistics.median(crowds["ours"]) * 1e6 / CLIENTS,
        "vs_langgraph_8_clients": ratio(crowds, "langgraph", "ours"),
        "get_us": statistics.median(gets["ours"]) * 1e6,
        "get_us_ratio": ratio(gets, "ours", "floor"),
        "watch_ms": latency * 1e3,
        "backup_mib_s": speed.create,
        "restore_mib_s": speed.open,
        "raw_aes_gcm_mib_s": speed.raw_aes_gcm,
    }


def main() -> None:
    """Measure, print a table, and the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less than a minute")
    figures = {name: round(value, 3) for name, value in asyncio.run(measure(parser.parse_args().quick)).items()}
    print("Shared state on SQLite, synchronous=FULL, 500 bytes, with history, event, quota, notice and audit row")
    print(f"a durable set over one bare transaction     {figures['set_ratio']:>8.2f}   aim 1.5")
    print(f"LangGraph's SqliteStore.put over ours       {figures['vs_langgraph']:>8.2f}   aim 3")
    print(f"the same with eight clients at once         {figures['vs_langgraph_8_clients']:>8.2f}")
    print(f"a get over a bare read                      {figures['get_us_ratio']:>8.2f}   {figures['get_us']:.0f} us")
    print(f"from a set to who watches, median           {figures['watch_ms']:>8.2f} ms")
    print(
        f"backup and restore, MiB/s                   {figures['backup_mib_s']:>8.0f} / {figures['restore_mib_s']:.0f}"
        f"   (bare AES-256-GCM {figures['raw_aes_gcm_mib_s']:.0f})"
    )
    print(json.dumps({"sqlite": figures}))


if __name__ == "__main__":
    main()
