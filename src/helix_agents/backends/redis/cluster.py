"""A cluster: each command goes over a line of its own to the node that has its slot, and follows slots that move."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from helix_agents.backends.redis.line import Line
from helix_agents.system import jitter

from redis import exceptions  # isort: skip
from redis.crc import key_slot  # isort: skip

MOST_HOPS = 16
TRY_AGAIN_SECONDS = 0.02
LOST = (exceptions.ConnectionError, exceptions.TimeoutError, OSError)


class Node(NamedTuple):
    """The address of a cluster node."""

    host: str
    port: int


class KnownNodes:
    """The nodes of a cluster, with the one that answered last in front. Whoever connects shares this knowledge, in
    whichever thread: the node that a URL names may be the one that died.
    """

    def __init__(self, first: Node) -> None:
        self._first = first
        self.all: tuple[Node, ...] = (first,)

    def told(self, by: Node, nodes: Iterable[Node]) -> None:
        """Take in which nodes there are, replicas included, as one of them says."""
        self.all = tuple(dict.fromkeys((by, *nodes, self._first)))

    def silent(self, node: Node) -> None:
        """A node does not answer: the others come before it, also for whoever asks next."""
        self.all = (*(each for each in self.all if each != node), node)


class ClusterLines:
    """Commands for one node arrive in the order they were given; those for different nodes in any order.

    A node that no longer has a slot does nothing and names the node that has it, so the command is sent there. While
    the keys of a slot are being moved, some are here and some there; a command that needs both waits for up to
    `patience` seconds. When a connection is lost, the commands under way fail, because they may have been carried out;
    the next command asks the other nodes who has which slots, and also replicas, one of which may have taken over.
    """

    def __init__(self, known: KnownNodes, connect: Callable[[Node], Any], *, patience: float) -> None:
        self._known = known
        self._connect = connect
        self._patience = patience
        self._lines: dict[Node, Line] = {}
        self._nodes: dict[int, Node] = {}
        self._learning: asyncio.Task[None] | None = None

    def send(self, *command: Any) -> Awaitable[Any]:
        """Send a command to the node that has its slot, or, if it has no keys, to every node; each of them answers."""
        if command[0] in ("EVALSHA", "EVAL"):
            return self._send(key_slot(command[3].encode()), command)
        return self._send_to_all(command)

    async def close(self) -> None:
        """Close all connections."""
        lines, self._lines = self._lines, {}
        await asyncio.gather(*(line.close() for line in lines.values()))

    async def _send(self, slot: int, command: tuple[Any, ...]) -> Any:
        loop = asyncio.get_running_loop()
        deadline, hops = loop.time() + self._patience, 0
        node, asking = await self._node_of(slot), False
        while True:
            try:
                return await self._line(node).send(*command, asking=asking)
            except exceptions.TryAgainError:
                if loop.time() > deadline:
                    raise
                await asyncio.sleep(TRY_AGAIN_SECONDS * jitter())
                # By now all of the slot's keys may have arrived.
                node, asking = await self._node_of(slot), False
            except exceptions.AskError as elsewhere:
                hops += 1
                if hops > MOST_HOPS:
                    raise
                # The slot has moved for good, or, for this one command, is on its way.
                asking = not isinstance(elsewhere, exceptions.MovedError)
                node = _told(elsewhere, node)
                if not asking:
                    self._nodes[slot] = node
            except LOST:
                self._nodes.clear()
                raise

    async def _send_to_all(self, command: tuple[Any, ...]) -> list[Any]:
        if not self._nodes:
            await self._learn()
        return await asyncio.gather(*(self._line(node).send(*command) for node in dict.fromkeys(self._nodes.values())))

    def _line(self, node: Node) -> Line:
        if node not in self._lines:
            self._lines[node] = Line(self._connect(node), patience=self._patience)
        return self._lines[node]

    async def _node_of(self, slot: int) -> Node:
        if slot not in self._nodes:
            await self._learn()
        # If no node has the slot, any node asked says so.
        return self._nodes.get(slot, self._known.all[0])

    async def _learn(self) -> None:
        """Ask which node has which slots; concurrent callers wait for the same answer."""
        if self._learning is None:
            self._learning = asyncio.create_task(self._ask_nodes())
            self._learning.add_done_callback(self._learned)
        await asyncio.shield(self._learning)

    def _learned(self, learning: asyncio.Task[None]) -> None:
        self._learning = None
        if not learning.cancelled():
            # Marks the exception as retrieved, because no caller may be left to receive it.
            learning.exception()

    async def _ask_nodes(self) -> None:
        problem: BaseException | None = None
        known = dict.fromkeys((*self._known.all, *self._lines))
        # Connected nodes are asked first: some of the others may be gone for good and take long not to answer.
        for node in sorted(known, key=lambda node: node not in self._lines or not self._lines[node].is_connected):
            try:
                answer: list[Any] = await self._line(node).send("CLUSTER", "SLOTS")
            except LOST as lost:
                self._known.silent(node)
                problem = lost
                continue
            self._nodes = {
                slot: _named(owner, node) for first, last, owner, *_ in answer for slot in range(first, last + 1)
            }
            self._known.told(node, (_named(each, node) for _, _, *owners in answer for each in owners))
            return
        assert problem is not None
        raise problem


def _told(elsewhere: Any, asked: Node) -> Node:
    """The node that a refusal names."""
    return Node(elsewhere.host or asked.host, int(elsewhere.port))


def _named(owner: list[Any], asked: Node) -> Node:
    """The node that an answer names; one that does not know its own name is at the address that was asked."""
    host = (owner[0] or b"").decode()
    return Node(host if host not in ("", "?") else asked.host, int(owner[1]))
