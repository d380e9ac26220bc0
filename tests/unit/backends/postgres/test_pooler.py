"""Behind a pooler every transaction may meet another session: nothing may depend on the one before."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from helix_agents.backends.postgres.pool import Pool
from helix_agents.domain.runs import RunUpdate
from helix_agents.ports.backend import Backend, open_backend
from helix_agents.testing.scenes import SESSION, answer, append_to, commit, said, start, suspend, waiting
from helix_agents.testing.stream_scenes import RUN, STREAM, delta, open_writer, texts, write


@pytest.fixture
async def parts(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Backend]:
    """A backend whose every transaction has a connection that was never used before."""
    release = Pool.release

    def never_again(self: Pool, raw: Any, *, usable: bool) -> None:
        release(self, raw, usable=False)

    monkeypatch.setattr(Pool, "release", never_again)
    async with await open_backend(postgres_url, pooler=True) as parts:
        yield parts


async def test_a_conversation_needs_no_session(parts: Backend) -> None:
    store = parts.state
    await start(store, append_messages=(said("hi"),))
    await commit(store, 1, messages=[said("one")], writes=append_to("list", 1))
    await suspend(store, 2, waiting(store, "call-1"))
    await store.submit_answer(answer("call-1"))
    await start(store, run_id="r-2")
    assert (await store.load_state(SESSION)).custom_state == {"list": [1]}
    assert await store.get_message_count(SESSION) == 2
    await store.update_run_status("r-2", "completed", RunUpdate(output={"a": 1}))
    lock = await parts.locks.acquire("door", ttl_ms=60_000)
    await parts.locks.release(lock)


async def test_a_reader_without_notifications_looks_by_itself(parts: Backend) -> None:
    writer = await open_writer(parts.streams)
    reader = await parts.streams.create_reader(STREAM)
    assert reader is not None
    reading = asyncio.create_task(anext(reader))
    await asyncio.sleep(0.05)
    await write(writer, delta("a"))
    assert texts([await asyncio.wait_for(reading, 10)]) == ["a"]
    await parts.streams.end_stream(STREAM, RUN, status="completed")
    await reader.close()


async def test_a_reader_with_a_way_to_the_server_is_notified(postgres_url: str) -> None:
    direct = postgres_url.partition("?")[0]
    async with await open_backend(postgres_url, pooler=True, listen_url=direct) as parts:
        writer = await open_writer(parts.streams)
        reader = await parts.streams.create_reader(STREAM)
        assert reader is not None
        reading = asyncio.create_task(anext(reader))
        await asyncio.sleep(0.05)
        await write(writer, delta("a"))
        assert texts([await asyncio.wait_for(reading, 10)]) == ["a"]
        await reader.close()
