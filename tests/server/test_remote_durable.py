"""A sub-agent behind another service, for runs that DBOS or Temporal drives: the same as in one process."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from helix_agents import ApprovalAnswer, Completed, DBOSAgentExecutor, TemporalAgentExecutor
from helix_agents.runtimes.executor.core import ExecutorCore
from helix_agents.testing.temporal_service import temporal_address as temporal_address
from helix_agents.testing.temporal_service import temporal_service as temporal_service
from tests.server.chain import boss
from tests.server.delegating import finish, only, results_of, watched_search
from tests.server.live import LiveServer

NUMBERS = count(1)


@pytest.fixture(params=["dbos", "temporal"])
def opening(
    request: pytest.FixtureRequest, tmp_path: Path, remote: LiveServer
) -> Callable[[], AbstractAsyncContextManager[ExecutorCore]]:
    store, name = f"sqlite:///{tmp_path / 'helix.db'}", f"remote-{os.getpid()}-{next(NUMBERS)}"
    own: dict[str, Any] = {"agents": [boss(remote.url)], "janitor_seconds": None, "prefix": name}
    if request.param == "dbos":
        return lambda: DBOSAgentExecutor.open(store, **own)
    address = request.getfixturevalue("temporal_address")
    return lambda: TemporalAgentExecutor.open(store, address=address, task_queue=name, **own)


@pytest.fixture
async def helix(opening: Callable[[], AbstractAsyncContextManager[ExecutorCore]]) -> AsyncIterator[ExecutorCore]:
    async with opening() as executor:
        yield executor


async def test_its_work_is_seen_here_and_its_result_is_the_calls_result(remote: LiveServer, helix: ExecutorCore):
    await watched_search(helix, boss(remote.url))


async def test_an_approval_inside_it_is_answered_at_the_root(remote: LiveServer, helix: ExecutorCore):
    agent = boss(remote.url)
    waiting = only(await finish(helix, agent, "remote publish"))
    await helix.submit_tool_result("s", waiting.tool_call_id, ApprovalAnswer(approved=True))
    result = await (await helix.resume(agent, "s")).result()
    assert isinstance(result, Completed), result
    assert [message.error for message in await results_of(helix)] == [False]


async def test_one_that_fails_there_is_a_failed_call_here(remote: LiveServer, helix: ExecutorCore):
    result = await finish(helix, boss(remote.url), "remote fail & hello")
    assert isinstance(result, Completed), result
    assert "You said: hello" in result.output
    assert sorted(str(message.code) for message in await results_of(helix)) == ["None", "sub_agent_failed"]
