"""A Redis server that is killed and comes back under load: no message is lost or doubled, and every run ends."""

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest

from helix_agents import Agent, AnyAgent, Completed, Executor, ScriptedModel, tool
from helix_agents.domain.errors import StoreUnavailableError
from helix_agents.runtimes.executor.handle import RunHandle
from helix_agents.testing import call, reply
from helix_agents.testing.contracts.executor.stage import assert_legal, lines, transcript
from helix_agents.testing.redis_service import RedisService

STEPS = 4
PATIENCE = 90.0


@pytest.fixture
def service() -> Iterator[RedisService]:
    with RedisService(durable=True) as service:
        yield service


@tool
async def look_up(word: str) -> str:
    """Look something up."""
    await asyncio.sleep(0.01)
    return f"about {word}"


def searcher() -> AnyAgent:
    """An agent that looks something up in every step but the last."""
    steps = [reply(calls=[call("look_up", {"word": f"w{n}"}, id=f"c{n}")]) for n in range(STEPS)]
    return Agent(name="searcher", model=ScriptedModel([*steps, reply("done")]), tools=[look_up])


async def started(helix: Executor, agent: AnyAgent, session: str) -> RunHandle[Any]:
    """The run of a session, started once however often the store had to be asked."""
    while True:
        try:
            return await helix.execute(agent, "go", session, idempotency_key=f"turn of {session}")
        except StoreUnavailableError:
            await asyncio.sleep(random.uniform(0.05, 0.2))


async def result_of(helix: Executor, agent: AnyAgent, session: str) -> Any:
    """How the run of a session ended, asked again where the store did not answer."""
    while True:
        handle = await started(helix, agent, session)
        try:
            return await handle.result()
        except StoreUnavailableError:
            await asyncio.sleep(random.uniform(0.05, 0.2))


async def go_through(service: RedisService, *, sessions: int, restarts: int) -> None:
    agent = searcher()
    names = [f"s-{n}" for n in range(sessions)]
    async with Executor.open(service.url, agents=[agent], janitor_seconds=None) as helix:
        running = [asyncio.create_task(result_of(helix, agent, name)) for name in names]
        for _ in range(restarts):
            await asyncio.sleep(random.uniform(0.1, 0.4))
            await asyncio.to_thread(service.restart)
        async with asyncio.timeout(PATIENCE):
            results = await asyncio.gather(*running)
        assert [type(result) for result in results] == [Completed] * sessions
        for name in names:
            await check(helix, name)
        assert (await helix.sessions.list(limit=200)).total == sessions


async def check(helix: Executor, session: str) -> None:
    """The conversation is whole, in order, and each thing was said once; the stream tells the same."""
    messages = await transcript(helix, session)
    assert_legal(messages)
    said = lines(messages)
    assert said[0] == "user: go"
    assert said[-1] == "assistant: done"
    assert [line for line in said if line.startswith("result")] == [
        f"result look_up#{_call_id(line)}: about w{n}" for n, line in enumerate(said[2:-1:2])
    ]
    assert len(said) == 2 + 2 * STEPS
    runs = await helix.sessions.runs(session)
    assert [run.status for run in runs.items] == ["completed"]
    state = await helix.sessions.get(session)
    assert (state.status, state.message_count) == ("completed", len(said))


def _call_id(line: str) -> str:
    return line.partition("#")[2].partition(":")[0]


async def test_runs_survive_a_server_that_is_killed_and_restarted(service: RedisService) -> None:
    await go_through(service, sessions=5, restarts=1)


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("life", range(10))
async def test_fifty_sessions_survive_a_server_that_is_killed_again_and_again(service: RedisService, life: int) -> None:
    await go_through(service, sessions=50, restarts=4)
