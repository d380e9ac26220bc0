"""A node of a cluster dies, and its replica takes over: whoever knew only the dead node finds the others."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from helix_agents import Agent, Executor, ScriptedModel, tool
from helix_agents.backends.redis import RedisStateStore
from helix_agents.backends.redis.cluster import KnownNodes, Node
from helix_agents.domain.errors import StoreUnavailableError
from helix_agents.ports.backend import open_backend
from helix_agents.testing import call
from helix_agents.testing.contracts.executor.stage import Gate, until
from helix_agents.testing.redis_service import RedisService
from helix_agents.testing.scenes import SESSION, commit, said, start
from helix_agents.testing.service_process import free_port

SECONDS = 60.0


class Pair:
    """A cluster of one node and its replica."""

    def __init__(self, node: RedisService, replica: RedisService) -> None:
        self._node = node
        self._replica = replica
        self.url = f"{node.url}?cluster=true"

    def fail_over(self) -> None:
        """Kill the node once its replica has everything, and have the replica take its place."""
        self._until(b"offsets are the same", lambda: self._offset(self._node) == self._offset(self._replica))
        self._node.kill()
        self._replica.ask("CLUSTER", "FAILOVER", "TAKEOVER")
        self._until(b"role:master", lambda: b"role:master" in self._replica.ask("INFO", "replication"))

    @staticmethod
    def _offset(service: RedisService) -> bytes:
        lines = service.ask("INFO", "replication").splitlines()
        return next(line for line in lines if line.startswith(b"master_repl_offset:"))

    @staticmethod
    def _until(what: bytes, holds: Any) -> None:
        deadline = time.monotonic() + SECONDS
        while not holds():
            assert time.monotonic() < deadline, what
            time.sleep(0.05)


def test_who_connects_next_asks_a_node_that_answers_before_one_that_is_silent() -> None:
    one, two, three = (Node("127.0.0.1", port) for port in (1, 2, 3))
    known = KnownNodes(one)
    known.told(two, [one, three])
    assert known.all == (two, one, three)
    known.silent(two)
    assert known.all == (one, three, two)
    # One that is no part of the cluster any more is forgotten, except that of the URL, whose name may lead to another.
    known.told(three, [three])
    assert known.all == (three, one)


@pytest.fixture
def pair() -> Iterator[Pair]:
    bus = free_port()
    with (
        RedisService(cluster=True) as node,
        RedisService(settings={"cluster-enabled": "yes", "cluster-port": bus}) as replica,
    ):
        name = node.ask("CLUSTER", "MYID").splitlines()[1].decode()
        port = replica.url.rpartition(":")[2].partition("/")[0]
        node.ask("CLUSTER", "MEET", "127.0.0.1", port, str(bus))
        Pair._until(b"they meet", lambda: replica.ask("CLUSTER", "REPLICATE", name) == b"+OK\r\n")
        Pair._until(b"it follows", lambda: b"master_link_status:up" in replica.ask("INFO", "replication"))
        Pair._until(b"it is known", lambda: port.encode() in node.ask("CLUSTER", "SLOTS"))
        yield Pair(node, replica)


async def test_what_was_written_is_there_and_more_is_written_after_a_failover(pair: Pair) -> None:
    async with asyncio.timeout(SECONDS), await open_backend(pair.url) as backend:
        await start(backend.state)
        await backend.state.append_messages(SESSION, [said("before")])
        await asyncio.to_thread(pair.fail_over)

        async def is_written() -> bool:
            with suppress(StoreUnavailableError):
                await commit(backend.state, messages=[said("after")])
                return True
            return False

        await until(is_written)
        assert [each.message for each in await backend.state.load_transcript(SESSION)] == [
            said("before"),
            said("after"),
        ]


async def test_a_process_keeps_its_lease_and_its_run_through_a_failover(pair: Pair) -> None:
    gate = Gate()

    @tool
    async def work() -> str:
        """Work."""
        await gate.wait()
        return "worked"

    agent = Agent(name="worker", model=ScriptedModel([call("work"), "Done."]), tools=[work])
    async with asyncio.timeout(SECONDS), Executor.open(pair.url, agents=[agent], lease_ms=1_500) as helix:
        run = await helix.execute(agent, "Go.", SESSION)
        await gate.until_reached()
        record = (await helix.sessions.runs(SESSION)).items[0]
        assert record.owner is not None
        await asyncio.to_thread(pair.fail_over)

        async def lease() -> int:
            with suppress(StoreUnavailableError):
                found = await helix._services.store.find_lease(str(record.owner))
                return 0 if found is None else found.expires_at
            return 0

        async def is_renewed(after: int) -> bool:
            return await lease() > after

        await until(lambda: is_renewed(0))
        now = await lease()
        await until(lambda: is_renewed(now))
        gate.opened.set()
        assert await run.output() == "Done."
        assert (await helix.sessions.runs(SESSION)).items[0].attempt == 1


async def test_who_waits_is_woken_by_the_node_that_took_over(pair: Pair) -> None:
    async with asyncio.timeout(SECONDS), await open_backend(pair.url) as backend:
        store = backend.state
        assert isinstance(store, RedisStateStore)
        await start(store)
        bell = store.server.bell
        async with bell.listen("something"):
            await asyncio.to_thread(pair.fail_over)

            async def is_heard() -> bool:
                return bell._connection is not None and bell._connection.is_connected

            await until(is_heard)
