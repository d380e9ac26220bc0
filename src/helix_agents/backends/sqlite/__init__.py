"""The embedded default: sessions, streams, locks, usage, entries and memories in one SQLite file."""

from typing import Any
from urllib.parse import parse_qsl, unquote

from helix_agents.backends.sqlite.database import Database
from helix_agents.backends.sqlite.entries import SQLiteEntryStore
from helix_agents.backends.sqlite.locks import SQLiteLockManager
from helix_agents.backends.sqlite.memories import SQLiteMemoryStore
from helix_agents.backends.sqlite.store import SQLiteStateStore
from helix_agents.backends.sqlite.streams import SQLiteStreamManager
from helix_agents.backends.sqlite.usage import SQLiteUsageStore
from helix_agents.domain.errors import InvalidStoreUrlError
from helix_agents.ports.backend import Backend, Migrate

__all__ = [
    "Database",
    "SQLiteEntryStore",
    "SQLiteLockManager",
    "SQLiteMemoryStore",
    "SQLiteStateStore",
    "SQLiteStreamManager",
    "SQLiteUsageStore",
    "open_backend",
]

_FILE_OPTIONS = ("synchronous", "seam", "busy_ms", "shared")


async def open_backend(url: str, *, namespace: str = "", migrate: Migrate = "auto", **options: Any) -> Backend:
    """Open a file: `sqlite:///helix.db` beside the process, `sqlite:////var/lib/helix.db` anywhere.

    `?synchronous=normal` trades the last commits before a power loss for speed; `full` is the default. A file that
    holds another application's tables and none of ours is refused, unless `?shared=true` says that both belong there.
    """
    path, asked = _parse(url)
    of_file: dict[str, Any] = (
        {"migrate": migrate} | asked | {name: options.pop(name) for name in _FILE_OPTIONS if name in options}
    )
    clock = options.pop("clock", None)
    limits, stream_limits = options.pop("limits", None), options.pop("stream_limits", None)
    database = await Database.open(path, **of_file)
    return Backend(
        url=url,
        state=SQLiteStateStore(database, namespace=namespace, limits=limits, clock=clock),
        streams=SQLiteStreamManager(database, namespace=namespace, clock=clock, limits=stream_limits, **options),
        locks=SQLiteLockManager(database, namespace=namespace, clock=clock),
        usage=SQLiteUsageStore(database, namespace=namespace, clock=clock),
        entries=SQLiteEntryStore(database, namespace=namespace, clock=clock),
        memories=SQLiteMemoryStore(database, namespace=namespace, clock=clock),
    )


def _parse(url: str) -> tuple[str, dict[str, Any]]:
    """The path and the options in a URL."""
    location, _, query = url.removeprefix("sqlite://").partition("?")
    if not location.startswith("/") or len(location) == 1:
        raise InvalidStoreUrlError(url, "a file is missing; write sqlite:///helix.db or sqlite:////absolute/path.db")
    asked: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name == "synchronous" and value.upper() in ("FULL", "NORMAL"):
            asked[name] = value.upper()
        elif name == "migrate" and value in ("auto", "check"):
            asked[name] = value
        elif name == "shared" and value in ("true", "false"):
            asked[name] = value == "true"
        else:
            there_are = "synchronous=full|normal, migrate=auto|check and shared=true|false"
            raise InvalidStoreUrlError(url, f"{name}={value} is not an option; the options are {there_are}")
    return unquote(location[1:]), asked
