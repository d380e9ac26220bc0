"""Sessions, streams, locks, usage and memories on Redis or Valkey, one server or a cluster, for many processes."""

from typing import Any
from urllib.parse import parse_qsl, urlencode, urlunsplit

from helix_agents.domain.errors import InvalidStoreUrlError, MissingExtraError
from helix_agents.domain.urls import read_url
from helix_agents.ports.backend import Backend, Migrate

try:
    from helix_agents.backends.redis.expiry import StateTTL, ttl_ms
    from helix_agents.backends.redis.locks import RedisLockManager
    from helix_agents.backends.redis.memories import RedisMemoryStore
    from helix_agents.backends.redis.server import RedisServer, shown
    from helix_agents.backends.redis.store import RedisStateStore
    from helix_agents.backends.redis.streams import RedisStreamManager
    from helix_agents.backends.redis.usage import RedisUsageStore
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] != "redis":
        raise
    raise MissingExtraError("The Redis backend", "redis") from missing

__all__ = [
    "RedisLockManager",
    "RedisMemoryStore",
    "RedisServer",
    "RedisStateStore",
    "RedisStreamManager",
    "RedisUsageStore",
    "open_backend",
]

_OF_SERVER = ("prefix", "seam", "cluster")


async def open_backend(url: str, *, namespace: str = "", migrate: Migrate = "auto", **options: Any) -> Backend:
    """Open a server: `redis://host:6379/0`, `rediss://` with TLS, `valkey://` as `redis://`.

    `?prefix=` sets the prefix of all keys (`helix`), `?cluster=true` says that the host belongs to a cluster, and
    `?state_ttl=` is the number of seconds after which a session at rest expires (never). The rest of the query goes to
    the driver. There is nothing to migrate: records of older versions are read as they are.
    """
    plain, asked = _parse(url)
    state_ttl: StateTTL = options.pop("state_ttl", asked.pop("state_ttl", None))
    of_server: dict[str, Any] = asked | {name: options.pop(name) for name in _OF_SERVER if name in options}
    of_server["evictable"] = ttl_ms(state_ttl) is not None
    clock = options.pop("clock", None)
    limits, stream_limits = options.pop("limits", None), options.pop("stream_limits", None)
    server = await RedisServer.open(plain, **of_server)
    return Backend(
        url=url,
        state=RedisStateStore(server, namespace=namespace, limits=limits, clock=clock, state_ttl=state_ttl),
        streams=RedisStreamManager(server, namespace=namespace, clock=clock, limits=stream_limits, **options),
        locks=RedisLockManager(server, namespace=namespace, clock=clock),
        usage=RedisUsageStore(server, namespace=namespace, clock=clock),
        memories=RedisMemoryStore(server, namespace=namespace, clock=clock),
    )


def _parse(url: str) -> tuple[str, dict[str, Any]]:
    """The URL for the driver, and our own options in it."""
    parts = read_url(url)
    if not parts.hostname:
        raise InvalidStoreUrlError(shown(url), "a host is missing; write redis://localhost:6379/0")
    database = parts.path.strip("/")
    if database and not database.isdecimal():
        raise InvalidStoreUrlError(shown(url), f"the database {database!r} is not a number; write …/0")
    asked: dict[str, Any] = {}
    rest: list[tuple[str, str]] = []
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name == "prefix":
            if not value or "{" in value or "}" in value:
                raise InvalidStoreUrlError(shown(url), f"prefix={value} cannot start a key")
            asked[name] = value
        elif name == "cluster":
            if value not in ("true", "false"):
                raise InvalidStoreUrlError(shown(url), f"cluster={value} is neither true nor false")
            asked[name] = value == "true"
        elif name == "state_ttl":
            if not value.isdecimal() or not int(value):
                raise InvalidStoreUrlError(shown(url), f"state_ttl={value} is not a number of seconds")
            asked[name] = int(value)
        else:
            rest.append((name, value))
    return urlunsplit(parts._replace(query=urlencode(rest))), asked
