"""Conversations that go anywhere keep their promises, wherever their processes die."""

import asyncio
import logging
from collections.abc import Iterator
from functools import cache
from itertools import count, repeat
from pathlib import Path
from random import Random

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helix_agents.domain.errors import StoreUnavailableError
from helix_agents.ports.backend import open_backend
from helix_agents.runtimes.executor import owned_runs, rewinds, starting
from helix_agents.runtimes.in_process import drivers
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.postgres_service import ForeignPostgres, PostgresService
from helix_agents.testing.recording import Recorder, RecordingExecutor
from helix_agents.testing.redis_service import ForeignRedis, RedisService
from tests.recovery.random_talk import MOST_MOVES, Talk, parts_of, side_by_side

TALKS = 300

_numbers = count(1)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    # What goes wrong here goes wrong on purpose, and not every reporter of tests can carry what it says.
    caplog.set_level(logging.CRITICAL, logger="helix_agents")


@pytest.fixture(scope="module", autouse=True)
def soon() -> Iterator[None]:
    """A store that lost an answer is back at once, and what webhooks are called with is made ready once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpx2, "create_ssl_context", cache(httpx2.create_ssl_context))
        for module in (owned_runs, rewinds, starting, drivers):
            patch.setattr(module, "backoff", lambda: repeat(0.002))
        yield


async def talk(seed: int, moves: list[int], url: str, *, crowded: bool = False, troubled: bool = False) -> None:
    clock = ManualClock()
    namespace = f"talk-{next(_numbers)}"
    async with await open_backend(url, namespace=namespace, clock=clock) as parts, asyncio.timeout(60):
        await Talk(seed, parts, clock, crowded=crowded, troubled=troubled).go([0, *moves])


@given(
    seed=st.integers(0, 10_000),
    moves=st.lists(st.integers(0, MOST_MOVES), max_size=6),
    crowded=st.booleans(),
    troubled=st.booleans(),
)
def test_a_talk_keeps_its_promises(seed: int, moves: list[int], crowded: bool, troubled: bool) -> None:
    asyncio.run(talk(seed, moves, "memory://talks", crowded=crowded, troubled=troubled))


async def test_moves_that_are_made_side_by_side_are_all_over_when_one_of_them_has_failed():
    made: list[str] = []

    async def lost() -> None:
        raise StoreUnavailableError("troubled", "it went away")

    async def slow() -> None:
        for _ in range(10):
            await asyncio.sleep(0)
        made.append("slow")

    with pytest.raises(StoreUnavailableError):
        await side_by_side(slow(), lost())
    assert made == ["slow"]


async def test_of_moves_that_are_made_side_by_side_the_one_that_nobody_expected_to_fail_is_told():
    async def lost() -> None:
        raise StoreUnavailableError("troubled", "it went away")

    async def wrong() -> None:
        await asyncio.sleep(0)
        raise RuntimeError("out of order")

    with pytest.raises(RuntimeError, match="out of order"):
        await side_by_side(lost(), wrong())


async def test_in_a_process_that_died_before_no_move_is_made():
    made: list[str] = []

    async def move() -> None:
        made.append("move")

    clock, recorder = ManualClock(), Recorder()
    recorder.has_stopped = True
    async with await open_backend("memory://died-before", clock=clock) as parts:
        dead = RecordingExecutor(recorder=recorder, **parts_of(parts))
        await Talk(1, parts, clock)._let_be([dead], move)
    assert made == []


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/talks.db?synchronous=normal"
    service: PostgresService | ForeignPostgres | RedisService | ForeignRedis
    service = request.getfixturevalue(f"{request.param}_service")
    return service.new_url()


@pytest.mark.chaos
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("troubled", [False, True])
@pytest.mark.parametrize("crowded", [False, True])
def test_a_talk_keeps_its_promises_where_answers_take_their_time(url: str, crowded: bool, troubled: bool) -> None:
    """Between a question and its answer others have their turn, so that more can come in between than in memory."""
    begin = Random().randrange(1_000_000)
    for seed in range(begin, begin + TALKS):
        random = Random(seed)
        moves = [random.randrange(MOST_MOVES) for _ in range(random.randrange(10))]
        try:
            asyncio.run(talk(seed, moves, url, crowded=crowded, troubled=troubled))
        except Exception as problem:
            about = f"crowded={crowded}, troubled={troubled}"
            raise AssertionError(f"talk({seed}, {moves}, {url!r}, {about})") from problem
