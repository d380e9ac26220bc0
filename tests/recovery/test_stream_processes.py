"""A stream on one SQLite file between processes that are killed again and again."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helix_agents.backends.sqlite import SQLiteStreamManager
from helix_agents.testing import stream_jobs
from helix_agents.testing.stream_scenes import STREAM, numbers, texts
from helix_agents.testing.workers import Processes

LAST = 10_000
READERS = 2
KILLS = 12
WATCHED_SECONDS = 2.0


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes(preload=[stream_jobs.MODULE, "helix_agents.backends.sqlite"]) as processes:
        yield processes


async def test_every_number_arrives_once_per_cursor_while_both_ends_are_killed(tmp_path: Path, processes: Processes):
    url = f"sqlite:///{tmp_path / 'helix.db'}"
    chance = random.Random(20)
    got: list[list[int]] = [[] for _ in range(READERS)]
    killed = 0
    for life in range(1, KILLS + 2):
        dies = life <= KILLS
        writer: dict[str, Any] = {"attempt": life, "die_after": chance.randint(50, 400) if dies else None}
        readers: list[dict[str, Any]] = [
            {"cursor": numbers_[-1] if numbers_ else 0, "die_after": chance.randint(50, 150) if dies else None}
            for numbers_ in got
        ]
        outcomes = await processes.run(
            f"{stream_jobs.MODULE}:write_or_read", [{"url": url, "last": LAST, **end} for end in (writer, *readers)]
        )
        assert [outcome.error for outcome in outcomes] == [None] * (1 + READERS)
        killed += sum(outcome.was_killed for outcome in outcomes)
        for mine, outcome in zip(got, outcomes[1:], strict=True):
            assert all(str(number) == text for number, text in outcome.reports)
            mine += [number for number, _ in outcome.reports]
            assert mine == list(range(1, len(mine) + 1))
    assert killed == KILLS * (1 + READERS)
    assert [len(mine) for mine in got] == [LAST] * READERS
    streams = await SQLiteStreamManager.open(tmp_path / "helix.db")
    stored = await streams.get_all_chunks(STREAM)
    assert numbers(stored) == list(range(1, LAST + 1))
    assert texts(stored) == [str(number) for number in range(1, LAST + 1)]
    await streams.close()


async def test_a_reader_that_waits_in_another_process_sends_at_most_two_statements_a_second(
    tmp_path: Path, processes: Processes
):
    url = f"sqlite:///{tmp_path / 'helix.db'}"
    await processes.run(
        f"{stream_jobs.MODULE}:write_or_read", [{"url": url, "last": 10, "attempt": 1, "die_after": None}]
    )
    outcomes = await processes.run(f"{stream_jobs.MODULE}:wait_in_vain", [{"url": url, "seconds": WATCHED_SECONDS}] * 3)
    assert [outcome.error for outcome in outcomes] == [None] * 3
    for outcome in outcomes:
        assert outcome.reports[0] > 0, "what it sends is counted"
        assert outcome.value <= 2


async def test_killed_listeners_leave_no_pipe_behind_once_somebody_rings(tmp_path: Path, processes: Processes):
    url = f"sqlite:///{tmp_path / 'helix.db'}"
    ends = [{"attempt": 1, "die_after": None}, *[{"cursor": 0, "die_after": 3}] * 4]
    await processes.run(f"{stream_jobs.MODULE}:write_or_read", [{"url": url, "last": 100, **end} for end in ends])
    await processes.run(
        f"{stream_jobs.MODULE}:write_or_read", [{"url": url, "last": 200, "attempt": 2, "die_after": None}]
    )
    assert list(tmp_path.glob("*-bells/*")) == []
