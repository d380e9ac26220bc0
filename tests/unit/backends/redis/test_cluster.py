"""A cluster of two nodes whose slots move, as they do when one grows: nobody who writes or reads has to notice."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis
from redis.crc import key_slot

from helix_agents.backends.redis import RedisStateStore
from helix_agents.domain.errors import StoreUnavailableError
from helix_agents.ports.backend import open_backend
from helix_agents.testing.redis_service import RedisService
from helix_agents.testing.scenes import said, start
from helix_agents.testing.service_process import free_port

WAIT_SECONDS = 60


class Cluster:
    """Two nodes. All slots begin at the first."""

    def __init__(self, one: RedisService, two: RedisService) -> None:
        self.url = one.url
        self.other_url = two.url
        self._port = two.url.rpartition(":")[2].partition("/")[0]
        self._one: Any = Redis.from_url(one.url)
        self._two: Any = Redis.from_url(two.url)
        self._names = {node: node.execute_command("CLUSTER", "MYID").decode() for node in (self._one, self._two)}

    def begin_to_move(self, slot: int) -> None:
        self._two.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", self._names[self._one])
        self._one.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", self._names[self._two])

    def move_keys(self, slot: int, most: int = 1_000_000) -> None:
        for key in self._one.execute_command("CLUSTER", "GETKEYSINSLOT", slot, most):
            self._one.execute_command("MIGRATE", "127.0.0.1", self._port, key, 0, 5_000)

    def end_move(self, slot: int) -> None:
        self.move_keys(slot)
        for node in (self._two, self._one):
            node.execute_command("CLUSTER", "SETSLOT", slot, "NODE", self._names[self._two])

    def used_slots(self) -> set[int]:
        """The slots of the first node in which something lies."""
        return {key_slot(key) for key in self._one.scan_iter(count=1_000)}

    def lose_a_slot(self) -> int:
        """Leave a slot to nobody, which ends the service of all of them; answers which."""
        free = next(slot for slot in range(16_384) if slot not in self.used_slots())
        self._one.execute_command("CLUSTER", "DELSLOTS", free)
        return free

    def give_back(self, slot: int) -> None:
        self._one.execute_command("CLUSTER", "ADDSLOTS", slot)

    def hang_up(self) -> None:
        """End every connection but ours."""
        for node in (self._one, self._two):
            node.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def close(self) -> None:
        self._one.close()
        self._two.close()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    bus = free_port()
    with (
        RedisService(cluster=True) as one,
        RedisService(settings={"cluster-enabled": "yes", "cluster-port": bus}) as two,
    ):
        port = two.url.rpartition(":")[2].partition("/")[0]
        one.ask("CLUSTER", "MEET", "127.0.0.1", port, str(bus))
        deadline = time.monotonic() + WAIT_SECONDS
        while b"cluster_state:ok" not in two.ask("CLUSTER", "INFO"):
            assert time.monotonic() < deadline, "the nodes do not find each other"
            time.sleep(0.05)
        cluster = Cluster(one, two)
        yield cluster
        cluster.close()


async def test_a_session_is_read_and_written_while_its_slot_moves(cluster: Cluster) -> None:
    async with asyncio.timeout(WAIT_SECONDS), await open_backend(f"{cluster.url}?cluster=true") as backend:
        store = backend.state
        assert isinstance(store, RedisStateStore)
        await start(store)
        await store.append_messages("s-1", [said("before")])
        slot = key_slot(store._space.slot("s-1").session("s-1").encode())
        await asyncio.to_thread(cluster.begin_to_move, slot)
        await asyncio.to_thread(cluster.move_keys, slot, 2)
        writing = asyncio.create_task(store.append_messages("s-1", [said("meanwhile")]))
        await asyncio.to_thread(cluster.move_keys, slot)
        assert await writing == 2, "what is half here and half there is waited for"
        assert await store.session_exists("s-1")
        await asyncio.to_thread(cluster.end_move, slot)
        assert await store.append_messages("s-1", [said("after")]) == 3


async def test_nobody_notices_that_slots_move(cluster: Cluster) -> None:
    written = dict.fromkeys((f"s-{n}" for n in range(8)), 0)
    moved = asyncio.Event()
    async with asyncio.timeout(WAIT_SECONDS), await open_backend(f"{cluster.url}?cluster=true") as backend:
        store = backend.state
        for name in written:
            await start(store, name, f"r-{name}")

        async def write(name: str) -> None:
            while not moved.is_set():
                await store.append_messages(name, [said("more")])
                written[name] += 1

        async def look() -> None:
            while not moved.is_set():
                assert (await store.list_sessions(limit=3)).total == len(written)

        async def move() -> None:
            for slot in sorted(await asyncio.to_thread(cluster.used_slots)):
                for step in (cluster.begin_to_move, cluster.end_move):
                    await asyncio.to_thread(step, slot)
            moved.set()

        await asyncio.gather(move(), look(), *map(write, written))
        for name, count in written.items():
            assert len(await store.load_transcript(name)) == count > 0


async def test_a_cluster_that_is_down_or_hangs_up_is_unavailable_and_found_again(cluster: Cluster) -> None:
    async with asyncio.timeout(WAIT_SECONDS), await open_backend(f"{cluster.url}?cluster=true") as backend:
        await start(backend.state)
        slot = await asyncio.to_thread(cluster.lose_a_slot)
        with pytest.raises(StoreUnavailableError, match="down"):
            await backend.state.append_messages("s-1", [said("lost")])
        await asyncio.to_thread(cluster.give_back, slot)
        while not await is_up(backend.state):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await asyncio.to_thread(cluster.hang_up)
        assert await backend.state.session_exists("s-1")
        assert await backend.state.append_messages("s-1", [said("back")]) == 1


async def is_up(store: Any) -> bool:
    try:
        return await store.session_exists("s-1")
    except StoreUnavailableError:
        return False


async def test_who_forgets_to_say_that_it_is_a_cluster_is_told(cluster: Cluster) -> None:
    # The second node has no slots, so it sends everybody on.
    async with await open_backend(cluster.other_url) as backend:
        with pytest.raises(StoreUnavailableError, match=r"cluster=true"):
            await backend.state.session_exists("s-1")
