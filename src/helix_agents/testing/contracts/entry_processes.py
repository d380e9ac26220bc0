"""The contract of entries that several processes use at the same time, some of which are killed."""

import asyncio
from collections.abc import Iterator

import pytest

from helix_agents.ports.entries import EntryStore
from helix_agents.testing import entry_jobs
from helix_agents.testing.contracts.entry_handles import EntriesContract
from helix_agents.testing.contracts.processes import answers_of, processes_for
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.workers import Processes

PROCESSES = 8
TIMES = 100
PATIENCE = 20.0


class EntryProcessesContract(EntriesContract):
    """Many processes."""

    @pytest.fixture
    def processes(self, store_url: str) -> Iterator[Processes]:
        with processes_for(store_url, entry_jobs.MODULE) as processes:
            yield processes

    @proves("entries.increments-across-processes")
    async def test_no_increment_of_many_processes_is_lost(
        self, store: EntryStore, store_url: str, processes: Processes
    ) -> None:
        function = f"{entry_jobs.MODULE}:increment"
        given = {"url": store_url, "key": "count", "times": TIMES}
        answers_of(await processes.run(function, [given] * PROCESSES))
        found = await store.find("shared", "count")
        assert found is not None
        assert (found.value, found.version) == (str(PROCESSES * TIMES), PROCESSES * TIMES)
        dying = [{**given, "key": "killed", "die_after": 40 + 37 * number} for number in range(PROCESSES)]
        outcomes = await processes.run(function, dying)
        assert all(outcome.was_killed for outcome in outcomes)
        answered = sum(len(outcome.reports) for outcome in outcomes)
        found = await store.find("shared", "killed")
        assert found is not None
        # A process may die between its commit and its report.
        assert answered <= int(found.value or "0") <= answered + PROCESSES
        assert found.version == int(found.value or "0")
        told = await store.list_events(0, scope="shared", prefix="killed", limit=10_000)
        assert [event.version for event in told.events] == list(range(1, found.version + 1))

    @proves("entries.woken-across-processes")
    async def test_a_commit_of_another_process_wakes_who_listens(
        self, store: EntryStore, store_url: str, processes: Processes
    ) -> None:
        async with store.listen() as waiting:
            heard = asyncio.ensure_future(waiting.wait(PATIENCE))
            answers_of(await processes.run(f"{entry_jobs.MODULE}:set_once", [{"url": store_url, "key": "k"}]))
            assert await heard
