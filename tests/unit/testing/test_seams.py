"""The seams act at the statement they were told to, and at no other."""

import asyncio
import threading

import pytest

from helix_agents.testing.clock import START_MS, ManualClock
from helix_agents.testing.ids import CountingIds
from helix_agents.testing.seams import ConnectionLostError, CountingSeam, DyingSeam, HoldingSeam

PATIENCE = 10.0


def test_a_counting_seam_remembers_what_passed() -> None:
    seam = CountingSeam()
    seam("BEGIN")
    seam("COMMIT")
    assert (seam.count, seam.statements) == (2, ["BEGIN", "COMMIT"])
    seam.reset()
    assert seam.count == 0


def test_a_dying_seam_loses_the_connection_at_one_statement_and_for_good() -> None:
    seam = DyingSeam()
    seam("not armed yet")
    seam.arm(after=2)
    seam("the first")
    for _ in range(2):
        with pytest.raises(ConnectionLostError, match="the second"):
            seam("the second")
    seam.disarm()
    seam("healthy again")


async def test_a_holding_seam_stops_a_thread_until_it_is_released() -> None:
    seam = HoldingSeam(after=2)
    passed: list[str] = []

    def work() -> None:
        for statement in ("BEGIN", "INSERT", "COMMIT"):
            seam(statement)
            passed.append(statement)

    thread = threading.Thread(target=work)
    thread.start()
    await asyncio.wait_for(seam.wait_until_held(), PATIENCE)
    assert passed == ["BEGIN"]
    assert seam.has_held
    seam.release()
    await asyncio.to_thread(thread.join, PATIENCE)
    assert passed == ["BEGIN", "INSERT", "COMMIT"]


async def test_a_holding_seam_gives_the_event_loop_something_to_wait_for() -> None:
    seam = HoldingSeam()
    assert seam("not armed yet") is None
    seam.arm(after=1)
    held = seam("BEGIN")
    assert held is not None
    waiting = asyncio.ensure_future(held)
    await asyncio.sleep(0)
    assert not waiting.done()
    seam.release()
    await asyncio.wait_for(waiting, PATIENCE)
    assert seam("COMMIT") is None


async def test_whoever_waits_for_a_hold_that_never_comes_is_told() -> None:
    seam = HoldingSeam(after=5)
    waiting = asyncio.ensure_future(seam.wait_until_held())
    seam.release()
    await asyncio.wait_for(waiting, PATIENCE)
    assert not seam.has_held


def test_a_manual_clock_stands_still_until_it_is_moved() -> None:
    clock = ManualClock()
    assert clock.now_ms() == clock.now_ms() == START_MS
    assert clock.advance(5) == clock.now_ms() == START_MS + 5


def test_counting_ids_are_unique_and_foretold() -> None:
    ids = CountingIds()
    assert [ids.new("run"), ids.new("run"), ids.new("ckpt")] == ["run_1", "run_2", "ckpt_1"]
