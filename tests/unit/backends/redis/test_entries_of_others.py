"""Redis has no place for the capabilities' rows: what is to ride in its commits is refused, never left out."""

import pytest

from helix_agents.domain.commits import StartRun
from helix_agents.domain.entries import Put
from helix_agents.domain.errors import UnsupportedBackendError
from helix_agents.domain.sessions import CreateSession
from helix_agents.ports.backend import open_backend
from helix_agents.testing.redis_service import ForeignRedis, RedisService
from helix_agents.testing.scenes import commit, start
from helix_agents.testing.stream_scenes import STREAM

CHANGE = Put(scope="sys.case", key="k", value="1")


async def test_entries_of_another_store_are_refused_and_nothing_is_written(
    redis_service: RedisService | ForeignRedis,
) -> None:
    async with await open_backend(redis_service.new_url()) as backend:
        with pytest.raises(UnsupportedBackendError, match="redis:// does not support the state capabilities"):
            await backend.state.start_run(
                StartRun(session_id=STREAM, run_id="r-0", create=CreateSession(), entries=(CHANGE,))
            )
        await start(backend.state, STREAM)
        with pytest.raises(UnsupportedBackendError):
            await commit(backend.state, 1, entries=(CHANGE,))
        with pytest.raises(UnsupportedBackendError):
            await commit(backend.state, 1, audit=({"a": 1},))
        assert await backend.state.get_latest_checkpoint(STREAM) is None
