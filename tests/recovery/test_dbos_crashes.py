"""Workers on DBOS that are killed, frozen or replaced by another deploy: the conversation arrives, and only what was
under way is done again."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import pytest

from helix_agents.ports.backend import open_backend
from helix_agents.testing.recording import EffectKind, StopAt
from helix_agents.testing.workers import Processes
from tests.recovery import dbos_jobs
from tests.recovery.reference_conversation import Traces, check_end
from tests.recovery.test_crash_matrix import CUTS, DEEDS, SIDES, death_at, name_of

CONVERSE = f"{dbos_jobs.MODULE}:converse"
ALREADY_LOADED = (dbos_jobs.MODULE, "helix_agents.backends.sqlite", "helix_agents.runtimes.dbos")


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes(preload=ALREADY_LOADED) as processes:
        yield processes


@pytest.fixture
def bare_processes() -> Iterator[Processes]:
    """Nothing of DBOS is loaded beforehand: what it is told at first depends on the version of the loop."""
    with Processes(preload=[dbos_jobs.MODULE, "helix_agents.backends.sqlite"]) as processes:
        yield processes


async def ends_right(folder: Path) -> set[str]:
    """Everything that must hold at the end; answers the calls whose outcome stayed unknown."""
    async with await open_backend(f"sqlite:///{folder / 'helix.db'}?synchronous=normal") as backend:
        return await check_end(backend, Traces(folder / "traces"))


async def kill_and_go_on(
    processes: Processes,
    folder: Path,
    deaths: list[dict[str, Any]],
    later: dict[str, Any] | None = None,
    meanwhile: Callable[[Path], None] = lambda folder: None,
) -> dict[str, set[str]]:
    """One conversation per death: killed there, gone on with by another worker, checked."""
    unknown: dict[str, set[str]] = {}
    for begin in range(0, len(deaths), 4):
        together = deaths[begin : begin + 4]
        places = [folder / "-".join(f"{key}_{value}" for key, value in death.items()) for death in together]
        for place in places:
            place.mkdir()
        lives = [{"folder": str(place), **death} for place, death in zip(places, together, strict=True)]
        killed = await processes.run(CONVERSE, [{**life, "life": 0} for life in lives])
        assert [outcome.was_killed for outcome in killed] == [True] * len(together), [each.error for each in killed]
        for place in places:
            await asyncio.to_thread(meanwhile, place)
        kept = ("folder", "executor_id")
        ends = [{key: life[key] for key in kept if key in life} for life in lives]
        went_on = await processes.run(CONVERSE, [{**end, **(later or {}), "life": 1} for end in ends])
        assert [outcome.error for outcome in went_on] == [None] * len(together)
        for place in places:
            unknown[place.name] = await ends_right(place)
    return unknown


def done_in(folder: Path) -> int:
    """How often a tool did something, over all lives."""
    return sum(Traces(folder / "traces").counted().values())


async def test_a_killed_worker_is_replaced_at_every_kind_of_effect_and_nothing_finished_is_done_again(
    tmp_path: Path, processes: Processes
):
    deaths = [death_at(kind, side) for kind in get_args(EffectKind) for side in SIDES]
    unknown = await kill_and_go_on(processes, tmp_path, deaths)
    assert set().union(*unknown.values()) == set()
    assert {name: done_in(tmp_path / name) for name in unknown} == dict.fromkeys(unknown, DEEDS)


async def test_a_worker_that_comes_back_under_its_own_id_goes_on_with_its_workflows(
    tmp_path: Path, processes: Processes
):
    deaths = [{**death_at(kind, "before"), "executor_id": "worker-1"} for kind in get_args(EffectKind)]
    unknown = await kill_and_go_on(processes, tmp_path, deaths)
    assert set().union(*unknown.values()) == set()
    assert {name: done_in(tmp_path / name) for name in unknown} == dict.fromkeys(unknown, DEEDS)


async def test_a_worker_killed_inside_a_tool_that_must_not_run_twice_leaves_an_unknown_outcome(
    tmp_path: Path, processes: Processes
):
    unknown = await kill_and_go_on(processes, tmp_path, [{"deed": 4, "side": side} for side in SIDES])
    assert set(map(frozenset, unknown.values())) == {frozenset({"publish_tides"})}


@pytest.mark.parametrize(("effect", "row", "again"), [(9, "__reply__", 0), (10, "look_sun", 1)])
async def test_what_a_power_cut_took_before_its_commit_is_done_again(
    tmp_path: Path, processes: Processes, effect: int, row: str, again: int
):
    """A reply and the result of a tool that may run twice rest unsynced; DBOS remembers that they were there."""

    def cut_the_power(folder: Path) -> None:
        with closing(sqlite3.connect(folder / "helix.db")) as database, database:
            gone = database.execute("DELETE FROM __agents_staging WHERE tool_call_id = ?", (row,))
            assert gone.rowcount == 1

    death = {"effect": effect, "side": "before", "executor_id": "worker-1"}
    unknown = await kill_and_go_on(processes, tmp_path, [death], meanwhile=cut_the_power)
    [(name, left)] = unknown.items()
    assert (left, done_in(tmp_path / name)) == (set(), DEEDS + again)


async def test_a_process_that_starts_with_the_executor_id_of_a_living_one_does_nothing_twice(
    tmp_path: Path, processes: Processes
):
    # The living one stands still before it asks the model, before it runs the batch, and before it commits.
    jobs: list[dict[str, Any]] = []
    for effect in (2, 3, 4):
        folder = tmp_path / str(effect)
        folder.mkdir()
        jobs += [{"folder": str(folder), "effect": effect, "role": role} for role in ("first", "second")]
    outcomes = await processes.run(f"{dbos_jobs.MODULE}:meet", jobs)
    assert [outcome.error for outcome in outcomes] == [None] * len(jobs)
    for effect in (2, 3, 4):
        assert await ends_right(tmp_path / str(effect)) == set()
        assert done_in(tmp_path / str(effect)) == DEEDS


async def test_a_deploy_with_another_loop_goes_on_with_what_the_old_one_left(tmp_path: Path, bare_processes: Processes):
    """Runs that were going, and one that was parked where somebody had to answer."""
    running = [{**death_at(kind, "after"), "executor_id": "worker-1"} for kind in ("ask_model", "commit")]
    unknown = await kill_and_go_on(bare_processes, tmp_path, running, {"version": 2})
    parked = {"folder": str(tmp_path / "parked"), "executor_id": "worker-1"}
    (tmp_path / "parked").mkdir()
    [left] = await bare_processes.run(CONVERSE, [{**parked, "life": 0, "parks": True}])
    [came] = await bare_processes.run(CONVERSE, [{**parked, "life": 1, "version": 2}])
    assert (left.error, came.error) == (None, None)
    unknown["parked"] = await ends_right(tmp_path / "parked")
    assert set().union(*unknown.values()) == set()
    assert {name: done_in(tmp_path / name) for name in unknown} == dict.fromkeys(unknown, DEEDS)


@pytest.mark.chaos
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("cut", CUTS, ids=name_of)
async def test_a_worker_may_be_killed_at_every_boundary(tmp_path: Path, processes: Processes, cut: StopAt):
    unknown = await kill_and_go_on(processes, tmp_path, [{"effect": cut.effect, "side": cut.side}])
    assert set().union(*unknown.values()) == set()
    assert {name: done_in(tmp_path / name) for name in unknown} == dict.fromkeys(unknown, DEEDS)
