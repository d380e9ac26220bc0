"""A stream may lie in another slot than the session it belongs to, and be asked for before anybody knows where."""

import pytest

from helix_agents.domain.errors import SupersededError
from helix_agents.domain.sessions import CreateSession
from helix_agents.ports.backend import open_backend
from helix_agents.testing.redis_service import ForeignRedis, RedisService
from helix_agents.testing.scenes import commit, start, start_child
from helix_agents.testing.stream_scenes import STREAM, delta, open_writer, texts, write


async def test_a_stream_that_was_asked_for_too_early_is_found_where_its_session_came_to_lie(
    redis_service: RedisService | ForeignRedis,
) -> None:
    url = redis_service.new_url()
    async with await open_backend(url) as one, await open_backend(url) as other:
        assert await other.streams.get_stream_info("child") is None
        await start(one.state, STREAM)
        await start_child(one.state, "child", STREAM)
        writer = await one.streams.create_writer("child", "r-child", "helper", turn=1)
        await write(writer, delta("hello"))
        assert texts(await other.streams.get_all_chunks("child")) == ["hello"]
        again = await other.streams.create_writer("child", "r-child", "helper", turn=1, attempt=2)
        assert await write(again, delta("from another process")) == 2
        assert len(await one.streams.get_all_chunks("child")) == 2


async def test_a_writer_that_lost_a_stream_aside_is_refused_and_commits_nothing(
    redis_service: RedisService | ForeignRedis,
) -> None:
    async with await open_backend(redis_service.new_url()) as backend:
        await backend.state.create_session(STREAM, CreateSession(agent_type="writer", stream_id="aside"))
        await start(backend.state, STREAM)
        old = await backend.streams.create_writer("aside", "r-1", "writer", turn=1)
        await backend.streams.create_writer("aside", "r-1", "writer", turn=1, attempt=2)
        await old.write(delta("too late"))
        with pytest.raises(SupersededError):
            async with old.take() as stream:
                await commit(backend.state, 1, stream=stream)
        assert await backend.streams.get_all_chunks("aside") == ()
        assert await backend.state.get_latest_checkpoint(STREAM) is None


async def test_a_new_stream_of_a_session_made_here_is_not_looked_for_elsewhere(
    redis_service: RedisService | ForeignRedis,
) -> None:
    statements: list[str] = []
    async with await open_backend(redis_service.new_url(), seam=statements.append) as backend:
        await start(backend.state, STREAM)
        statements.clear()
        await open_writer(backend.streams)
        assert statements == ["atomic read create_writer", "atomic create_writer"]
