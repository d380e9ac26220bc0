"""An agent of other people, for runs that DBOS or Temporal drives: the same as in one process."""

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from helix_agents import Completed, DBOSAgentExecutor, TemporalAgentExecutor, ToolAnswer
from helix_agents.runtimes.executor.core import ExecutorCore
from helix_agents.testing.temporal_service import temporal_address as temporal_address
from helix_agents.testing.temporal_service import temporal_service as temporal_service
from tests.server.chain import a2a_boss
from tests.server.delegating import delegated, finish, only, results_of
from tests.server.foreign import CHAPTERS, STORY, Foreign, serving
from tests.server.live import LiveServer
from tests.server.test_remote_a2a import told

NUMBERS = count(1)


@pytest.fixture(scope="module")
def foreign() -> Iterator[LiveServer]:
    with serving(Foreign()) as live:
        yield live


@pytest.fixture(params=["dbos", "temporal"])
def opening(
    request: pytest.FixtureRequest, tmp_path: Path, foreign: LiveServer
) -> Callable[[], AbstractAsyncContextManager[ExecutorCore]]:
    foreign.app.journal.clear()
    store, name = f"sqlite:///{tmp_path / 'helix.db'}", f"a2a-{os.getpid()}-{next(NUMBERS)}"
    own: dict[str, Any] = {"agents": [a2a_boss(foreign.url)], "janitor_seconds": None, "prefix": name}
    if request.param == "dbos":
        return lambda: DBOSAgentExecutor.open(store, **own)
    address = request.getfixturevalue("temporal_address")
    return lambda: TemporalAgentExecutor.open(store, address=address, task_queue=name, **own)


@pytest.fixture
async def helix(opening: Callable[[], AbstractAsyncContextManager[ExecutorCore]]) -> AsyncIterator[ExecutorCore]:
    async with opening() as executor:
        yield executor


async def test_its_words_are_seen_here_and_are_the_calls_result(foreign: LiveServer, helix: ExecutorCore) -> None:
    assert isinstance(await finish(helix, a2a_boss(foreign.url), "remote story"), Completed)
    whole = "".join(f"{chapter}: {STORY}" for chapter in range(CHAPTERS))
    assert ((await delegated(helix)).content, await told(helix)) == (whole, whole)


async def test_a_question_is_answered_at_the_root(foreign: LiveServer, helix: ExecutorCore) -> None:
    agent = a2a_boss(foreign.url)
    waiting = only(await finish(helix, agent, "remote ask port"))
    await helix.submit_tool_result("s", waiting.tool_call_id, ToolAnswer(result="Brest"))
    result = await (await helix.resume(agent, "s")).result()
    assert isinstance(result, Completed), result
    assert foreign.app.journal == ["ask port", "answer: Brest"]


async def test_one_that_fails_there_is_a_failed_call_here(foreign: LiveServer, helix: ExecutorCore) -> None:
    result = await finish(helix, a2a_boss(foreign.url), "remote fail & hello")
    assert isinstance(result, Completed), result
    assert sorted(str(message.code) for message in await results_of(helix)) == ["None", "sub_agent_failed"]
