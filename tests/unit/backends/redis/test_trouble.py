"""A Redis server in trouble is told apart from a wrong answer: forgetful, evicting, damaged, gone and back."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError

from helix_agents.backends.redis import RedisStateStore, RedisStreamManager
from helix_agents.backends.redis.bell import Bell
from helix_agents.backends.redis.keys import Keys
from helix_agents.backends.redis.line import Line
from helix_agents.backends.redis.server import new_connection
from helix_agents.domain.commits import SettleSession
from helix_agents.domain.errors import (
    InvalidStoreUrlError,
    LockHeldError,
    SessionCorruptError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
    UnsafeRedisError,
    UnstorableValueError,
)
from helix_agents.domain.sessions import CreateSession, SessionFilter
from helix_agents.ports.backend import Backend, open_backend
from helix_agents.testing.redis_service import RedisService
from helix_agents.testing.scenes import SESSION, append_to, commit, said, staged, start, suspend, waiting
from helix_agents.testing.stream_scenes import STREAM, delta, next_of, open_writer, reading, texts


@pytest.fixture
def service() -> Iterator[RedisService]:
    """A server of the test's own, which keeps what it answered for."""
    with RedisService(durable=True) as service:
        yield service


@pytest.fixture
async def client(service: RedisService) -> AsyncIterator[Redis]:
    client = Redis.from_url(service.url)
    yield client
    await client.aclose()


@pytest.fixture
async def backend(service: RedisService) -> AsyncIterator[Backend]:
    async with await open_backend(service.url) as backend:
        yield backend


async def test_a_server_that_forgot_the_scripts_is_given_them_again(backend: Backend, client: Redis) -> None:
    await start(backend.state)
    await client.execute_command("SCRIPT", "FLUSH")
    await commit(backend.state, messages=[said("after a flush")])
    assert await backend.state.get_message_count(SESSION) == 1
    await client.execute_command("SCRIPT", "FLUSH")
    assert (await backend.state.list_sessions()).total == 1


async def test_what_redis_has_no_form_for_is_told_as_such(backend: Backend) -> None:
    store = backend.state
    await start(store)
    for call in (
        lambda: store.load_state("\ud800"),
        lambda: store.list_sessions(SessionFilter(user_id="\ud800")),
        lambda: store.create_session("s-2", CreateSession(expires_at=10**400)),
        lambda: store.renew_lease("worker-1", 10**400),
        lambda: backend.streams.get_all_chunks("\ud800"),
    ):
        with pytest.raises(UnstorableValueError):
            await call()
    assert [line.session_id for line in (await store.list_sessions()).items] == [SESSION]


async def test_a_store_may_be_used_from_another_event_loop(backend: Backend) -> None:
    """A process keeps its lease from a thread of its own."""
    for _ in range(2):
        lease = await asyncio.to_thread(asyncio.run, backend.state.renew_lease("worker-1", 60_000))
        assert await backend.state.find_lease("worker-1") == lease


async def test_everything_answered_is_there_after_a_crash_of_the_server(
    backend: Backend, service: RedisService
) -> None:
    store = backend.state
    await start(store, append_messages=(said("hi"),))
    await suspend(store, 1, waiting(store, "call-1"), writes=append_to("list", 1))
    writer = await open_writer(backend.streams)
    await writer.write(delta("kept"))
    await writer.flush()
    before = await store.load_state(SESSION)
    await asyncio.to_thread(service.restart)
    assert await store.load_state(SESSION) == before
    assert texts(await backend.streams.get_all_chunks(STREAM)) == ["kept"]
    assert (await store.list_pending()).total == 1
    await writer.write(delta("goes on"))
    assert await writer.flush() == 2


async def test_a_reader_goes_on_after_a_crash_of_the_server(backend: Backend, service: RedisService) -> None:
    writer = await open_writer(backend.streams)
    await writer.write(delta("before"))
    await writer.flush()
    reader = await reading(backend.streams)
    assert (await next_of(reader)).sequence == 1
    waiting_for_more = asyncio.create_task(next_of(reader))
    await asyncio.sleep(0)
    await asyncio.to_thread(service.restart)
    await writer.write(delta("after"))
    await writer.flush()
    assert (await waiting_for_more).sequence == 2
    await reader.close()


async def test_a_lost_subscription_is_replaced_and_never_connected_again(service: RedisService, client: Redis) -> None:
    connections: list[Any] = []

    def connect() -> Any:
        connections.append(new_connection(service.url))
        return connections[-1]

    bell = Bell(connect, "redis")
    async with asyncio.timeout(10), bell.listen("first") as first:
        # The driver has noticed that the server hung up, and the task that listens has not been told yet.
        await connections[0].disconnect(nowait=True)
        async with bell.listen("second") as second:
            await client.publish("first", "")
            await client.publish("second", "")
            assert await first.wait(5)
            assert await second.wait(5)
            assert [connection.is_connected for connection in connections] == [False, True]
    await bell.close()


async def test_a_server_that_is_gone_is_unavailable_and_says_so(backend: Backend, service: RedisService) -> None:
    await start(backend.state)
    await asyncio.to_thread(service.kill)
    for work in (backend.state.load_state(SESSION), backend.state.append_messages(SESSION, [said("lost")])):
        with pytest.raises(StoreUnavailableError) as refusal:
            await work
        assert refusal.value.retryable
    await asyncio.to_thread(service.start)
    assert await backend.state.get_message_count(SESSION) == 0
    assert await backend.state.append_messages(SESSION, [said("stored")]) == 1


async def test_nobody_there_when_opening_is_unavailable(service: RedisService) -> None:
    await asyncio.to_thread(service.stop)
    with pytest.raises(StoreUnavailableError):
        await open_backend(service.url)


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
async def test_a_server_that_evicts_is_refused(service: RedisService, client: Redis, policy: str) -> None:
    await client.execute_command("CONFIG", "SET", "maxmemory-policy", policy)
    with pytest.raises(UnsafeRedisError, match=f"{policy}.*noeviction"):
        await open_backend(service.url)
    with pytest.raises(UnsafeRedisError):
        await RedisStateStore.open(service.url)
    with pytest.raises(UnsafeRedisError):
        await RedisStreamManager.open(service.url)


@pytest.mark.parametrize("policy", ["noeviction", "volatile-lru", "volatile-ttl"])
async def test_a_server_that_keeps_what_has_no_expiry_is_taken(
    service: RedisService, client: Redis, policy: str
) -> None:
    await client.execute_command("CONFIG", "SET", "maxmemory-policy", policy)
    async with await open_backend(service.url) as backend:
        await start(backend.state)
        await commit(backend.state, messages=[said("hi")])
    keys = [key async for key in client.scan_iter(count=10_000)]
    assert {await client.ttl(key) for key in keys} == {-1}, "nothing may expire by itself"


@pytest.mark.parametrize("policy", ["volatile-lru", "volatile-ttl", "allkeys-lru"])
async def test_a_server_that_may_evict_what_expires_is_refused(
    service: RedisService, client: Redis, policy: str
) -> None:
    await client.execute_command("CONFIG", "SET", "maxmemory-policy", policy)
    with pytest.raises(UnsafeRedisError, match=policy):
        await open_backend(service.url, state_ttl=60)
    with pytest.raises(UnsafeRedisError, match=policy):
        await RedisStateStore.open(service.url, state_ttl=60)


@pytest.mark.parametrize("policy", ["volatile-lru", "volatile-ttl", "volatile-random"])
async def test_a_full_server_that_evicts_what_expires_takes_no_lock_from_its_holder(
    service: RedisService, client: Redis, policy: str
) -> None:
    await client.execute_command("CONFIG", "SET", "maxmemory-policy", policy)
    async with await open_backend(service.url) as backend, await open_backend(service.url) as other:
        lock = await backend.locks.acquire("door", ttl_ms=600_000)
        lock = await backend.locks.renew(lock, ttl_ms=600_000)
        await client.set("cache", "of somebody else", ex=600)
        await client.execute_command("CONFIG", "SET", "maxmemory", str((await client.info("memory"))["used_memory"]))
        with pytest.raises(OutOfMemoryError):
            await client.set("more", b"x" * 1_000_000)
        await client.execute_command("CONFIG", "SET", "maxmemory", "0")
        assert await client.get("cache") is None, "the server evicts"
        with pytest.raises(LockHeldError):
            await other.locks.acquire("door", ttl_ms=600_000)
        await backend.locks.release(lock)
        keys = [key async for key in client.scan_iter(match="*lock*", count=10_000)]
        assert [await client.ttl(key) > 0 for key in keys] == [True], "what nobody holds is forgotten"


@pytest.fixture
def saving() -> Iterator[RedisService]:
    """A server that saves what it has now and then, and may be told where."""
    with RedisService(settings={"save": "3600 1", "enable-protected-configs": "yes"}) as service:
        yield service


async def test_a_server_that_cannot_save_is_waited_for(saving: RedisService, tmp_path: Path) -> None:
    """As one does whose disk is full: it refuses writes until it could save again."""
    there, gone = tmp_path, tmp_path / "gone"
    async with Redis.from_url(saving.url) as client, await open_backend(saving.url) as backend:
        await start(backend.state)
        await asyncio.to_thread(gone.mkdir)
        await client.execute_command("CONFIG", "SET", "dir", str(gone))
        await asyncio.to_thread(gone.rmdir)
        await saved(client, "err")
        with pytest.raises(StoreUnavailableError, match="MISCONF") as refusal:
            await commit(backend.state, messages=[said("not now")])
        assert refusal.value.retryable
        await client.execute_command("CONFIG", "SET", "dir", str(there))
        await saved(client, "ok")
        assert (await commit(backend.state, messages=[said("now")])).message_count == 1


async def saved(client: Redis, status: str) -> None:
    """Have the server save what it has, with this outcome."""
    await client.execute_command("BGSAVE")
    async with asyncio.timeout(10):
        while (about := await client.info("persistence"))["rdb_bgsave_in_progress"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert about["rdb_last_bgsave_status"] == status


async def test_what_a_user_may_not_do_is_named(service: RedisService, client: Redis) -> None:
    await client.execute_command("ACL", "SETUSER", "guest", "on", ">secret", "~*", "&*", "+@all", "-rpush")
    async with await open_backend(service.url.replace("://", "://guest:secret@")) as backend:
        await start(backend.state)
        with pytest.raises(StoreReadOnlyError, match=r"grant access to the user .*rpush") as refusal:
            await commit(backend.state, messages=[said("hi")])
        assert "file" not in str(refusal.value)


async def test_a_full_server_refuses_and_loses_nothing(backend: Backend, client: Redis) -> None:
    await start(backend.state)
    await commit(backend.state, messages=[said("before")])
    await client.execute_command("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(StoreFullError):
        await commit(backend.state, 2, messages=[said("too much")])
    assert await backend.state.get_message_count(SESSION) == 1
    await client.execute_command("CONFIG", "SET", "maxmemory", "0")
    await commit(backend.state, 2, messages=[said("after")])
    assert (await backend.state.load_state(SESSION)).message_count == 2


async def test_more_than_a_script_takes_at_once_is_dropped_too(backend: Backend) -> None:
    await start(backend.state)
    await commit(backend.state, stage=tuple(staged(f"c-{number}", step=2) for number in range(9_000)))
    await start(backend.state, run_id="r-2")
    assert not await backend.state.has_staged_changes(SESSION)
    assert (await backend.state.list_runs(SESSION)).total == 2


SLOT = Keys("helix", "").slot(SESSION)


@pytest.mark.parametrize("part", ["session", "messages", "states", "checkpoints", "row"])
async def test_a_session_with_a_part_gone_is_corrupt_and_never_a_smaller_one(
    backend: Backend, client: Redis, part: str
) -> None:
    store = backend.state
    await start(store, append_messages=(said("hi"),))
    await commit(store, messages=[said("one")], writes=append_to("list", 1))
    if part == "row":
        await client.hdel(SLOT.session(SESSION), "row")  # pyright: ignore[reportGeneralTypeIssues]
    elif part in ("messages", "states"):
        kind = SLOT.messages("") if part == "messages" else SLOT.states("")
        keys = [key async for key in client.scan_iter(match=kind.replace("{", "[{]") + "*", count=10_000)]
        assert len(keys) == 1
        await client.delete(*keys)
    else:
        await client.delete(SLOT.session(SESSION) if part == "session" else SLOT.checkpoints(SESSION))
    reads = {
        "messages": store.load_transcript,
        "states": store.load_state,
        "checkpoints": store.list_checkpoints,
        "session": store.load_state,
        "row": store.load_state,
    }
    with pytest.raises(SessionCorruptError):
        await reads[part](SESSION)
    with pytest.raises(SessionCorruptError):
        await commit(store, 2, messages=[said("two")], writes=append_to("list", 2))
    if part in ("session", "row"):
        for work in (store.create_session(SESSION), store.session_exists(SESSION)):
            with pytest.raises(SessionCorruptError):
                await work


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis://", "a host is missing"),
        ("redis://localhost?cluster=maybe", "neither true nor false"),
        ("redis://localhost?prefix=a{b}", "cannot start a key"),
        ("redis://localhost/0?prefix=", "cannot start a key"),
        ("redis://localhost/sessions", "'sessions' is not a number"),
        ("redis://localhost:port/0", "port"),
        ("redis://localhost/0?colour=blue", "colour"),
    ],
)
async def test_a_url_that_cannot_be_is_refused(url: str, reason: str) -> None:
    with pytest.raises(InvalidStoreUrlError, match=reason):
        await open_backend(url)


@pytest.mark.parametrize(
    ("ending", "reason"), [("/99999", "index is out of range"), ("/0?cluster=true", "cluster support disabled")]
)
async def test_a_server_that_refuses_is_not_tried_again(service: RedisService, ending: str, reason: str) -> None:
    address = service.url.partition("?")[0].rpartition("/")[0]
    with pytest.raises(InvalidStoreUrlError, match=reason):
        await open_backend(address + ending)


async def test_a_password_is_never_told(service: RedisService, client: Redis) -> None:
    await client.execute_command("CONFIG", "SET", "requirepass", "right")
    wrong = service.url.replace("redis://", "redis://:wrong@")
    with pytest.raises(InvalidStoreUrlError) as refusal:
        await open_backend(wrong)
    assert "wrong" not in str(refusal.value).replace("WRONGPASS", "")
    async with await open_backend(service.url.replace("redis://", "redis://:right@")) as backend:
        await backend.state.create_session(SESSION)


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
async def test_both_names_of_the_technology_open_it(service: RedisService, scheme: str) -> None:
    async with await open_backend(service.url.replace("redis://", f"{scheme}://")) as backend:
        await backend.state.create_session(SESSION)
        assert backend.streams.shares_transactions_with(backend.state)


def test_a_missing_driver_names_its_cure() -> None:
    code = (
        "import sys; sys.modules['redis'] = None\n"
        "import asyncio; from helix_agents.ports.backend import open_backend\n"
        "from helix_agents.domain.errors import MissingExtraError\n"
        "try: asyncio.run(open_backend('redis://localhost'))\n"
        "except MissingExtraError as problem: print(problem)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'helix-agents[redis]'" in done.stdout


async def test_a_family_larger_than_one_line_of_an_answer_is_stopped_and_deleted(redis_service: RedisService) -> None:
    """The server tells the new revision of each session that a write changed; of thousands that is a long answer."""
    children = 4_000
    async with await open_backend(redis_service.new_url()) as backend:
        store = backend.state
        await start(store)
        below = CreateSession(parent_session_id=SESSION, root_session_id=SESSION)
        for first in range(0, children, 500):
            await asyncio.gather(*(store.create_session(f"c-{n}", below) for n in range(first, first + 500)))
        stop = SettleSession(session_id=SESSION, expected=("active",), status="interrupted")
        assert (await store.settle_session(stop)).ok
        assert (await store.list_sessions(SessionFilter(statuses=("interrupted",)), limit=1)).total == children + 1
        await store.delete_session(SESSION)
        assert (await store.list_sessions()).total == 0


class Told:
    """A connection that answers what it is told to."""

    is_connected = True

    def __init__(self) -> None:
        self.answers: asyncio.Queue[str | Exception] = asyncio.Queue()

    async def connect(self) -> None: ...

    async def disconnect(self, nowait: bool = False) -> None: ...

    async def send_packed_command(self, command: list[bytes], check_health: bool = True) -> None: ...

    async def read_response(self) -> str:
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_an_answer_that_nobody_can_read_leaves_nobody_waiting() -> None:
    connection = Told()
    line = Line(connection, patience=5)
    async with asyncio.timeout(10):
        first = asyncio.create_task(line.send("one"))
        await asyncio.sleep(0)
        gathered = asyncio.create_task(line.send("two"))
        await asyncio.sleep(0)
        connection.answers.put_nowait("one")
        assert await first == "one"
        # What gathered is out by now; the next gathers behind it.
        later = asyncio.create_task(line.send("three"))
        await asyncio.sleep(0)
        connection.answers.put_nowait(ValueError("Separator is found, but chunk is longer than limit"))
        with pytest.raises(ValueError, match="longer than limit"):
            await gathered
        connection.answers.put_nowait("three")
        assert await later == "three"
