"""What a step commit costs, as a ratio to the same rows and bytes written by hand.

Run: uv run python benchmarks/store_commit.py [--quick]
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import redis_commit
from floor import FloorSession, FloorWriter

from helix_agents.backends.sqlite import SQLiteStateStore
from helix_agents.domain.checkpoints import CheckpointMeta
from helix_agents.domain.commits import StartRun, StepCommit
from helix_agents.domain.messages import AssistantMessage, Message, ToolCall, ToolMessage
from helix_agents.domain.records import encode
from helix_agents.domain.runs import Fence
from helix_agents.domain.sessions import CreateSession, SessionState
from helix_agents.domain.writes import Replace, StepWrites
from helix_agents.ports.state_store import SessionStateStore

Commit = Callable[[], Awaitable[None]]


def step_messages(step: int) -> tuple[Message, Message]:
    """One assistant message with a call and its result: about 500 bytes."""
    call = ToolCall(id=f"call_{step}", name="search", arguments={"query": "the tides of the northern sea"})
    reply = AssistantMessage(text="I will look that up. " * 8, tool_calls=(call,), stop_reason="tool_use")
    return reply, ToolMessage(tool_call_id=call.id, tool_name="search", content="A page about tides. " * 7)


def step_writes(step: int) -> StepWrites:
    """One state write: about 100 bytes."""
    return StepWrites(ops=(Replace(key="last", value=f"query {step} " + "x" * 30, tool_call_id=f"call_{step}"),))


def encoded_step(step: int) -> list[bytes]:
    """What a step's messages and state write are stored as."""
    return [*map(encode, step_messages(step)), encode(step_writes(step))]


class StoreSession:
    """A session of our store with a run that commits steps."""

    def __init__(self, store: SessionStateStore, number: int) -> None:
        self._store = store
        self._id = f"session-{number}"
        self._fence = Fence(run_id=f"run-{number}")
        self._state: SessionState
        self.step = 0

    async def create(self) -> None:
        """Create the session and start its run."""
        await self._store.create_session(self._id, CreateSession(agent_type="writer"))
        await self._store.start_run(StartRun(session_id=self._id, run_id=self._fence.run_id))
        self._state = await self._store.load_state(self._id)

    async def fill(self, messages: int) -> None:
        """Give the session a history."""
        while messages > 0:
            batch = [message for step in range(min(500, messages // 2)) for message in step_messages(step)]
            await self._store.append_messages(self._id, batch)
            messages -= len(batch)

    async def commit(self) -> None:
        """Commit the next step."""
        self.step += 1
        await self._store.save_state_and_promote_staging(
            self._id,
            self._state,
            step_messages(self.step),
            CheckpointMeta(step_id=f"{self._fence.run_id}.{self.step}", step_count=self.step),
            commit=StepCommit(fence=self._fence, step=self.step, writes=step_writes(self.step)),
        )


class HandWritten:
    """The same session, written by hand."""

    def __init__(self, writer: FloorWriter, number: int) -> None:
        self._session = FloorSession(writer, number)
        self.step = 0

    async def create(self) -> None:
        """Create the session."""
        await self._session.create()

    async def commit(self) -> None:
        """Commit the next step: the same objects, encoded the same way, then nothing but the transaction."""
        self.step += 1
        bodies = [encode(message).decode() for message in step_messages(self.step)]
        writes = encode(step_writes(self.step)).decode()
        await self._session.commit(self.step, bodies, writes, time.time_ns() // 1_000_000)


async def timed(commits: list[Commit], times: int) -> float:
    """Seconds per commit when every session commits `times` steps, all sessions at once."""

    async def one(commit: Commit) -> None:
        for _ in range(times):
            await commit()

    begin = time.perf_counter()
    await asyncio.gather(*(one(commit) for commit in commits))
    return (time.perf_counter() - begin) / (times * len(commits))


async def pairs(ours: list[Commit], floor: list[Commit], count: int, times: int) -> tuple[float, float, float]:
    """Median seconds per commit of both sides, and the median of their ratio, measured alternately."""
    await timed(ours, times)
    await timed(floor, times)
    measured: list[tuple[float, float]] = []
    for number in range(count):
        # The sides go first alternately, so that neither always meets the other's dirty pages.
        if number % 2:
            measured.append((await timed(ours, times), await timed(floor, times)))
        else:
            theirs = await timed(floor, times)
            measured.append((await timed(ours, times), theirs))
    return (
        statistics.median(mine for mine, _ in measured),
        statistics.median(theirs for _, theirs in measured),
        statistics.median(mine / theirs for mine, theirs in measured),
    )


async def measure(quick: bool) -> dict[str, float]:
    """All figures of this benchmark for SQLite."""
    count, times = (20, 40) if quick else (40, 150)
    with tempfile.TemporaryDirectory() as folder:
        store = await SQLiteStateStore.open(Path(folder) / "store.db")
        writer = FloorWriter(str(Path(folder) / "floor.db"))
        ours = [StoreSession(store, number) for number in range(100)]
        floor = [HandWritten(writer, number) for number in range(1, 101)]
        for session in (*ours, *floor):
            await session.create()
        one, floor_one, ratio_1 = await pairs([ours[0].commit], [floor[0].commit], count, times)
        many, floor_many, ratio_100 = await pairs(
            [session.commit for session in ours], [session.commit for session in floor], count, max(4, times // 10)
        )
        short, long = StoreSession(store, 1000), StoreSession(store, 1001)
        for session, history in ((short, 10), (long, 10_000)):
            await session.create()
            await session.fill(history)
        _, _, flatness = await pairs([long.commit], [short.commit], count, times // 4)
        await store.close()
        writer.close()
    return {
        "commit_us_1": one * 1e6,
        "floor_us_1": floor_one * 1e6,
        "ratio_1": ratio_1,
        "commit_us_100": many * 1e6,
        "floor_us_100": floor_many * 1e6,
        "ratio_100": ratio_100,
        "flatness": flatness,
    }


def main() -> None:
    """Measure, print a table, and the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less than a minute")
    quick = parser.parse_args().quick
    # Imported here, because that module measures with what is defined above.
    import postgres_commit

    figures = {
        "sqlite": asyncio.run(measure(quick)),
        "postgres": asyncio.run(postgres_commit.measure(quick)),
        "redis": asyncio.run(redis_commit.measure(quick, StoreSession, pairs, encoded_step)),
    }
    rounded = {backend: {name: round(value, 3) for name, value in found.items()} for backend, found in figures.items()}
    show("SQLite, synchronous=FULL; floor = the same rows by hand", rounded["sqlite"])
    postgres_commit.show(rounded["postgres"])
    show("Redis; floor = one script call of the plain driver with the same bytes", rounded["redis"])
    print(f"{'round trips of a commit':24}{'':>12}{'':>12}{rounded['redis']['round_trips']:>9.0f}{1:>9}")
    print(json.dumps(rounded))


def show(title: str, figures: dict[str, float]) -> None:
    """The table of one backend."""
    print(f"Step commit on {title}, about 600 bytes")
    print(f"{'':24}{'ours':>12}{'floor':>12}{'ratio':>9}{'aim':>9}")
    for name, label, aim in (("1", "one session", 1.5), ("100", "100 sessions at once", 1.3)):
        ours, floor = figures[f"commit_us_{name}"], figures[f"floor_us_{name}"]
        print(f"{label:24}{ours:>9.0f} us{floor:>9.0f} us{figures[f'ratio_{name}']:>9.2f}{aim:>9}")
    print(f"{'10,000 over 10 messages':24}{'':>12}{'':>12}{figures['flatness']:>9.2f}{1.1:>9}")


if __name__ == "__main__":
    main()
