"""A parent with children and a companion that is cut or killed at any effect of any of them goes on elsewhere: no child
begins anew, nothing is done or told twice, and nobody is left behind."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from helix_agents.testing.clock import ManualClock
from helix_agents.testing.recording import EffectKind, StopAt, prove_replayable
from helix_agents.testing.workers import Processes
from tests.recovery import conversation_jobs, reference_crew
from tests.recovery.lives import Conversation, Life
from tests.recovery.reference_crew import BLOCKING, NON_BLOCKING, ONCE
from tests.recovery.test_crash_matrix import SIDES, kill_and_go_on, url_in

# Of everybody together; where they are side by side, which comes first is up to the machine.
EFFECTS = 48
CUTS = [StopAt(effect=number, side=side) for number in range(1, EFFECTS + 1) for side in SIDES]
CREWS = {"blocking": BLOCKING, "non_blocking": NON_BLOCKING}
STORIES = [f"{reference_crew.__name__}:{name}" for name in ("BLOCKING", "NON_BLOCKING")]
# Room for a commit of everybody who is at work at the same time.
LIFE = 16

crews = pytest.mark.parametrize("crew", CREWS.values(), ids=CREWS)
stories = pytest.mark.parametrize("story", STORIES, ids=CREWS)


@crews
async def test_the_crew_has_the_effects_that_are_cut(tmp_path: Path, crew: Conversation):
    life = Life(tmp_path, ManualClock(), crew)
    recorder = await life.live()
    assert len(recorder.kinds) == EFFECTS
    assert await life.check() == set()
    for log in recorder.logs.values():
        await prove_replayable(log)


@crews
@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: f"{cut.side} {cut.effect}")
async def test_cut_at_any_effect_the_crew_goes_on_elsewhere(tmp_path: Path, cut: StopAt, crew: Conversation):
    clock = ManualClock()
    first, second = Life(tmp_path, clock, crew), Life(tmp_path, clock, crew)
    stopped = await first.live(cut)
    assert stopped.has_stopped
    clock.advance(conversation_jobs.LONGER_THAN_ANY_LEASE_MS)
    recorded = await second.live()
    # One of them may have been in the middle of its tool when another one was cut.
    assert await second.check() <= ONCE
    for log in (*stopped.logs.values(), *recorded.logs.values()):
        await prove_replayable(log)


@crews
async def test_cut_again_and_again_the_crew_still_arrives(tmp_path: Path, crew: Conversation):
    clock = ManualClock()
    life = Life(tmp_path, clock, crew)
    lives = 0
    while (await life.live(StopAt(effect=LIFE, side="after"))).has_stopped:
        lives += 1
        clock.advance(conversation_jobs.LONGER_THAN_ANY_LEASE_MS)
        assert lives < EFFECTS
    assert lives >= 2
    await life.check()


# -- real processes, really killed


@pytest.fixture
def processes() -> Iterator[Processes]:
    preload = [conversation_jobs.MODULE, reference_crew.__name__, "helix_agents.backends.sqlite"]
    with Processes(preload=preload) as processes:
        yield processes


# The effect of each kind at which parent, children and companion are most likely to be at work together.
BUSY: dict[EffectKind, int] = {"open": 4, "ask_model": 5, "run_batch": 5, "commit": 5}


@stories
async def test_a_killed_crew_is_replaced_at_every_kind_of_effect(tmp_path: Path, processes: Processes, story: str):
    deaths: list[dict[str, Any]] = [
        {"kind": kind, "effect": BUSY[kind], "side": side} for kind in get_args(EffectKind) for side in SIDES
    ]
    unknown = await kill_and_go_on(processes, tmp_path, deaths, story)
    assert set().union(*unknown.values()) <= ONCE


@pytest.mark.chaos
@pytest.mark.timeout(1_800)
@stories
async def test_a_crew_may_be_killed_at_every_boundary_every_deed_and_every_statement(
    tmp_path: Path, processes: Processes, story: str, capsys: pytest.CaptureFixture[str]
):
    whole = tmp_path / "whole"
    whole.mkdir()
    end = {"url": url_in(whole), "traces": str(whole / "traces"), "story": story}
    [outcome] = await processes.run(f"{conversation_jobs.MODULE}:converse", [{**end, "life": 0}])
    tables: dict[str, list[dict[str, Any]]] = {
        "effect": [{"effect": cut.effect, "side": cut.side} for cut in CUTS],
        "deed": [{"deed": number, "side": side} for number in range(1, outcome.value["deeds"] + 1) for side in SIDES],
        # A process that is left in peace may need some statements less: the last ones are not killed at.
        "statement": [{"statement": number} for number in range(1, outcome.value["statements"] - 40, 3)],
    }
    for kind, deaths in tables.items():
        unknown = await kill_and_go_on(processes, tmp_path, deaths, story)
        assert set().union(*unknown.values()) <= ONCE
        with capsys.disabled():
            print(f"\n{kind}: {len(deaths)} kills, {sum(map(bool, unknown.values()))} with an unknown outcome")
