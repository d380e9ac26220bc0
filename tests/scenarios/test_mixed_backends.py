"""State in one backend, streams in another: every scenario still holds, and what is deleted is deleted in both."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from helix_agents import Agent, Completed, DBOSAgentExecutor, ScriptedModel
from helix_agents.domain.chunks import TextDelta
from helix_agents.domain.sessions import CreateSession
from helix_agents.ports.backend import Backend, open_backend
from helix_agents.runtimes.in_process.executor import Executor
from helix_agents.testing import reply
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.contract import ExecutorContract
from helix_agents.testing.contracts.executor.conversations import ConversationsContract
from helix_agents.testing.contracts.executor.refreshing import RefreshingContract
from helix_agents.testing.contracts.executor.returning import ReturningContract
from helix_agents.testing.contracts.executor.stage import OpenExecutor, OpenParts
from helix_agents.testing.contracts.executor.sub_agents import SubAgentsContract
from helix_agents.testing.contracts.executor.waiting import WaitingContract
from helix_agents.testing.redis_service import ForeignRedis, RedisService
from tests.scenarios.test_in_process import LONG_LEASE_MS

OpenBoth = Callable[..., Awaitable[Backend]]


async def open_both(state_url: str, streams_url: str, clock: ManualClock, **of_state: Any) -> Backend:
    """The state of one backend with the streams of another; what is not used is closed."""
    one = await open_backend(state_url, clock=clock, **of_state)
    namespace = of_state.get("namespace", "")
    other = await open_backend(streams_url, clock=clock, namespace=namespace)
    await one.streams.close()
    for part in (other.state, other.locks, other.usage, other.entries, other.memories):
        if part is not None:
            await part.close()
    return Backend(
        url=state_url,
        state=one.state,
        streams=other.streams,
        locks=one.locks,
        usage=one.usage,
        entries=one.entries,
        memories=one.memories,
    )


class Mixed:
    """State where `state_url` says, streams in Redis."""

    @pytest.fixture
    def open_both(self, state_url: str, redis_service: RedisService | ForeignRedis, clock: ManualClock) -> OpenBoth:
        streams = redis_service.new_url()
        return lambda **of_state: open_both(state_url, streams, clock, **of_state)

    @pytest.fixture
    def open_parts(self, open_both: OpenBoth) -> OpenParts:
        return lambda: open_both()

    @pytest.fixture
    def open_executor(self, open_both: OpenBoth) -> OpenExecutor:
        @asynccontextmanager
        async def open_executor(**settings: Any) -> AsyncGenerator[Executor]:
            of_store = {name: settings.pop(name) for name in ("limits", "namespace") if name in settings}
            given = {"janitor_seconds": None, "lease_ms": LONG_LEASE_MS, "grace": 1.0, **settings}
            async with await open_both(**of_store) as backend:
                parts = {"state": backend.state, "streams": backend.streams, "usage": backend.usage}
                async with Executor(**parts, **given) as executor:
                    yield executor

        return open_executor


class MixedContract(Mixed):
    """What only two backends can get wrong."""

    async def test_chunks_do_not_ride_in_commits_of_another_backend(self, parts: Backend) -> None:
        assert not parts.streams.shares_transactions_with(parts.state)

    async def test_a_deleted_session_leaves_no_stream_in_the_other_backend(
        self, helix: Executor, parts: Backend
    ) -> None:
        agent = Agent(name="writer", model=ScriptedModel([reply("hello"), reply("hello again")]))
        await (await helix.execute(agent, "hi", "s-1")).result()
        await parts.state.create_session("child", CreateSession(parent_session_id="s-1", stream_id="aside"))
        writer = await parts.streams.create_writer("aside", "r-1", "writer")
        await writer.close()
        assert await parts.streams.get_stream_info("s-1") is not None
        await helix.sessions.delete("s-1")
        assert await parts.streams.get_stream_info("s-1") is None
        assert await parts.streams.get_stream_info("aside") is None
        assert not await parts.state.session_exists("child")
        await helix.sessions.delete("s-1")


class TestStateInSQLiteAndStreamsInRedis(MixedContract, ExecutorContract):
    backend = "sqlite and redis"
    several_processes = False

    @pytest.fixture
    def state_url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'helix.db'}?synchronous=normal"


class TestStateInPostgresAndStreamsInRedis(
    MixedContract,
    ConversationsContract,
    WaitingContract,
    ReturningContract,
    RefreshingContract,
    SubAgentsContract,
):
    """The scenarios in which state and stream have to agree; the rest is played on either backend by itself."""

    backend = "postgres and redis"
    several_processes = False

    @pytest.fixture
    def state_url(self, postgres_url: str) -> str:
        return postgres_url


@pytest.mark.parametrize("runtime", ["in process", "dbos"])
async def test_a_run_whose_stream_is_lost_under_it_goes_on_and_makes_it_anew(runtime: str, tmp_path: Path) -> None:
    """As with streams in a Redis that keeps nothing on disk and is restarted."""
    said, go_on = asyncio.Event(), asyncio.Event()

    async def held_after_a_piece(_event: Any) -> None:
        if said.is_set():
            await go_on.wait()
        said.set()

    agent = Agent(name="poet", model=ScriptedModel(["Waves come, waves go."], chunk=5, pace=held_after_a_piece))
    backend = await open_both("memory://", "memory://", ManualClock())
    parts: dict[str, Any] = {"state": backend.state, "streams": backend.streams, "usage": backend.usage}
    kept = f"sqlite:///{tmp_path}/dbos.db"
    async with (
        DBOSAgentExecutor(**parts, agents=[agent], system_database_url=kept)
        if runtime == "dbos"
        else Executor(**parts, agents=[agent]) as helix
    ):
        run = await helix.execute(agent, "A line, please", "s-1")
        await anext(run.stream())
        await said.wait()
        await backend.streams.delete_stream("s-1")
        go_on.set()
        async with asyncio.timeout(20):
            assert isinstance(await run.result(), Completed)
        assert (await helix.sessions.runs("s-1")).items[0].attempt == 2
        told = [chunk.delta for chunk in await backend.streams.get_all_chunks("s-1") if isinstance(chunk, TextDelta)]
        assert "".join(told) == "Waves come, waves go."
