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
from helix_agents.testing.receiver import Receiver
from helix_agents.testing.recording import EffectKind
from helix_agents.testing.workers import Processes
from tests.recovery import dbos_jobs, reference_conversation, reference_crew, reference_handover
from tests.recovery.conversation_jobs import conversation_of
from tests.recovery.reference_conversation import Traces
from tests.recovery.talk_ends import check_heard
from tests.recovery.test_crash_matrix import DEEDS, SIDES, death_at

CONVERSE = f"{dbos_jobs.MODULE}:converse"
CREWS = [f"{reference_crew.__name__}:{name}" for name in ("BLOCKING", "NON_BLOCKING")]
STORIES = (reference_conversation.__name__, reference_handover.__name__, *CREWS)

# In how many runs of their own the boundaries of a story are cut: together they take too long for one.
PARTS = 4

ALREADY_LOADED = (dbos_jobs.MODULE, "helix_agents.backends.sqlite", "helix_agents.runtimes.dbos", "httpx2")


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes(preload=ALREADY_LOADED) as processes:
        yield processes


@pytest.fixture
def bare_processes() -> Iterator[Processes]:
    """Nothing of DBOS is loaded beforehand: what it is told at first depends on the version of the loop."""
    with Processes(preload=[dbos_jobs.MODULE, "helix_agents.backends.sqlite"]) as processes:
        yield processes


async def ends_right(
    folder: Path, story: str = reference_conversation.__name__, receiver: Receiver | None = None
) -> set[str]:
    """Everything that must hold at the end; answers the calls whose outcome stayed unknown."""
    async with await open_backend(f"sqlite:///{folder / 'helix.db'}?synchronous=normal") as backend:
        if receiver is not None:
            await check_heard(backend, receiver)
        return await conversation_of(story).check_end(backend, Traces(folder / "traces"))


async def kill_and_go_on(
    processes: Processes,
    folder: Path,
    deaths: list[dict[str, Any]],
    later: dict[str, Any] | None = None,
    meanwhile: Callable[[Path], None] = lambda folder: None,
    story: str = reference_conversation.__name__,
) -> dict[str, set[str]]:
    """One conversation per death: killed there, gone on with by another worker, checked."""
    unknown: dict[str, set[str]] = {}
    async with Receiver() as receiver:
        for begin in range(0, len(deaths), 4):
            together = deaths[begin : begin + 4]
            places = [folder / "-".join(f"{key}_{value}" for key, value in death.items()) for death in together]
            for place in places:
                place.mkdir()
            told = {"story": story, "hook": receiver.url}
            lives = [{"folder": str(place), **told, **death} for place, death in zip(places, together, strict=True)]
            killed = await processes.run(CONVERSE, [{**life, "life": 0} for life in lives])
            assert [outcome.was_killed for outcome in killed] == [True] * len(together), [each.error for each in killed]
            for place in places:
                await asyncio.to_thread(meanwhile, place)
            kept = ("folder", "story", "hook", "executor_id")
            ends = [{key: life[key] for key in kept if key in life} for life in lives]
            went_on = await processes.run(CONVERSE, [{**end, **(later or {}), "life": 1} for end in ends])
            assert [outcome.error for outcome in went_on] == [None] * len(together)
            for place in places:
                unknown[place.name] = await ends_right(place, story, receiver)
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


async def test_a_worker_killed_around_a_handoff_is_replaced_by_one_in_which_the_right_agent_goes_on(
    tmp_path: Path, processes: Processes
):
    # The commit that hands over, and the next agent's first question to its model.
    deaths = [{"effect": number, "side": side} for number in (7, 8) for side in SIDES]
    unknown = await kill_and_go_on(processes, tmp_path, deaths, story=reference_handover.__name__)
    assert set().union(*unknown.values()) == set()


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


async def test_a_run_whose_taker_was_killed_before_it_claimed_it_waits_for_no_more_than_its_lease(
    tmp_path: Path, processes: Processes
):
    job, about = f"{dbos_jobs.MODULE}:take", {"folder": str(tmp_path)}
    [killed] = await processes.run(job, [{**about, "life": 0}])
    assert killed.was_killed
    [found] = await processes.run(job, [{**about, "life": 1}])
    assert (found.error, found.value) == (None, [1, "Quick."])


async def test_a_run_that_has_moved_is_not_taken_back_by_a_process_that_comes_back(
    tmp_path: Path, processes: Processes
):
    job, about = f"{dbos_jobs.MODULE}:move", {"folder": str(tmp_path)}
    [killed] = await processes.run(job, [{**about, "life": 0}])
    assert killed.was_killed
    [moved] = await processes.run(job, [{**about, "life": 1}])
    assert (moved.error, moved.value) == (None, ["Done.", 2])


async def test_a_run_that_waits_for_its_place_is_not_taken_for_lost_where_executors_share_a_dbos(
    tmp_path: Path, processes: Processes
):
    [shared] = await processes.run(f"{dbos_jobs.MODULE}:share", [{"folder": str(tmp_path)}])
    told = {"seen": True, "recovered": 0, "answers": ["Done.", "Quick."], "left": False}
    assert (shared.error, shared.value) == (None, told)


async def test_a_family_goes_on_when_the_process_that_drives_it_is_killed(tmp_path: Path, processes: Processes):
    # The parent's first suspension: one child is done and its result rests, the other one waits for somebody.
    death = {"kind": "commit", "effect": 8, "side": "before"}
    assert await kill_and_go_on(processes, tmp_path, [death], story=CREWS[0]) == {
        "kind_commit-effect_8-side_before": set()
    }


@pytest.mark.parametrize(("effect", "row", "again"), [(9, "__reply__%", 0), (10, "result:look_sun", 1)])
async def test_what_a_power_cut_took_before_its_commit_is_done_again(
    tmp_path: Path, processes: Processes, effect: int, row: str, again: int
):
    """A reply and the result of a tool that may run twice rest unsynced; DBOS remembers that they were there."""

    def cut_the_power(folder: Path) -> None:
        with closing(sqlite3.connect(folder / "helix.db")) as database, database:
            gone = database.execute("DELETE FROM __agents_staging WHERE tool_call_id LIKE ?", (row,))
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
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(PARTS), ids=lambda part: f"part {part + 1} of {PARTS}")
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.rpartition(".")[2])
async def test_a_worker_may_be_killed_at_every_boundary(
    tmp_path: Path, processes: Processes, story: str, part: int, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "whole").mkdir()
    [whole] = await processes.run(CONVERSE, [{"folder": str(tmp_path / "whole"), "life": 0, "story": story}])
    assert whole.error is None
    deaths: list[dict[str, Any]] = [
        {at: number, "side": side}
        for at, count in (("effect", whole.value["effects"]), ("deed", whole.value["deeds"]))
        for number in range(1, count + 1)
        for side in SIDES
    ]
    mine = deaths[part::PARTS]
    unknown = await kill_and_go_on(processes, tmp_path, mine, story=story)
    if story == reference_conversation.__name__:
        between = [name for name in unknown if name.startswith("effect")]
        assert {name: (unknown[name], done_in(tmp_path / name)) for name in between} == dict.fromkeys(
            between, (set(), DEEDS)
        )
    with capsys.disabled():
        cut, left = f"{len(mine)} of {len(deaths)} boundaries", sum(map(bool, unknown.values()))
        print(f"\n{story}: cut at {cut}, {left} with unknown outcomes")
