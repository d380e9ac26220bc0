"""A parent with children that is cut at every effect of any of them goes on elsewhere as if nothing had happened."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helix_agents.domain.pending import PendingFilter
from helix_agents.ports.backend import open_backend
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.family import assert_well_told, story
from helix_agents.testing.recording import StopAt, prove_replayable
from helix_agents.testing.workers import Processes
from tests.recovery import conversation_jobs, family_jobs, reference_family
from tests.recovery.lives import Conversation, Life
from tests.recovery.reference_family import AGENTS, check_end, go_on
from tests.recovery.test_crash_matrix import SIDES, kill_and_go_on, url_in

# Of parent and children together; which of the children comes first is up to the machine.
EFFECTS = 24

CUTS = [StopAt(effect=number, side=side) for number in range(1, EFFECTS + 1) for side in SIDES]


FAMILY = Conversation(agents=AGENTS, go_on=go_on, check_end=check_end)


async def test_the_family_has_the_effects_that_are_cut(tmp_path: Path):
    life = Life(tmp_path, ManualClock(), FAMILY)
    recorder = await life.live()
    assert len(recorder.kinds) == EFFECTS
    assert await life.check() == set()
    for log in recorder.logs.values():
        await prove_replayable(log)


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: f"{cut.side} {cut.effect}")
async def test_cut_at_an_effect_of_parent_or_child_the_family_goes_on_elsewhere(tmp_path: Path, cut: StopAt):
    clock = ManualClock()
    first, second = Life(tmp_path, clock, FAMILY), Life(tmp_path, clock, FAMILY)
    stopped = await first.live(cut)
    assert stopped.has_stopped
    clock.advance(conversation_jobs.LONGER_THAN_ANY_LEASE_MS)
    recorded = await second.live()
    # A sibling may have been in the middle of its tool when the other one was cut.
    assert await second.check() <= {"ann", "Tides"}
    for log in (*stopped.logs.values(), *recorded.logs.values()):
        await prove_replayable(log)


async def test_cut_again_and_again_the_family_still_arrives(tmp_path: Path):
    clock = ManualClock()
    life = Life(tmp_path, clock, FAMILY)
    lives = 0
    while (await life.live(StopAt(effect=12, side="after"))).has_stopped:
        lives += 1
        clock.advance(conversation_jobs.LONGER_THAN_ANY_LEASE_MS)
        assert lives < EFFECTS
    assert lives >= 1
    await life.check()


# -- real processes, really killed


@pytest.fixture
def processes() -> Iterator[Processes]:
    preload = [conversation_jobs.MODULE, family_jobs.MODULE, "helix_agents.backends.sqlite"]
    with Processes(preload=preload) as processes:
        yield processes


async def test_a_killed_family_is_replaced(tmp_path: Path, processes: Processes):
    deaths: list[dict[str, Any]] = [{"effect": number, "side": "after"} for number in range(4, EFFECTS, 3)]
    deaths += [{"deed": number, "side": side} for number in (1, 2, 3) for side in SIDES]
    await kill_and_go_on(processes, tmp_path, deaths, reference_family)


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


@pytest.mark.chaos
@pytest.mark.timeout(1_800)
async def test_a_family_may_be_killed_at_every_statement(tmp_path: Path, processes: Processes):
    whole = tmp_path / "whole"
    whole.mkdir()
    end = {"url": url_in(whole), "traces": str(whole / "traces"), "story": reference_family.__name__}
    [outcome] = await processes.run(f"{conversation_jobs.MODULE}:converse", [{**end, "life": 0}])
    deaths = [{"statement": number} for number in range(1, outcome.value["statements"] - 20)]
    await kill_and_go_on(processes, tmp_path, deaths, reference_family)
