"""The pool of connections: whoever waits for one hears of it, whatever became of those before."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from helix_agents.backends.postgres.connection import ConnectionGoneError
from helix_agents.backends.postgres.pool import Pool

SECONDS = 5.0


class Line:
    """A connection that is only handed around."""

    def is_closed(self) -> bool:
        return False

    def terminate(self) -> None:
        pass

    async def close(self, timeout: float) -> None:
        pass


def pool_of_one(connect: Callable[[], Awaitable[Any]]) -> Pool:
    async def connecting() -> Any:
        return await connect()

    return Pool(connecting, size=1, patience=0)


async def test_who_waits_behind_a_caller_that_gave_up_hears_that_the_connection_failed() -> None:
    answer = asyncio.get_running_loop().create_future()
    tries = 0

    async def connect() -> Line:
        nonlocal tries
        tries += 1
        if tries == 1:
            await answer
        return Line()

    pool = pool_of_one(connect)
    first, second = asyncio.create_task(pool.acquire()), asyncio.create_task(pool.acquire())
    await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.sleep(0)
    answer.set_exception(ConnectionRefusedError("nobody there"))
    assert isinstance(await asyncio.wait_for(second, SECONDS), Line)
    assert first.cancelled()


async def test_who_connects_as_the_pool_closes_is_told_so_and_not_cancelled() -> None:
    async def connect() -> Line:
        await asyncio.sleep(0.1)
        return Line()

    pool = pool_of_one(connect)
    asked = asyncio.create_task(pool.acquire())
    await asyncio.sleep(0.01)
    await pool.close()
    with pytest.raises(ConnectionGoneError):
        await asked
