"""With `state_ttl` a session that is at rest and alone expires as a whole; no other ever does."""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from helix_agents.backends.redis.keys import Keys
from helix_agents.domain.errors import DefinitionError, InvalidStoreUrlError, SessionNotFoundError
from helix_agents.domain.runs import RunUpdate
from helix_agents.domain.sessions import BranchPoint, CreateSession
from helix_agents.domain.usage import UsageEntry
from helix_agents.ports.backend import Backend, open_backend
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.contracts.executor.stage import until
from helix_agents.testing.observation import ALL_STATES
from helix_agents.testing.redis_service import ForeignRedis, RedisService
from helix_agents.testing.scenes import (
    SESSION,
    answer,
    append_to,
    child_ref,
    commit,
    effect,
    fence_of,
    said,
    staged,
    start,
    start_child,
    suspend,
    waiting,
)
from helix_agents.testing.stream_scenes import STREAM, delta, open_writer, write

Act = Callable[[SessionStateStore], Awaitable[Any]]
DAY = timedelta(days=1)
SOON = 0.3


@pytest.fixture
def url(redis_service: RedisService | ForeignRedis) -> str:
    return redis_service.new_url()


@pytest.fixture
async def client(url: str) -> AsyncIterator[Redis]:
    client = Redis.from_url(url.partition("?")[0])
    yield client
    await client.aclose()


@pytest.fixture
async def backend(url: str) -> AsyncIterator[Backend]:
    async with await open_backend(url, state_ttl=DAY) as backend:
        yield backend


async def expiries(client: Redis, url: str, tag: str = SESSION) -> set[int]:
    """When the keys of a slot expire: -1 never."""
    prefix = url.partition("prefix=")[2]
    slot = Keys(prefix, "").slot(tag).prefix.replace("{", "[{]")
    keys = [key async for key in client.scan_iter(match=f"{slot}*", count=10_000)]
    assert keys
    return {await client.pexpiretime(key) for key in keys}


async def end(store: SessionStateStore, step: int = 1, **fields: Any) -> None:
    await commit(store, step, messages=[said("bye")], run=RunUpdate(status="completed"), **fields)


async def _run(store: SessionStateStore) -> None:
    await start(store, SESSION, "r-2")


async def _wait(store: SessionStateStore) -> None:
    await start(store, SESSION, "r-2")
    await suspend(store, 1, waiting(store, "call-1", run_id="r-2"), fence=fence_of("r-2"))


async def _wait_with_an_answer(store: SessionStateStore) -> None:
    await _wait(store)
    await store.submit_answer(answer("call-1"))


KEEPS: dict[str, Act] = {
    "runs": _run,
    "waits": _wait,
    "has an answer nobody took": _wait_with_an_answer,
    "was paused": lambda store: store.update_status(SESSION, "paused"),
    "has a child": lambda store: store.create_session("child", CreateSession(parent_session_id=SESSION)),
    "has a child that runs": lambda store: start_child(store, "child", SESSION),
    "names it as its root": lambda store: store.create_session("below", CreateSession(root_session_id=SESSION)),
    "has a branch": lambda store: store.clone_session(BranchPoint(from_session_id=SESSION), "branch"),
}


async def gone(store: SessionStateStore, session_id: str = SESSION) -> None:
    async def is_gone() -> bool:
        return not await store.session_exists(session_id)

    await until(is_gone)


@pytest.mark.parametrize("kept", [DAY, None], ids=["with the option", "without it"])
@pytest.mark.parametrize("why", KEEPS)
async def test_a_session_does_not_expire_any_more_once_it(
    backend: Backend, client: Redis, url: str, why: str, kept: timedelta | None
) -> None:
    await start(backend.state, append_messages=(said("hi"),))
    await end(backend.state)
    assert -1 not in await expiries(client, url)
    async with await open_backend(url, state_ttl=kept) as other:
        await KEEPS[why](other.state)
        assert await expiries(client, url) == {-1}
        await other.state.append_messages(SESSION, [said("more")])
        assert await expiries(client, url) == {-1}


async def test_everything_of_a_session_at_rest_expires_at_one_moment(backend: Backend, client: Redis, url: str) -> None:
    store = backend.state
    await start(store, append_messages=(said("hi"),))
    writer = await open_writer(backend.streams)
    await store.stage_changes(SESSION, staged("call-0"))
    await store.begin_effect(effect("call-2"))
    await store.add_sub_session_refs(SESSION, [child_ref("far")])
    await suspend(store, 1, waiting(store, "call-1"), writes=append_to("list", 1))
    await store.submit_answer(answer("call-1"))
    checkpoint = await store.get_latest_checkpoint(SESSION)
    assert checkpoint is not None
    await start(store, SESSION, "r-2", rewind_to=checkpoint.checkpoint_id)
    assert await expiries(client, url) == {-1}
    await write(writer, delta("hello"))
    usage = UsageEntry(
        session_id=SESSION, root_session_id=SESSION, run_id="r-2", step=1, source_type="tool", source_name="t"
    )
    await end(store, fence=fence_of("r-2"), writes=append_to("list", 2), usage=(usage,))
    (moment,) = await expiries(client, url)
    assert abs(moment - store.now_ms() - DAY.total_seconds() * 1000) < 60_000
    await backend.usage.record_usage([msgspec.structs.replace(usage, n=7)])
    await store.merge_custom_state(SESSION, append_to("other", 1))
    assert len(await expiries(client, url)) == 1
    await backend.streams.end_stream(STREAM, "r-1", status="completed")
    await store.truncate_messages(SESSION, 1)
    (later,) = await expiries(client, url)
    assert later > moment


async def test_without_the_option_nothing_expires(client: Redis, url: str) -> None:
    async with await open_backend(url) as backend:
        await backend.state.create_session(SESSION)
        await start(backend.state)
        await end(backend.state)
    assert await expiries(client, url) == {-1}


async def test_a_child_a_branch_and_those_they_came_from_stay_when_they_end(
    backend: Backend, client: Redis, url: str
) -> None:
    store = backend.state
    await start(store, append_messages=(said("hi"),))
    run_id = await start_child(store)
    await store.clone_session(BranchPoint(from_session_id=SESSION), "branch")
    await start(store, "branch", "r-branch")
    await end(store, session_id="branch", fence=fence_of("r-branch"))
    await end(store, session_id="child", fence=fence_of(run_id))
    await end(store)
    assert await expiries(client, url) == {-1}
    for other in ("child", "branch"):
        await store.delete_session(other)
    await store.patch_metadata(SESSION, {"alone": "again"})
    assert -1 not in await expiries(client, url)


async def test_a_session_that_expired_is_gone_from_everything_and_its_id_is_free(url: str, client: Redis) -> None:
    async with await open_backend(url, state_ttl=SOON) as backend:
        store = backend.state
        create = CreateSession(agent_type="writer", user_id="ann", stream_id="aside")
        await start(store, append_messages=(said("hi"),), create=create)
        writer = await backend.streams.create_writer("aside", "r-1", "writer", turn=1)
        await write(writer, delta("hello"))
        await backend.streams.end_stream("aside", "r-1", status="completed")
        usage = UsageEntry(
            session_id=SESSION, root_session_id=SESSION, run_id="r-1", step=1, source_type="tool", source_name="t", n=1
        )
        await commit(store, 1, pending=(waiting(store, "call-1"),), usage=(usage,))
        await end(store, 2, drop_pending=True)
        await gone(store)
        with pytest.raises(SessionNotFoundError):
            await store.load_state(SESSION)
        listed = await store.list_sessions()
        assert (listed.total, listed.items) == (0, ())
        assert (await store.list_pending(ALL_STATES)).total == 0
        assert await store.get_run("r-1") is None
        assert (await backend.usage.query_usage()).total == 0
        assert await backend.streams.get_stream_info("aside") is None
        await start(store, SESSION, "r-1", append_messages=(said("anew"),))
        assert (await store.load_state(SESSION)).message_count == 1
        assert (await store.list_sessions()).total == 1


async def test_a_listing_of_a_process_without_the_option_counts_no_session_that_expired(url: str) -> None:
    async with await open_backend(url, state_ttl=SOON) as backend, await open_backend(url) as other:
        await backend.state.create_session("brief")
        await start(other.state)
        await gone(other.state, "brief")
        listed = await other.state.list_sessions()
        assert (listed.total, [each.session_id for each in listed.items]) == (1, [SESSION])


async def test_a_session_that_was_changed_in_time_is_there_after_its_first_moment(url: str, client: Redis) -> None:
    soon = timedelta(seconds=2)
    async with await open_backend(url, state_ttl=soon) as brief, await open_backend(url, state_ttl=DAY) as backend:
        await brief.state.create_session(SESSION)
        (first,) = await expiries(client, url)
        await backend.state.append_messages(SESSION, [said("still here")])

        async def is_past() -> bool:
            return backend.state.now_ms() > first

        await until(is_past)
        assert (await backend.state.list_sessions()).total == 1
        assert await backend.state.get_message_count(SESSION) == 1


async def test_the_url_can_ask_for_it(url: str, client: Redis) -> None:
    async with await open_backend(f"{url}&state_ttl=86400") as backend:
        await backend.state.create_session(SESSION)
    (moment,) = await expiries(client, url.partition("&")[0])
    assert moment > 0


@pytest.mark.parametrize("value", ["0", "-1", "soon", ""])
async def test_a_url_with_a_time_that_is_none_is_refused(url: str, value: str) -> None:
    with pytest.raises(InvalidStoreUrlError, match="seconds"):
        await open_backend(f"{url}&state_ttl={value}")


async def test_a_time_that_is_over_already_is_refused(url: str) -> None:
    with pytest.raises(DefinitionError, match="state_ttl"):
        await open_backend(url, state_ttl=timedelta(0))
