"""Workers of Temporal, and Temporal itself, are killed wherever they can be; the conversation arrives all the same."""

import asyncio
import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helix_agents.ports.backend import open_backend
from helix_agents.runtimes.temporal import TemporalAgentExecutor, TemporalOptions
from helix_agents.testing.receiver import Receiver
from helix_agents.testing.temporal_service import ServiceMissingError, TemporalService
from helix_agents.testing.temporal_service import temporal_address as temporal_address
from helix_agents.testing.temporal_service import temporal_service as temporal_service
from helix_agents.testing.workers import Processes
from tests.recovery import reference_conversation, reference_crew, reference_handover, temporal_jobs
from tests.recovery.conversation_jobs import conversation_of
from tests.recovery.reference_conversation import AGENT, Traces, check_end, dependencies, go_on
from tests.recovery.talk_ends import check_heard

QUEUES = itertools.count(1)
SIDES = ("before", "after")

CREWS = [f"{reference_crew.__name__}:{name}" for name in ("BLOCKING", "NON_BLOCKING")]

STORIES = (reference_conversation.__name__, reference_handover.__name__, *CREWS)

# In how many runs of their own the boundaries of a story are cut: together they take too long for one.
PARTS = 4

# The last of each kind before the first turn is over: whatever can be half done is.
ONE_OF_EACH = {"open": 2, "ask_model": 2, "run_calls": 3, "commit": 2}


def url_in(folder: Path) -> str:
    return f"sqlite:///{folder / 'helix.db'}?synchronous=normal"


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes(
        preload=[temporal_jobs.MODULE, "tests.recovery.temporal_nursery", "helix_agents.backends.sqlite", "httpx2"]
    ) as processes:
        yield processes


async def kill_and_go_on(
    processes: Processes,
    folder: Path,
    address: str,
    deaths: list[dict[str, Any]],
    story: str = reference_conversation.__name__,
) -> dict[str, set[str]]:
    """One conversation per death: its worker killed there, gone on with by another; answers what stayed unknown."""
    unknown: dict[str, set[str]] = {}
    async with Receiver() as receiver:
        for begin in range(0, len(deaths), 8):
            together = deaths[begin : begin + 8]
            places = [folder / "-".join(f"{key}_{value}" for key, value in death.items()) for death in together]
            ends: list[dict[str, Any]] = []
            for place in places:
                place.mkdir()
                queue = f"crash-{os.getpid()}-{next(QUEUES)}"
                about = {"url": url_in(place), "traces": str(place / "traces"), "story": story}
                ends.append({**about, "address": address, "queue": queue, "hook": receiver.url})
            job = f"{temporal_jobs.MODULE}:converse"
            lives = [{**end, **death, "life": 0} for end, death in zip(ends, together, strict=True)]
            killed = await processes.run(job, lives)
            spared = [(death, end) for death, end in zip(together, killed, strict=True) if not end.was_killed]
            # One that took too long, as on a busy machine, has `timed_out`; one that did not come there has a value.
            assert not spared
            went_on = await processes.run(job, [{**end, "life": 1} for end in ends])
            assert [outcome.error for outcome in went_on] == [None] * len(together)
            for place in places:
                async with await open_backend(url_in(place)) as backend:
                    unknown[place.name] = await conversation_of(story).check_end(backend, Traces(place / "traces"))
                    await check_heard(backend, receiver)
    return unknown


async def test_a_killed_worker_is_replaced_at_every_kind_of_effect(
    tmp_path: Path, processes: Processes, temporal_address: str
):
    deaths = [{"kind": kind, "number": number, "side": side} for kind, number in ONE_OF_EACH.items() for side in SIDES]
    unknown = await kill_and_go_on(processes, tmp_path, temporal_address, deaths)
    # A call beside the one that died may have been in the middle of its function.
    assert not any(names for death, names in unknown.items() if "run_calls" not in death)


async def test_a_worker_killed_around_a_handoff_is_replaced_by_one_in_which_the_right_agent_goes_on(
    tmp_path: Path, processes: Processes, temporal_address: str
):
    # The commit that hands over, and the next agent's first question to its model.
    deaths = [{"kind": kind, "number": 2, "side": side} for kind in ("commit", "ask_model") for side in SIDES]
    unknown = await kill_and_go_on(processes, tmp_path, temporal_address, deaths, reference_handover.__name__)
    assert set().union(*unknown.values()) == set()


async def test_a_worker_killed_inside_a_tool_that_must_not_run_twice_leaves_an_unknown_outcome(
    tmp_path: Path, processes: Processes, temporal_address: str
):
    deaths = [{"deed": 4, "side": side} for side in SIDES]
    unknown = await kill_and_go_on(processes, tmp_path, temporal_address, deaths)
    assert unknown == {f"deed_4-side_{side}": {"publish_tides"} for side in SIDES}


async def test_a_family_goes_on_when_the_worker_that_drives_it_is_killed(
    tmp_path: Path, processes: Processes, temporal_address: str
):
    deaths = [{"kind": "run_calls", "number": 1, "side": "before"}, {"deed": 1, "side": "after"}]
    await kill_and_go_on(processes, tmp_path, temporal_address, deaths, CREWS[0])


@pytest.fixture
def mortal_server() -> Iterator[TemporalService]:
    try:
        server = TemporalService(durable=True)
    except ServiceMissingError as missing:
        pytest.skip(str(missing))
    with server:
        yield server


async def test_a_server_that_is_killed_and_started_again_goes_on_with_its_runs(
    tmp_path: Path, mortal_server: TemporalService
):
    killed = threading.Event()

    def kill_in_the_middle(number: int, at: str) -> None:
        # In the thread of a tool of the second step: the server is gone while its effect goes on.
        if (number, at) == (5, "before"):
            mortal_server.restart()
            killed.set()

    traces = Traces(tmp_path / "traces", reached=kill_in_the_middle)
    settings: dict[str, Any] = {"agents": [AGENT], "deps": dependencies(traces), "janitor_seconds": None}
    # No worker dies here: one that gives no sign of life while there is nobody to give it to is not given up.
    patient = TemporalOptions(heartbeat_seconds=30.0, task_seconds=1.0, sticky_seconds=1.0)
    own = {"address": mortal_server.address, "temporal": patient}
    async with TemporalAgentExecutor.open(url_in(tmp_path), **own, **settings) as helix, asyncio.timeout(60):
        await go_on(helix)  # pyright: ignore[reportArgumentType]
    assert killed.is_set()
    async with await open_backend(url_in(tmp_path)) as backend:
        assert await check_end(backend, traces) == set()


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(PARTS), ids=lambda part: f"part {part + 1} of {PARTS}")
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.rpartition(".")[2])
async def test_a_worker_may_be_killed_at_every_boundary(
    tmp_path: Path,
    processes: Processes,
    temporal_address: str,
    story: str,
    part: int,
    capsys: pytest.CaptureFixture[str],
):
    (tmp_path / "whole").mkdir()
    end = {"url": url_in(tmp_path / "whole"), "traces": str(tmp_path / "whole" / "traces"), "story": story}
    queue = f"crash-{os.getpid()}-{next(QUEUES)}"
    job = f"{temporal_jobs.MODULE}:converse"
    [whole] = await processes.run(job, [{**end, "address": temporal_address, "queue": queue, "life": 0}])
    assert whole.error is None
    deaths: list[dict[str, Any]] = [
        {"kind": kind, "number": number, "side": side}
        for kind, count in sorted(whole.value["effects"].items())
        for number in range(1, count + 1)
        for side in SIDES
    ]
    deaths += [{"deed": number, "side": side} for number in range(1, whole.value["deeds"] + 1) for side in SIDES]
    mine = deaths[part::PARTS]
    unknown = await kill_and_go_on(processes, tmp_path, temporal_address, mine, story)
    with capsys.disabled():
        cut, left = f"{len(mine)} of {len(deaths)} boundaries", sum(map(bool, unknown.values()))
        print(f"\n{story}: cut at {cut}, {left} with unknown outcomes")
