"""A conversation that agents hand to each other, cut at every effect and in the middle of its handoffs, goes on in
another process with the right agent, and every handoff happens once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from helix_agents.ports.backend import open_backend
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.recording import EffectKind, Side, StopAt, prove_replayable
from helix_agents.testing.workers import Processes
from tests.recovery import conversation_jobs, reference_handover
from tests.recovery.lives import Conversation, Life
from tests.recovery.reference_conversation import Traces
from tests.recovery.reference_handover import AGENTS, check_end, go_on
from tests.recovery.test_crash_matrix import kill_and_go_on, url_in

SIDES: tuple[Side, ...] = get_args(Side)

EFFECTS: tuple[EffectKind, ...] = (
    # The first agent, up to where it waits for somebody; what it hands over is not yet handed over.
    *("open", "ask_model", "run_batch", "commit"),
    # The answer, the handoff in its commit, and the second agent, which hands back.
    *("open", "run_batch", "commit"),
    *("ask_model", "run_batch", "commit"),
    # The first agent again.
    *("ask_model", "run_batch", "commit"),
    *("ask_model", "commit"),
    # The second turn. A handoff alone needs no effect but its commit.
    *("open", "ask_model", "commit"),
    *("ask_model", "run_batch", "commit"),
    *("ask_model", "commit"),
)

CUTS = [StopAt(effect=number, side=side) for number in range(1, len(EFFECTS) + 1) for side in SIDES]

CONVERSATION = Conversation(agents=AGENTS, go_on=go_on, check_end=check_end)


def name_of(cut: StopAt) -> str:
    return f"{cut.side} {cut.effect} {EFFECTS[cut.effect - 1]}"


async def test_the_conversation_has_the_effects_that_are_cut(tmp_path: Path):
    life = Life(tmp_path, ManualClock(), CONVERSATION)
    recorder = await life.live()
    assert tuple(recorder.kinds) == EFFECTS
    assert await life.check() == set()
    for log in recorder.logs.values():
        await prove_replayable(log)


@pytest.mark.parametrize("cut", CUTS, ids=name_of)
async def test_cut_at_an_effect_the_agent_that_has_the_conversation_goes_on_elsewhere(tmp_path: Path, cut: StopAt):
    clock = ManualClock()
    first, second = Life(tmp_path, clock, CONVERSATION), Life(tmp_path, clock, CONVERSATION)
    stopped = await first.live(cut)
    assert stopped.has_stopped
    clock.advance(conversation_jobs.LONGER_THAN_ANY_LEASE_MS)
    recorded = await second.live()
    assert await second.check() == set()
    for log in (*stopped.logs.values(), *recorded.logs.values()):
        await prove_replayable(log)


# -- real processes, really killed


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes(preload=[conversation_jobs.MODULE, "helix_agents.backends.sqlite", "httpx2"]) as processes:
        yield processes


async def test_a_process_killed_at_a_statement_is_replaced_and_the_conversation_is_in_the_right_hands(
    tmp_path: Path, processes: Processes
):
    story = reference_handover.__name__
    (tmp_path / "whole").mkdir()
    end = {"url": url_in(tmp_path / "whole"), "traces": str(tmp_path / "whole" / "traces"), "story": story}
    [whole] = await processes.run(f"{conversation_jobs.MODULE}:converse", [{**end, "life": 0}])
    assert whole.error is None
    async with await open_backend(end["url"]) as backend:
        assert await check_end(backend, Traces(tmp_path / "whole" / "traces")) == set()
    deaths: list[dict[str, Any]] = [{"statement": number} for number in range(1, whole.value["statements"] + 1, 5)]
    unknown = await kill_and_go_on(processes, tmp_path, deaths, story)
    assert len(unknown) == len(deaths)
