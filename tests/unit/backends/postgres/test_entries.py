"""What is particular to entries in Postgres: how few statements a write takes, and what a lost one means."""

import asyncio

import pytest

from helix_agents.domain.errors import StoreUnavailableError
from helix_agents.ports.backend import open_backend
from helix_agents.testing.contracts.entry_handles import entries_of
from helix_agents.testing.entry_scenes import put, set_value, values, write
from helix_agents.testing.seams import CountingSeam, StumblingSeam

PATIENCE = 10.0


async def test_a_write_is_one_statement_that_reads_and_one_that_stores(postgres_url: str) -> None:
    seam = CountingSeam()
    async with await open_backend(postgres_url, seam=seam) as backend:
        store = entries_of(backend)
        await set_value(store, "k", 0)
        seam.reset()
        await write(store, put("k", 1), put("other", 2), audit=({"what": "set"},), once="call-1")
        assert seam.count == 2
        seam.reset()
        assert (await write(store, put("k", 1), put("other", 2), once="call-1")).repeated
        assert seam.count == 1


async def test_a_write_whose_answer_was_lost_is_not_sent_again_by_itself(postgres_url: str) -> None:
    seam = StumblingSeam()
    async with await open_backend(postgres_url, seam=seam) as backend:
        store = entries_of(backend)
        await set_value(store, "k", 0)
        seam.arm(after=2)
        with pytest.raises(StoreUnavailableError, match="may have been made"):
            await write(store, put("k", 1), once="call-1")
        assert await values(store) == {"k": 1}
        assert (await write(store, put("k", 1), once="call-1")).repeated
        found = await store.find("agent:ann", "k")
        assert found is not None
        assert found.version == 2


async def test_whoever_is_not_notified_finds_a_commit_by_looking(postgres_url: str) -> None:
    async with (
        await open_backend(postgres_url, pooler=True) as here,
        await open_backend(postgres_url) as there,
        entries_of(here).listen() as waiting,
    ):
        assert not await waiting.wait(0)
        heard = asyncio.ensure_future(waiting.wait(PATIENCE))
        await set_value(entries_of(there), "k", 1)
        assert await heard
        assert not await waiting.wait(0)


async def test_a_dump_takes_no_connection_from_the_pool(postgres_url: str) -> None:
    async with await open_backend(postgres_url, pool_size=1) as backend:
        store = entries_of(backend)
        await set_value(store, "k", 1)
        async with store.dump(["agent:ann"]) as dump:
            await set_value(store, "k", 2)
            rows = [row.value async for batch in dump.rows() for row in batch]
        assert rows == ["1"]
