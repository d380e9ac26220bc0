"""An open connection to Redis, shared by the parts of a backend; every statement passes through here."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol, cast
from urllib.parse import urlunsplit

from helix_agents.backends.redis.bell import Bell
from helix_agents.backends.redis.cluster import ClusterLines, KnownNodes, Node
from helix_agents.backends.redis.errors import translated, translated_at_first, translating
from helix_agents.backends.redis.keys import DEFAULT_PREFIX
from helix_agents.backends.redis.line import Line
from helix_agents.backends.redis.scripts import Script
from helix_agents.domain.errors import InvalidStoreUrlError, StoreClosedError, StoreUnavailableError, UnsafeRedisError
from helix_agents.domain.urls import read_url, shown_url
from helix_agents.ports.seam import Seam

from redis import exceptions  # isort: skip
from redis.asyncio import ConnectionPool  # isort: skip
from redis.asyncio.retry import Retry  # isort: skip
from redis.backoff import NoBackoff  # isort: skip

log = logging.getLogger(__name__)

# The driver's types do not say what its constructors accept.
_pools: Any = ConnectionPool

OLDEST = (6, 2)
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 15.0

# The driver never sends a write twice: finding out whether it happened is up to us.
_ONCE: dict[str, Any] = {
    "retry": Retry(NoBackoff(), 0),
    "socket_connect_timeout": CONNECT_SECONDS,
    "protocol": 2,
}


class Sender(Protocol):
    """Sends commands. Those of one task arrive in the order in which they were sent."""

    def send(self, *command: Any) -> Awaitable[Any]: ...

    async def close(self) -> None: ...


class RedisServer:
    """A server or cluster. Parts that share it close it together: the last one disconnects."""

    def __init__(self, url: str, *, prefix: str, seam: Seam | None, cluster: bool) -> None:
        self.url = url
        self._nodes = KnownNodes(_node_in(url)) if cluster else None
        self._listened = 0
        self._sender = self._new_sender()
        self._loop = asyncio.get_running_loop()
        self._seam = seam
        self._uses = 0
        self._closed = False
        self._ahead_ms = 0.0
        self.name = shown(url)
        self.prefix = prefix
        self.cluster = cluster
        self.may_evict = False
        """Whether keys with an expiry may be evicted before it is reached."""
        self.keyspaces: dict[str, Any] = {}
        self.bell = Bell(self._new_listener, self.name)

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        prefix: str = DEFAULT_PREFIX,
        seam: Seam | None = None,
        cluster: bool = False,
        evictable: bool = False,
    ) -> "RedisServer":
        """Connect, and check whether the server can be trusted with sessions.

        `evictable` says that keys with an expiry will be written, which some policies evict early.

        Raises:
            InvalidStoreUrlError: the URL cannot be read, or the server refuses us with it.
            UnsafeRedisError: the server is too old, or evicts keys when its memory is full.
            StoreUnavailableError: no server answers.
        """
        try:
            server = cls(url, prefix=prefix, seam=seam, cluster=cluster)
        except ValueError as problem:
            raise InvalidStoreUrlError(shown(url), str(problem)) from problem
        except TypeError as problem:
            raise InvalidStoreUrlError(
                shown(url), f"the driver does not know one of its options: {problem}"
            ) from problem
        try:
            await server._check(evictable)
        except BaseException:
            await server._sender.close()
            raise
        return server

    async def _check(self, evictable: bool) -> None:
        try:
            about = _facts(await self._sender.send("INFO", "server"))
            memory = _facts(await self._sender.send("INFO", "memory"))
            seconds, micros = _time(await self._sender.send("TIME"))
        except (exceptions.RedisError, exceptions.RedisClusterException, OSError) as problem:
            raise translated_at_first(problem, self.name) from problem
        self.heard(b"%d" % (seconds * 1_000_000 + micros))
        for node in about:
            version = str(node.get("valkey_version") or node.get("redis_version", "0"))
            if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST:
                raise UnsafeRedisError(f"version {version}", "Redis 6.2 or Valkey is needed")
        for node in memory:
            policy = str(node.get("maxmemory_policy", "noeviction"))
            may_evict = policy.startswith("volatile")
            self.may_evict = self.may_evict or may_evict
            if policy.startswith("allkeys") or (evictable and may_evict):
                raise UnsafeRedisError(
                    f"maxmemory-policy {policy}", "set it to noeviction, so that a full server refuses writes instead"
                )

    # -- statements -------------------------------------------------------------------------------------

    async def write(self, script: Script, what: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """Run a script that changes something; if the connection is lost, it is unknown whether it did."""
        return await self._statement(script, what, keys, args)

    async def read(self, script: Script, what: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """Run a script that changes nothing; if the connection is lost, once more on another one."""
        try:
            return await self._statement(script, what, keys, args)
        except StoreUnavailableError:
            return await self._statement(script, what, keys, args)

    async def _statement(self, script: Script, what: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        if self._closed:
            raise StoreClosedError(self.name)
        try:
            reply = await self._send("EVALSHA", script.digest, len(keys), *keys, *args)
        except exceptions.NoScriptError:
            # After a restart, a SCRIPT FLUSH, or on a new server: sending the text runs the script and caches it.
            with translating(self.name):
                reply = await self._send("EVAL", script.text, len(keys), *keys, *args)
        except (exceptions.RedisError, OSError, UnicodeEncodeError) as problem:
            raise translated(problem, self.name) or problem from problem
        if self._seam is not None:
            await self._pass_seam(self._seam, f"{script.name} {what}")
        return reply

    def _send(self, *command: Any) -> Awaitable[Any]:
        """Send a command over the shared connection.

        A connection belongs to the event loop that opened it. A caller in another loop, such as the one that keeps
        leases alive while this loop is busy, gets a connection of its own.
        """
        if asyncio.get_running_loop() is self._loop:
            return self._sender.send(*command)
        return self._send_apart(*command)

    def _new_sender(self) -> Sender:
        if self._nodes is None:
            return Line(new_connection(self.url), patience=ANSWER_SECONDS)
        return ClusterLines(self._nodes, self._connection_to, patience=ANSWER_SECONDS)

    def _new_listener(self) -> Any:
        """A connection on which to hear rings. All nodes of a cluster pass them on, so each try is with another one."""
        if self._nodes is None:
            return new_connection(self.url)
        nodes, self._listened = self._nodes.all, self._listened + 1
        return self._connection_to(nodes[(self._listened - 1) % len(nodes)])

    def _connection_to(self, node: Node) -> Any:
        return new_connection(_at(self.url, node))

    async def _send_apart(self, *command: Any) -> Any:
        sender = self._new_sender()
        try:
            return await sender.send(*command)
        finally:
            await sender.close()

    async def _pass_seam(self, seam: Seam, statement: str) -> None:
        try:
            held = seam(statement)
        except Exception as problem:
            raise StoreUnavailableError(self.name, str(problem)) from problem
        if held is not None:
            await held

    # -- time -------------------------------------------------------------------------------------------

    def heard(self, server_us: bytes) -> None:
        """Set our estimate of the server's clock from an answer."""
        self._ahead_ms = int(server_us) / 1000 - time.monotonic() * 1000

    def now_ms(self) -> int:
        """The server's time, estimated from its last answer."""
        return int(time.monotonic() * 1000 + self._ahead_ms)

    # -- life -------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._closed

    def use(self) -> "RedisServer":
        """Count one more part; each part closes the server once."""
        self._uses += 1
        return self

    async def close(self) -> None:
        """Count one part less; the last one closes the connections."""
        self._uses -= 1
        if self._uses > 0 or self._closed:
            return
        self._closed = True
        await self.bell.close()
        await self._sender.close()


def new_connection(url: str) -> Any:
    """A driver connection that is not connected yet."""
    return _pools.from_url(_plain(url), socket_timeout=None, **_ONCE).make_connection()


def shown(url: str) -> str:
    """The URL without its password."""
    parts = read_url(url)
    if parts.password is None:
        return shown_url(urlunsplit(parts._replace(query="")))
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:…@{host}", query=""))


def _plain(url: str) -> str:
    """The URL in the driver's form."""
    scheme, _, rest = url.partition("://")
    return f"{'rediss' if scheme == 'rediss' else 'redis'}://{rest}"


def _node_in(url: str) -> Node:
    """The node that a URL leads to."""
    parts = read_url(url)
    return Node(parts.hostname or "localhost", parts.port or 6379)


def _at(url: str, node: Node) -> str:
    """The URL with another node in it; credentials and options stay."""
    parts = read_url(url)
    who, at, _ = parts.netloc.rpartition("@")
    host = f"[{node.host}]" if ":" in node.host else node.host
    return urlunsplit(parts._replace(netloc=f"{who}{at}{host}:{node.port}"))


def _time(reply: Any) -> tuple[int, int]:
    """The answer to TIME, or the first of several nodes' answers."""
    seconds, micros = reply[0] if isinstance(reply[0], list) else reply
    return int(seconds), int(micros)


def _facts(reply: Any) -> list[dict[str, str]]:
    """The answer to INFO, for each node that was asked."""
    texts = cast("list[bytes]", reply if isinstance(reply, list) else [reply])
    return [
        {name: value for name, _, value in (line.partition(":") for line in text.decode().splitlines() if ":" in line)}
        for text in texts
    ]
