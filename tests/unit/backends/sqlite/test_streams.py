"""What streams leave in the file."""

import asyncio
import threading
from pathlib import Path

import apsw
import pytest

from helix_agents.backends.sqlite import SQLiteStateStore, SQLiteStreamManager, open_backend
from helix_agents.testing.scenes import start
from helix_agents.testing.seams import CountingSeam
from helix_agents.testing.stream_scenes import STREAM, committed, delta, fill, open_writer, write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "helix.db"


def rows(path: Path) -> tuple[object, ...]:
    connection = apsw.Connection(str(path))
    try:
        (counts,) = connection.execute(
            "SELECT (SELECT count(*) FROM __agents_streams), (SELECT count(*) FROM __agents_stream_chunks)"
        )
    finally:
        connection.close()
    return counts


@pytest.mark.may_block("looks into the file")
async def test_a_deleted_stream_leaves_no_row_behind(path: Path):
    streams = await SQLiteStreamManager.open(path)
    await fill(streams, "a", "b")
    writer = await streams.create_writer("other", "r-1", "writer")
    await write(writer, delta("kept"))
    await streams.delete_stream(STREAM)
    assert rows(path) == (1, 1)
    await streams.close()


@pytest.mark.may_block("looks into the file")
async def test_many_chunks_at_once_are_rows_that_are_read_quickly(path: Path):
    streams = await SQLiteStreamManager.open(path)
    texts = [str(number) for number in range(600)]
    await fill(streams, *texts)
    assert rows(path) == (1, 3)
    reader = await streams.create_resumable_reader(STREAM)
    assert reader is not None
    assert [(await anext(reader)).delta for _ in texts] == texts  # type: ignore[union-attr]
    await reader.close()
    await streams.close()


@pytest.mark.may_block("looks into the file")
async def test_a_deleted_session_takes_its_stream_along(path: Path):
    async with await open_backend(f"sqlite:///{path}") as backend:
        await start(backend.state, STREAM)
        await fill(backend.streams, "a", "b")
        await backend.state.delete_session(STREAM)
        assert rows(path) == (0, 0)


async def test_streams_and_state_share_transactions_on_one_file_and_namespace_only(tmp_path: Path, path: Path):
    streams = await SQLiteStreamManager.open(path)
    for file, namespace, shared in ((path, "", True), (path, "north", False), (tmp_path / "other.db", "", False)):
        store = await SQLiteStateStore.open(file, namespace=namespace)
        assert streams.shares_transactions_with(store) is shared
        await store.close()
    assert not streams.shares_transactions_with(object())
    await streams.close()


async def test_taking_over_for_the_next_step_costs_the_same_at_any_length(path: Path):
    seam = CountingSeam()
    streams = await SQLiteStreamManager.open(path, seam=seam)
    costs: list[list[str]] = []
    step = 0
    for length in (10, 3_000):
        step += 1
        writer = await open_writer(streams, step=step)
        await write(writer, *(delta("x", step) for _ in range(length)), committed(step))
        step += 1
        seam.reset()
        writer = await open_writer(streams, step=step)
        costs.append(seam.statements.copy())
        await writer.close()
    assert costs[0] == costs[1]
    assert not any("__agents_stream_chunks" in statement for statement in costs[1])
    await streams.close()


async def test_a_flush_costs_the_same_at_any_length(path: Path):
    seam = CountingSeam()
    streams = await SQLiteStreamManager.open(path, seam=seam)
    writer = await open_writer(streams)
    costs: list[int] = []
    for length in (1, 2_000):
        await write(writer, *(delta("x") for _ in range(length)))
        seam.reset()
        await write(writer, *(delta("y") for _ in range(64)))
        costs.append(seam.count)
    assert costs[0] == costs[1] <= 5
    await streams.close()


async def test_a_cancelled_flush_of_a_handle_that_joined_is_stored_once(path: Path):
    """Such a handle looks into the stream before it sends again: what it sent first must not come after that."""
    streams = await SQLiteStreamManager.open(path)
    await open_writer(streams)
    joined = await streams.create_writer(STREAM, "r-1", "writer", join=True)
    working, go_on = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        working.set()
        go_on.wait(10)

    holding = asyncio.create_task(streams._db.write(hold))  # pyright: ignore[reportPrivateUsage]
    await asyncio.to_thread(working.wait, 10)
    await joined.write(delta("once"))
    flushing = asyncio.create_task(joined.flush())
    await asyncio.sleep(0.05)
    flushing.cancel()
    again = asyncio.create_task(joined.flush())
    await asyncio.sleep(0.05)
    go_on.set()
    await asyncio.gather(flushing, holding, return_exceptions=True)
    await again
    assert [chunk.sequence for chunk in await streams.get_all_chunks(STREAM)] == [1]
    await joined.close()
    await streams.close()
