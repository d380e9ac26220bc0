"""The bell between processes on one SQLite file: two doorbells on one path are two processes to each other."""

import asyncio
import contextlib
import os
import stat
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from helix_agents.backends.sqlite.doorbell import Doorbell

SOON = 5.0
A_MOMENT = 0.05


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "helix.db"


@pytest.fixture
def folder(path: Path) -> Path:
    return path.with_name("helix.db-bells")


@pytest.fixture
async def new_bell(path: Path) -> AsyncIterator[Callable[[], Doorbell]]:
    bells: list[Doorbell] = []

    def make() -> Doorbell:
        bells.append(Doorbell(path))
        return bells[-1]

    yield make
    for bell in bells:
        await bell.close()


async def rung(bell: Doorbell, *topics: str) -> None:
    """Ring as the thread that writes does."""
    await asyncio.to_thread(bell.ring, topics)


async def test_a_ring_wakes_listeners_of_its_topic_here_and_elsewhere(new_bell: Callable[[], Doorbell]):
    here, elsewhere = new_bell(), new_bell()
    async with here.listen("a") as a, elsewhere.listen("a") as far_a, elsewhere.listen("b") as far_b:
        await rung(here, "a")
        assert await a.wait(SOON)
        assert await far_a.wait(SOON)
        assert not await far_b.wait(A_MOMENT)
        await rung(elsewhere, "b", "a")
        assert await a.wait(SOON)
        assert await far_b.wait(SOON)


async def test_a_ring_between_listening_and_waiting_is_not_missed(new_bell: Callable[[], Doorbell]):
    here, elsewhere = new_bell(), new_bell()
    async with here.listen("a") as waiter:
        await rung(elsewhere, "a")
        await asyncio.sleep(A_MOMENT)
        assert await waiter.wait(0.001)
        assert not await waiter.wait(0.001)


async def test_many_listeners_and_topics_of_awkward_names_are_told_apart(new_bell: Callable[[], Doorbell]):
    here, elsewhere = new_bell(), new_bell()
    names = [f"stream/\n{'ä' * 300}/{n}" for n in range(60)]
    async with here.listen(names[7]) as seven, here.listen(names[7]) as seven_too, here.listen(names[8]) as eight:
        await rung(elsewhere, *(name for name in names if name != names[8]))
        assert await seven.wait(SOON)
        assert await seven_too.wait(SOON)
        assert not await eight.wait(A_MOMENT)


async def test_a_listener_that_comes_right_after_a_ring_is_found_by_the_next(new_bell: Callable[[], Doorbell]):
    ringer = new_bell()
    for _ in range(20):
        listener = new_bell()
        await rung(ringer, "a")
        async with listener.listen("a") as waiter:
            await rung(ringer, "a")
            assert await waiter.wait(SOON)


async def test_closing_takes_pipes_folder_and_descriptors_away(new_bell: Callable[[], Doorbell], folder: Path):
    await asyncio.to_thread(int)
    before = set(os.listdir("/dev/fd"))
    bells = [new_bell() for _ in range(3)]
    for bell in bells:
        async with bell.listen("a"):
            await rung(bells[0], "a")
    await rung(bells[1], "a")
    assert len(list(folder.iterdir())) == 3
    await bells[0].close()
    assert len(list(folder.iterdir())) == 2
    await rung(bells[1], "a")
    for bell in bells:
        await bell.close()
        await bell.close()
    assert not folder.exists()
    assert set(os.listdir("/dev/fd")) == before


async def test_the_pipe_of_a_dead_process_is_removed_by_the_next_ring(new_bell: Callable[[], Doorbell], folder: Path):
    bell = new_bell()
    async with bell.listen("a"):
        os.mkfifo(folder / "4711-dead.bell")
        await rung(bell, "a")
        assert len(list(folder.iterdir())) == 1
        dying = os.open(_fifo(folder / "4712-dying.bell"), os.O_RDWR | os.O_NONBLOCK)
        await rung(bell, "a")
        assert os.read(dying, 100).endswith(b"\n")
        os.close(dying)
        await rung(bell, "a")
        assert len(list(folder.iterdir())) == 1


@pytest.mark.may_block("rings where the listener runs, so that nobody empties the pipe meanwhile")
async def test_a_full_pipe_stops_nobody_and_wakes_everybody_who_listens_there(
    new_bell: Callable[[], Doorbell], folder: Path
):
    ringer, listener = new_bell(), new_bell()
    async with listener.listen("a") as waiter:
        (pipe,) = folder.iterdir()
        stuffing = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(stuffing, b"0123456789abcdef\n" * 30)
        ringer.ring(["a"])
        os.close(stuffing)
        assert await waiter.wait(SOON)
        await rung(ringer, "a")
        assert await waiter.wait(SOON)


async def test_a_file_that_is_no_pipe_is_left_alone(new_bell: Callable[[], Doorbell], folder: Path):
    bell = new_bell()
    async with bell.listen("a"):
        (folder / "mine.bell").write_text("keep")
        await rung(bell, "a")
        assert (folder / "mine.bell").read_text() == "keep"
    await bell.close()
    assert [entry.name for entry in folder.iterdir()] == ["mine.bell"]


async def test_without_pipes_listeners_here_are_woken_and_others_look_by_themselves(
    new_bell: Callable[[], Doorbell], folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delattr(os, "mkfifo")
    here, elsewhere = new_bell(), new_bell()
    async with here.listen("a") as near, elsewhere.listen("a") as far:
        await rung(here, "a")
        assert await near.wait(SOON)
        assert not await far.wait(A_MOMENT)
    assert not folder.exists()


async def test_a_folder_that_cannot_be_made_leaves_listeners_to_look_by_themselves(
    new_bell: Callable[[], Doorbell], folder: Path
):
    folder.write_text("in the way")
    bell = new_bell()
    async with bell.listen("a") as waiter:
        await rung(bell, "a")
        assert await waiter.wait(SOON)
    await bell.close()
    assert folder.read_text() == "in the way"


async def test_pipes_are_pipes_and_belong_to_one_listening_loop_each(new_bell: Callable[[], Doorbell], folder: Path):
    bell = new_bell()
    async with bell.listen("a"), bell.listen("b"), bell.listen("a"):
        (pipe,) = folder.iterdir()
        assert stat.S_ISFIFO(pipe.stat().st_mode)


def _fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


async def test_closing_while_a_pipe_is_made_leaves_none_behind(
    new_bell: Callable[[], Doorbell], folder: Path, monkeypatch: pytest.MonkeyPatch
):
    making, go_on, mkfifo = threading.Event(), threading.Event(), os.mkfifo

    def slow_mkfifo(path: Path) -> None:
        making.set()
        go_on.wait(10)
        mkfifo(path)

    monkeypatch.setattr(os, "mkfifo", slow_mkfifo)
    bell = new_bell()

    async def listen() -> None:
        async with bell.listen("topic"):
            pass

    listening = asyncio.create_task(listen())
    await asyncio.to_thread(making.wait, 10)
    listening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await listening
    closing = asyncio.create_task(bell.close())
    await asyncio.sleep(0.05)
    go_on.set()
    await closing
    assert not folder.exists()
