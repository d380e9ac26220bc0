"""A family of which every process dies after it has given one answer still comes to the same end."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from helix_agents.domain.pending import PendingFilter
from helix_agents.ports.backend import open_backend
from helix_agents.testing.contracts.executor.family import assert_well_told, story
from helix_agents.testing.workers import Processes
from tests.recovery import conversation_jobs, family_jobs
from tests.recovery.test_crash_matrix import url_in


@pytest.fixture
def processes() -> Iterator[Processes]:
    preload = [conversation_jobs.MODULE, family_jobs.MODULE, "helix_agents.backends.sqlite"]
    with Processes(preload=preload) as processes:
        yield processes


async def test_answers_survive_processes_that_are_killed_after_each_of_them(tmp_path: Path, processes: Processes):
    orders = family_jobs.ORDERS
    ends = [{"url": url_in(tmp_path), "session_id": f"s-{number}"} for number in range(len(orders))]
    job = f"{family_jobs.MODULE}:answer_one"
    for life in range(4):
        lives = [{**end, "order": order, "life": life} for end, order in zip(ends, orders, strict=True)]
        killed = await processes.run(job, lives)
        assert [outcome.was_killed for outcome in killed] == [True] * len(orders), [each.error for each in killed]
    [smooth] = await processes.run(f"{family_jobs.MODULE}:run_smoothly", [{"url": url_in(tmp_path)}])
    assert smooth.error is None
    async with await open_backend(url_in(tmp_path)) as backend:
        expected = await story(backend, "smooth")
        for number in range(len(orders)):
            assert await story(backend, f"s-{number}") == expected
            assert_well_told(await backend.streams.get_all_chunks(f"s-{number}"), f"s-{number}")
        assert (await backend.state.list_pending(PendingFilter())).items == ()
        assert await backend.state.list_orphans() == ()
