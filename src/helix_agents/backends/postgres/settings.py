"""The settings in a Postgres URL: where the server is, and how this backend uses it."""

import re
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

import msgspec

from helix_agents.domain.errors import InvalidStoreUrlError
from helix_agents.domain.records import Record
from helix_agents.domain.urls import read_url, shown_url

SCHEMES = ("postgresql", "postgres")
# A LISTEN channel is named after the schema, and its name is limited to 63 bytes.
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,39}")


class PostgresSettings(Record):
    """How a database is used.

    `dsn` goes to the driver as is. `pooler` says that a pooler sits in between and gives every transaction another
    session. Then nothing is prepared by name, and waiters look twice a second instead of being notified, unless
    `listen_url` leads to the server itself. A restarting server is waited for up to `connect_patience` seconds.
    """

    dsn: str
    schema: str = "public"
    pool_size: int = 10
    pooler: bool = False
    listen_url: str | None = None
    connect_timeout: float = 10.0
    connect_patience: float = 5.0
    command_timeout: float = 60.0

    @property
    def shown(self) -> str:
        """The database as errors name it, without any part that could contain a password."""
        at = urlsplit(self.dsn)
        host = at.netloc.rpartition("@")[2] or "localhost"
        where = shown_url(f"postgresql://{host}/{at.path.lstrip('/')}")
        return f"{where} (schema {self.schema})"

    @property
    def listen_dsn(self) -> str | None:
        """Where notifications come from; None if there are none."""
        if self.listen_url is not None:
            return self.listen_url
        return None if self.pooler else self.dsn


_OWN = {
    "schema": str,
    "pool_size": int,
    "pooler": bool,
    "listen_url": str,
    "connect_timeout": float,
    "connect_patience": float,
    "command_timeout": float,
}


def parse_url(url: str, options: dict[str, Any] | None = None) -> tuple[PostgresSettings, dict[str, Any]]:
    """The settings, and the URL's other options for `open_backend`; `options` take precedence over the URL.

    `postgresql://user:password@host:5432/database?schema=helix&pool_size=20`. Options that are not ours, such as
    `sslmode`, go to the driver.

    Raises:
        InvalidStoreUrlError: the URL cannot be read; the message says why.
    """
    parts = read_url(url)
    if parts.scheme not in SCHEMES:
        raise InvalidStoreUrlError(shown(url), "it does not start with postgresql:// or postgres://")
    given: dict[str, Any] = {}
    others: dict[str, Any] = {}
    passed_on: list[tuple[str, str]] = []
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in _OWN:
            given[name] = _read(url, name, value)
        elif name == "migrate":
            if value not in ("auto", "check"):
                raise InvalidStoreUrlError(shown(url), f"migrate={value} is neither auto nor check")
            others[name] = value
        else:
            passed_on.append((name, value))
    given |= {name: options.pop(name) for name in _OWN if options is not None and name in options}
    dsn = urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(passed_on), ""))
    settings = msgspec.structs.replace(PostgresSettings(dsn=dsn), **given)
    if not _SCHEMA.fullmatch(settings.schema):
        raise InvalidStoreUrlError(
            shown(url), f"schema={settings.schema} has to be lower-case letters, digits and _, at most 40 of them"
        )
    if settings.pool_size < 1:
        raise InvalidStoreUrlError(shown(url), "pool_size has to be at least 1")
    return settings, others


def shown(url: str) -> str:
    """A URL as an error may show it, without a password."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    return shown_url(urlunsplit(parts._replace(netloc=f"{unquote(user).partition(':')[0]}{at}{host}")))


def _read(url: str, name: str, value: str) -> Any:
    kind = _OWN[name]
    if kind is bool:
        if value.lower() in ("true", "1", "false", "0"):
            return value.lower() in ("true", "1")
        raise InvalidStoreUrlError(shown(url), f"{name}={value} is neither true nor false")
    try:
        return kind(value)
    except ValueError:
        raise InvalidStoreUrlError(shown(url), f"{name}={value} is not a number") from None
