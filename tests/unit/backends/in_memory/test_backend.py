"""What `memory://` opens."""

from pathlib import Path
from typing import Any

import pytest

from helix_agents.backends.in_memory import open_backend
from helix_agents.domain.errors import (
    InvalidIdError,
    InvalidStoreUrlError,
    StateSizeExceededError,
    StoreClosedError,
    UnknownBackendError,
)
from helix_agents.domain.sessions import CreateSession
from helix_agents.domain.usage import UsageEntry
from helix_agents.ports.backend import open_backend as open_by_scheme
from helix_agents.ports.state_store import StoreLimits, check_complete
from helix_agents.testing.clock import ManualClock

pytestmark = pytest.mark.anyio


async def test_the_url_without_a_name_opens_data_of_its_own():
    async with await open_by_scheme("memory://") as one, await open_by_scheme("memory://") as other:
        await one.state.create_session("s-1")
        assert not await other.state.session_exists("s-1")


async def test_the_url_with_a_name_opens_the_same_data_again():
    async with await open_backend("memory://shared") as one:
        await one.state.create_session("s-1")
    async with await open_backend("memory://shared") as again:
        assert await again.state.session_exists("s-1")


async def test_namespaces_of_one_memory_do_not_see_each_other():
    async with (
        await open_backend("memory://tenants", namespace="a") as one,
        await open_backend("memory://tenants", namespace="b") as other,
    ):
        await one.state.create_session("s-1")
        assert not await other.state.session_exists("s-1")
        lock = await one.locks.acquire("k", ttl_ms=1_000)
        assert (await other.locks.acquire("k", ttl_ms=1_000)).key == lock.key


async def test_all_parts_stand_on_one_memory():
    async with await open_backend("memory://") as backend:
        check_complete(backend.state)
        assert backend.streams.shares_transactions_with(backend.state)
        await backend.state.create_session("s-1")
        await backend.state.create_session("child", CreateSession(parent_session_id="s-1"))
        spent = UsageEntry(
            session_id="child", root_session_id="s-1", run_id="r-1", source_type="custom", source_name="metric"
        )
        await backend.usage.record_usage([spent])
        assert (await backend.usage.get_usage_rollup("s-1")).sessions == 1
        await backend.state.delete_session("s-1")
        assert (await backend.usage.query_usage()).total == 0


async def test_options_reach_the_parts():
    clock = ManualClock()
    async with await open_backend("memory://", clock=clock, limits=StoreLimits(state_bytes=10)) as backend:
        assert backend.state.now_ms() == clock.now_ms()
        with pytest.raises(StateSizeExceededError):
            await backend.state.create_session("s-1", CreateSession(custom_state={"a": "x" * 20}))


async def test_a_closed_backend_refuses_calls():
    backend = await open_backend("memory://")
    await backend.close()
    await backend.close()
    with pytest.raises(StoreClosedError):
        await backend.state.session_exists("s-1")
    with pytest.raises(StoreClosedError):
        await backend.locks.acquire("k", ttl_ms=1)


async def test_another_url_is_refused():
    with pytest.raises(InvalidStoreUrlError):
        await open_backend("redis://here")


async def test_an_impossible_namespace_is_refused():
    with pytest.raises(InvalidIdError):
        await open_backend("memory://", namespace="line\nbreak")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql+asyncpg://localhost/x", r"'postgresql\+asyncpg' URLs; .* Did you mean 'postgresql://'\?"),
        ("sqllite:///x.db", r"Did you mean 'sqlite://'\?"),
        (Path("x.db"), "it is of type PosixPath; it has to be text, such as sqlite:///helix.db"),
    ],
)
async def test_a_url_that_others_would_take_is_refused_with_the_one_that_was_meant(url: Any, told: str) -> None:
    with pytest.raises((UnknownBackendError, InvalidStoreUrlError), match=told):
        await open_by_scheme(url)
