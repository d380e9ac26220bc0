"""Every script stays in one slot of a cluster, and no id can lead out of its namespace."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.crc import key_slot

from helix_agents.backends.redis.keys import Keys
from helix_agents.backends.redis.server import RedisServer
from helix_agents.domain.checkpoints import CheckpointMeta
from helix_agents.domain.commits import StepCommit
from helix_agents.domain.sessions import BranchPoint, CreateSession
from helix_agents.domain.usage import UsageEntry
from helix_agents.ports.backend import Backend, open_backend
from helix_agents.testing.redis_service import RedisService
from helix_agents.testing.scenes import (
    FENCE,
    answer,
    append_to,
    child_ref,
    effect,
    fence_of,
    said,
    staged,
    start,
    suspend,
    waiting,
)
from helix_agents.testing.stream_scenes import delta

META = CheckpointMeta(step_id="step", step_count=1)
AWKWARD = ("a}b{c", "{x}", "}", "{", "%7D", "a/b", "a:b", "*", "日本", "tree//a")


def slot_of(key: str) -> int:
    return key_slot(key.encode())


def test_no_two_ids_share_a_key_and_no_id_ends_a_hash_tag() -> None:
    keys = [Keys("helix", namespace).slot(tag).session("s") for namespace in AWKWARD for tag in AWKWARD]
    assert len(set(keys)) == len(AWKWARD) ** 2
    for key in keys:
        tag = key[key.index("{") + 1 : key.index("}")]
        assert key == f"helix:{{{tag}}}:s:s"


def test_trees_are_spread_over_the_slots() -> None:
    keys = Keys("helix", "")
    assert len({slot_of(keys.slot(f"session-{n}").session("s")) for n in range(200)}) > 190


class Slots:
    """Notes the keys of every statement that is sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: dict[str, set[int]] = {}
        send = RedisServer._statement

        async def noting(server: RedisServer, script: Any, what: str, keys: Sequence[str], args: Any) -> Any:
            slots = {slot_of(key) for key in keys}
            assert len(slots) <= 1, f"{script.name} {what} uses {len(slots)} slots: {keys}"
            self.seen.setdefault(f"{script.name} {what}", set()).update(slots)
            return await send(server, script, what, keys, args)

        monkeypatch.setattr(RedisServer, "_statement", noting)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisService]:
    with RedisService(cluster=True) as service:
        yield service


async def live_through_everything(backend: Backend) -> None:
    """A tree with a branch in which everything happens at least once."""
    store, streams = backend.state, backend.streams
    await start(store, append_messages=(said("hi"),), owner="worker")
    await store.renew_lease("worker", 1_000)
    create = CreateSession(parent_session_id="s-1", custom_state={"list": [0]})
    await start(store, "child", "r-child", create=create)
    writer = await streams.create_writer("s-1", "r-1", "writer", turn=1)
    aside = await streams.create_writer("child", "r-child", "writer", turn=1)
    await writer.write(delta("a"))
    await aside.write(delta("b", session_id="child", run_id="r-child"))
    await writer.flush()
    await aside.flush()
    await writer.write(delta("rides"))
    async with writer.take() as chunks:
        usage = UsageEntry(session_id="s-1", root_session_id="s-1", run_id="r-1", source_type="tokens", source_name="m")
        await store.save_state_and_promote_staging(
            "s-1",
            await store.load_state("s-1"),
            [said("one")],
            META,
            commit=StepCommit(
                fence=FENCE,
                step=1,
                writes=append_to("list", 1),
                refs=(child_ref("child"),),
                usage=(usage,),
                stream=chunks,
            ),
        )
    await aside.write(delta("rides too", session_id="child", run_id="r-child"))
    async with aside.take() as chunks:
        await store.save_state_and_promote_staging(
            "child",
            await store.load_state("child"),
            [said("one")],
            META,
            commit=StepCommit(
                fence=fence_of("r-child"), step=1, stream=chunks, pending=(_call(store, "deep", "child"),)
            ),
        )
    await store.begin_effect(effect("pay-1", stage=(staged("pay-1"),)))
    await store.finish_effect("s-1", "pay-1", "worker-1", {"ok": True})
    await store.set_interrupt_flag("s-1", "stop")
    await suspend(store, 2, waiting(store, "call-1"))
    await store.submit_answer(answer("call-1"))
    await store.submit_answer(answer("deep"))
    await start(store, run_id="r-2", abandon_pending=True)
    await store.clone_session(BranchPoint(from_session_id="s-1", message_count=1), "branch")
    await store.append_messages("branch", [said("on a branch")])
    await store.truncate_messages("s-1", 1)
    await store.list_sessions()
    await store.list_pending()
    await store.list_orphans()
    await store.expire_pending()
    await store.list_unresumed(0)
    await store.cleanup_orphaned_staging(0)
    await backend.usage.query_usage()
    await backend.usage.get_usage_rollup("s-1")
    await streams.end_stream("s-1", "r-1", status="completed")
    await streams.prune(0)
    lock = await backend.locks.acquire("a key", ttl_ms=60_000)
    await backend.locks.release(lock)
    await store.delete_session("s-1")
    assert [m.message for m in await store.load_transcript("branch")] == [said("hi"), said("on a branch")]
    await store.delete_session("branch")
    await store.vacuum()


def _call(store: Any, call: str, session: str) -> Any:
    return waiting(store, call, session, root_session_id="s-1")


@pytest.mark.parametrize("as_cluster", [False, True], ids=["plain client", "cluster client"])
async def test_every_script_touches_one_slot_on_a_cluster_that_refuses_more(
    cluster: RedisService, monkeypatch: pytest.MonkeyPatch, as_cluster: bool
) -> None:
    slots = Slots(monkeypatch)
    url = cluster.new_url(cluster="true") if as_cluster else cluster.new_url()
    async with await open_backend(url) as backend:
        await live_through_everything(backend)
    assert len({slot for used in slots.seen.values() for slot in used}) > 3


async def test_nothing_is_left_of_a_deleted_tree_in_its_slot(redis_service: RedisService) -> None:
    url = redis_service.new_url()
    async with await open_backend(url) as backend:
        await live_through_everything(backend)
        prefix = backend.state.server.prefix  # pyright: ignore[reportAttributeAccessIssue]
    client = Redis.from_url(redis_service.url, decode_responses=True)
    left = [key async for key in client.scan_iter(match=f"{prefix}:*", count=10_000)]
    await client.aclose()
    assert [key for key in left if "{tree/" in key and "{tree//lock" not in key] == []
