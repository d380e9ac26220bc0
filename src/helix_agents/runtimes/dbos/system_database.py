"""Where DBOS keeps its tables: which URLs it can use, and which one is the default."""

import sqlite3
import sys
from contextlib import closing
from inspect import signature

from psycopg import connect
from psycopg.pq import Conninfo
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from helix_agents.domain.errors import InvalidStoreUrlError
from helix_agents.domain.urls import read_url, shown_url

POSTGRES = ("postgresql", "postgres")

REACHING = ("ssl", "host=", "port=", "user=", "password=", "passfile=", "target_session_attrs=")
"""Prefixes of options in a store's URL that say how the server is reached; other options mean nothing to DBOS."""

SQLITE_OPTIONS = {"timeout", "isolation_level", "detect_types", "check_same_thread", "cached_statements"}

OLDEST_SQLITE = (3, 42, 0)
"""The version of `sqlite3` that DBOS needs with Python 3.12 and later, because it reads times in milliseconds there."""


def system_database_beside(url: str) -> str:
    """Where DBOS keeps its tables by default: in the same PostgreSQL database, or in a file next to SQLite's.

    Raises:
        InvalidStoreUrlError: the store has no place for them.
    """
    scheme, _, rest = url.partition("://")
    place, _, options = rest.partition("?")
    if scheme in POSTGRES:
        where, slash, name = place.partition("/")
        who, at, hosts = where.rpartition("@")
        kept = [each for each in options.split("&") if each.startswith(REACHING)]
        if "," in hosts:
            # Several hosts are passed to DBOS one by one.
            place, kept = f"{who}{at}{slash}{name}", [*(f"host={each}" for each in hosts.split(",")), *kept]
        return f"postgresql://{place}" + (f"?{'&'.join(kept)}" if kept else "")
    if scheme == "sqlite" and place:
        return f"sqlite://{place}.dbos"
    raise InvalidStoreUrlError(shown_url(url), "DBOS needs its own database here; give system_database_url")


def check_url(url: str) -> None:
    """Reject a place where DBOS could not keep its tables, and options that it could not handle.

    Raises:
        InvalidStoreUrlError: says why.
    """
    scheme = url.partition("://")[0].partition("+")[0]
    if scheme == "sqlite":
        _check_sqlite(url)
        made = _read(url)
        # A URI is left to SQLite.
        _check_options(url, set() if "uri" in made.query else made.query.keys() - SQLITE_OPTIONS)
    elif scheme in POSTGRES:
        read_url(url)
        made = _read(url)
        if not made.database:
            raise InvalidStoreUrlError(shown_url(url), "it names no database; write postgresql://host/name")
        known = {option.keyword.decode() for option in Conninfo.get_defaults()}
        _check_options(url, made.query.keys() - known - signature(connect).parameters.keys())
    else:
        there_are = "DBOS keeps its tables in SQLite or PostgreSQL; write sqlite:///… or postgresql://…"
        raise InvalidStoreUrlError(shown_url(url), there_are)


def write_ahead(url: str) -> None:
    """Give a SQLite file a write-ahead log, which it keeps: DBOS writes twice per effect, each time to disk."""
    made = make_url(url)
    if url.startswith("sqlite") and made.database and "uri" not in made.query:
        with closing(sqlite3.connect(made.database)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")


def _read(url: str) -> URL:
    try:
        return make_url(url)
    except (ArgumentError, ValueError):
        # Their own message may show a password.
        several = "several hosts are written as postgresql://user@/name?host=one:5432&host=two:5432"
        raise InvalidStoreUrlError(shown_url(url), f"its parts cannot be told apart; {several}") from None


def _check_options(url: str, unknown: set[str]) -> None:
    if unknown:
        names = ", ".join(map(repr, sorted(unknown)))
        cure = "leave it out; options of a store, such as schema or pool_size, are not for DBOS"
        raise InvalidStoreUrlError(shown_url(url), f"its database has no option {names}; {cure}")


def _check_sqlite(url: str) -> None:
    if sys.version_info >= (3, 12) and sqlite3.sqlite_version_info < OLDEST_SQLITE:
        needed = ".".join(map(str, OLDEST_SQLITE))
        reason = f"DBOS needs SQLite {needed}, but this Python has {sqlite3.sqlite_version}"
        cure = "give a system_database_url of PostgreSQL, or use another Python"
        raise InvalidStoreUrlError(shown_url(url), f"{reason}; {cure}")
