"""A sub-agent behind another service: what a parent sees of it, whatever happens between the two."""

from collections.abc import AsyncIterator, Iterator

import pytest

from helix_agents import Completed, Executor
from helix_agents.domain.chunks import SubagentEnd, SubagentStart, TextDelta, ToolEnd
from tests.server.chain import boss, worker
from tests.server.live import TOKENS, LiveServer
from helix_agents import AgentServer
from helix_agents.server.auth import bearer_tokens


def service(*agents: object, url: str = "memory://", **settings: object) -> AgentServer:
    return AgentServer(Executor.open(url, agents=agents, **settings), authenticate=bearer_tokens(TOKENS))


@pytest.fixture(scope="module")
def remote() -> Iterator[LiveServer]:
    with LiveServer(service(worker())) as live:
        yield live


@pytest.fixture
async def helix() -> AsyncIterator[Executor]:
    async with Executor.open("memory://", janitor_seconds=None) as executor:
        yield executor


async def test_a_remote_child_completes(remote: LiveServer, helix: Executor) -> None:
    run = await helix.execute(boss(remote.url), "remote search", "s")
    chunks = [chunk async for chunk in run.stream()]
    result = await run.result()
    assert isinstance(result, Completed)
    assert "I was told: I was told: " in result.output
    print(result.output)
    for c in chunks: print(c)
    assert 0
