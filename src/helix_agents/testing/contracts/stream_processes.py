"""The contract of several processes on one stream: raced, and killed with SIGKILL on both ends."""

from collections.abc import Iterator
from typing import Any

import pytest

from helix_agents.ports.streams import StreamManager
from helix_agents.testing import stream_jobs
from helix_agents.testing.contracts.processes import processes_for
from helix_agents.testing.contracts.stream_handles import StreamsContract
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.stream_scenes import STREAM, numbers, texts
from helix_agents.testing.workers import Outcome, Processes

PROCESSES = 6
LAST = 1_500
LIVES = 8
"""How often both ends are killed before they may finish."""


class StreamProcessesContract(StreamsContract):
    """Writers and readers in their own processes."""

    @pytest.fixture
    def processes(self, store_url: str) -> Iterator[Processes]:
        with processes_for(store_url, stream_jobs.MODULE) as processes:
            yield processes

    @proves("ownership.one-writer-across-processes")
    async def test_of_many_processes_the_last_to_become_the_writer_can_write(
        self, streams: StreamManager, store_url: str, processes: Processes
    ):
        jobs: list[dict[str, Any]] = [{"url": store_url, "who": who, "times": 30} for who in range(PROCESSES)]
        outcomes = await processes.run(f"{stream_jobs.MODULE}:race_to_write", jobs)
        assert [outcome.error for outcome in outcomes] == [None] * PROCESSES
        stored = [outcome.value for outcome in outcomes]
        # One is the last; a writer that was done before the next one came has written everything too.
        assert 30 in stored
        chunks = await streams.get_all_chunks(STREAM)
        assert numbers(chunks) == list(range(1, len(chunks) + 1))
        assert sorted(texts(chunks)) == sorted(f"{who}.{n}" for who, count in enumerate(stored) for n in range(count))

    @proves("numbers.exact-across-kills")
    async def test_killed_readers_and_writers_lose_and_repeat_nothing(
        self, streams: StreamManager, store_url: str, processes: Processes
    ):
        got: list[list[Any]] = []
        for life in range(1, LIVES + 1):
            dies = life < LIVES
            writer = {"attempt": life, "die_after": 2 + life * 4 if dies else None}
            reader = {"cursor": len(got), "die_after": 5 + life * 3 if dies else None}
            told = await self._both_ends(processes, store_url, writer, reader, dies=dies)
            got += told
            assert [number for number, _ in got] == list(range(1, len(got) + 1))
        assert got == [[n, str(n)] for n in range(1, LAST + 1)]
        assert texts(await streams.get_all_chunks(STREAM)) == [text for _, text in got]

    async def _both_ends(
        self, processes: Processes, url: str, writer: dict[str, Any], reader: dict[str, Any], *, dies: bool
    ) -> list[Any]:
        """Let a writer and a reader live at the same time; returns what the reader reported."""
        both = [{"url": url, "last": LAST, **writer}, {"url": url, "last": LAST, **reader}]
        outcomes = await processes.run(f"{stream_jobs.MODULE}:write_or_read", both)
        for outcome in outcomes:
            assert outcome.error is None, outcome.error
            assert _ended_as_planned(outcome, dies=dies)
        return outcomes[1].reports


def _ended_as_planned(outcome: Outcome, *, dies: bool) -> bool:
    return outcome.was_killed if dies else outcome.signal is None
