"""A parent with a companion that is cut at every effect of either goes on elsewhere: nothing is lost or done twice."""

from pathlib import Path
from typing import get_args

import pytest

from helix_agents.agent.companions import CompanionMode
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.recording import StopAt, prove_replayable
from tests.recovery import conversation_jobs
from tests.recovery.lives import Life
from tests.recovery.reference_household import Household

# Of parent and companion together; where they are side by side, which comes first is up to the machine.
EFFECTS = 27
MODES: tuple[CompanionMode, ...] = get_args(CompanionMode)

# After one effect is before the next.
CUTS = [StopAt(effect=1, side="before"), *(StopAt(effect=number, side="after") for number in range(1, EFFECTS + 1))]


@pytest.mark.parametrize("mode", MODES)
async def test_the_household_has_the_effects_that_are_cut(tmp_path: Path, mode: CompanionMode):
    life = Life(tmp_path, ManualClock(), Household(mode).conversation)
    recorder = await life.live()
    assert len(recorder.kinds) == EFFECTS
    assert await life.check() == set()
    for log in recorder.logs.values():
        await prove_replayable(log)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: f"{cut.side} {cut.effect}")
async def test_cut_at_an_effect_of_parent_or_companion_the_household_goes_on_elsewhere(
    tmp_path: Path, cut: StopAt, mode: CompanionMode
):
    clock = ManualClock()
    first, second = (Life(tmp_path, clock, Household(mode).conversation) for _ in range(2))
    stopped = await first.live(cut)
    assert stopped.has_stopped
    clock.advance(conversation_jobs.LONGER_THAN_ANY_LEASE_MS)
    recorded = await second.live()
    unknown = await second.check()
    # A companion that stands on its own may have been in the middle of its tool when its parent was cut.
    assert mode == "non_blocking" or not unknown
    for log in (*stopped.logs.values(), *recorded.logs.values()):
        await prove_replayable(log)


@pytest.mark.parametrize("mode", MODES)
async def test_cut_again_and_again_the_household_still_arrives(tmp_path: Path, mode: CompanionMode):
    clock = ManualClock()
    lives = 0
    # Room for a commit of each of the two, however their effects come to follow one another.
    cut = StopAt(effect=9, side="after")
    while (await Life(tmp_path, clock, Household(mode).conversation).live(cut)).has_stopped:
        lives += 1
        clock.advance(conversation_jobs.LONGER_THAN_ANY_LEASE_MS)
        assert lives < EFFECTS
    assert lives >= 2
    await Life(tmp_path, clock, Household(mode).conversation).check()
