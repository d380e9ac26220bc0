"""A conversation that is cut at every effect goes on in another process as if nothing had happened."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from helix_agents.ports.backend import open_backend
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.receiver import Receiver
from helix_agents.testing.recording import (
    EffectKind,
    Side,
    StopAt,
    prove_replayable,
)
from helix_agents.testing.workers import Processes
from tests.recovery import conversation_jobs, reference_conversation
from tests.recovery.lives import Conversation, Life
from tests.recovery.reference_conversation import AGENT, Traces, check_end, go_on
from tests.recovery.talk_ends import check_heard

SIDES: tuple[Side, ...] = get_args(Side)

EFFECTS: tuple[EffectKind, ...] = (
    # The first turn, up to where it waits for somebody.
    *("open", "ask_model", "run_batch", "commit"),
    # The answers, another step, and the result.
    *("open", "run_batch", "commit"),
    *("ask_model", "run_batch", "commit"),
    *("ask_model", "run_batch", "commit"),
    # The second turn.
    *("open", "ask_model", "run_batch", "commit"),
    *("ask_model", "run_batch", "commit"),
)
DEEDS = 7

CUTS = [StopAt(effect=number, side=side) for number in range(1, len(EFFECTS) + 1) for side in SIDES]


def name_of(cut: StopAt) -> str:
    return f"{cut.side} {cut.effect} {EFFECTS[cut.effect - 1]}"


def url_in(folder: Path) -> str:
    return f"sqlite:///{folder / 'helix.db'}?synchronous=normal"


CONVERSATION = Conversation(agents=[AGENT], go_on=go_on, check_end=check_end)


async def test_the_reference_conversation_has_the_effects_that_are_cut(tmp_path: Path):
    life = Life(tmp_path, ManualClock(), CONVERSATION)
    recorder = await life.live()
    assert tuple(recorder.kinds) == EFFECTS
    assert await life.check() == set()
    for log in recorder.logs.values():
        await prove_replayable(log)


@pytest.mark.parametrize("cut", CUTS, ids=name_of)
async def test_cut_at_an_effect_the_conversation_goes_on_elsewhere(tmp_path: Path, cut: StopAt):
    clock = ManualClock()
    first, second = Life(tmp_path, clock, CONVERSATION), Life(tmp_path, clock, CONVERSATION)
    stopped = await first.live(cut)
    assert stopped.has_stopped
    clock.advance(conversation_jobs.LONGER_THAN_ANY_LEASE_MS)
    recorded = await second.live()
    # Between two effects of a run no tool is under way, so nothing can be unknown.
    assert await second.check() == set()
    for log in (*stopped.logs.values(), *recorded.logs.values()):
        await prove_replayable(log)


async def test_a_conversation_whose_every_process_dies_after_five_effects_arrives_all_the_same(tmp_path: Path):
    clock = ManualClock()
    life = Life(tmp_path, clock, CONVERSATION)
    died = 0
    while (await life.live(StopAt(effect=5, side="after"))).has_stopped:
        died += 1
        assert died < len(EFFECTS), "a life of five effects has room for a commit, yet nothing moves on"
        clock.advance(conversation_jobs.LONGER_THAN_ANY_LEASE_MS)
    assert died > 2
    assert await life.check() == set()


# -- real processes, really killed


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes(preload=[conversation_jobs.MODULE, "helix_agents.backends.sqlite", "httpx2"]) as processes:
        yield processes


def death_at(kind: EffectKind, side: Side) -> dict[str, Any]:
    """The last effect of its kind in the first turn after somebody answered: whatever can be half done is."""
    place = max(number for number, each in enumerate(EFFECTS[:10], start=1) if each == kind)
    return {"effect": place, "side": side}


async def kill_and_go_on(
    processes: Processes, folder: Path, deaths: list[dict[str, Any]], story: str = reference_conversation.__name__
) -> dict[str, set[str]]:
    """One conversation per death: killed there, gone on with elsewhere, checked; answers what stayed unknown."""
    unknown: dict[str, set[str]] = {}
    async with Receiver() as receiver:
        for begin in range(0, len(deaths), 8):
            together = deaths[begin : begin + 8]
            places = [folder / "-".join(f"{key}_{value}" for key, value in death.items()) for death in together]
            ends: list[dict[str, Any]] = []
            for place in places:
                place.mkdir()
                about = {"url": url_in(place), "traces": str(place / "traces"), "story": story}
                ends.append({**about, "hook": receiver.url})
            job = f"{conversation_jobs.MODULE}:converse"
            killed = await processes.run(
                job, [{**end, **death, "life": 0} for end, death in zip(ends, together, strict=True)]
            )
            assert [each.was_killed for each in killed] == [True] * len(together), [each.error for each in killed]
            went_on = await processes.run(job, [{**end, "life": 1} for end in ends])
            assert [outcome.error for outcome in went_on] == [None] * len(together)
            for place in places:
                async with await open_backend(url_in(place)) as backend:
                    traces = Traces(place / "traces")
                    unknown[place.name] = await conversation_jobs.conversation_of(story).check_end(backend, traces)
                    await check_heard(backend, receiver)
    return unknown


async def test_a_killed_process_is_replaced_at_every_kind_of_effect(tmp_path: Path, processes: Processes):
    deaths = [death_at(kind, side) for kind in get_args(EffectKind) for side in SIDES]
    unknown = await kill_and_go_on(processes, tmp_path, deaths)
    assert set().union(*unknown.values()) == set()


async def test_a_process_killed_inside_a_tool_that_must_not_run_twice_leaves_an_unknown_outcome(
    tmp_path: Path, processes: Processes
):
    whole = tmp_path / "whole"
    whole.mkdir()
    end = {"url": url_in(whole), "traces": str(whole / "traces")}
    [outcome] = await processes.run(f"{conversation_jobs.MODULE}:converse", [{**end, "life": 0}])
    assert outcome.error is None
    assert outcome.value["deeds"] == DEEDS
    assert tuple(outcome.value["effects"]) == EFFECTS
    deaths = [{"deed": number, "side": side} for number in range(1, DEEDS + 1) for side in SIDES]
    unknown = await kill_and_go_on(processes, tmp_path, deaths)
    # The approved call is the only one of its batch: whoever dies in it leaves exactly its outcome open.
    assert unknown["deed_4-side_before"] == unknown["deed_4-side_after"] == {"publish_tides"}


@pytest.mark.chaos
@pytest.mark.timeout(1_800)
async def test_a_process_may_be_killed_at_every_boundary_and_every_statement(
    tmp_path: Path, processes: Processes, capsys: pytest.CaptureFixture[str]
):
    whole = tmp_path / "whole"
    whole.mkdir()
    end = {"url": url_in(whole), "traces": str(whole / "traces")}
    async with Receiver() as receiver:
        heard = {**end, "hook": receiver.url}
        [outcome] = await processes.run(f"{conversation_jobs.MODULE}:converse", [{**heard, "life": 0}])
    tables: dict[str, list[dict[str, Any]]] = {
        "effect": [{"effect": cut.effect, "side": cut.side} for cut in CUTS],
        # A process that is left in peace may need a few statements less: the last ones are not killed at.
        "statement": [{"statement": number} for number in range(1, outcome.value["statements"] - 10)],
    }
    for kind, deaths in tables.items():
        unknown = await kill_and_go_on(processes, tmp_path, deaths)
        with capsys.disabled():
            print(f"\n{kind}: {len(deaths)} kills, {sum(map(bool, unknown.values()))} with an unknown outcome")
