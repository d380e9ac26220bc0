"""Rows of entries, as every backend in SQL has them: their columns, what a row says, and which rows a prefix names."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from helix_agents.domain.entries import Entry, EntryEvent, successor

ENTRY = "scope, key, version, revision, value, size, history_bytes, created_at, updated_at, owner, mark"
SUMMARY = "scope, key, version, revision, NULL, size, history_bytes, created_at, updated_at, owner, mark"
VERSION = "scope, key, version, revision, value, size, 0, created_at, updated_at, owner, mark"
EVENT = "revision, position, scope, key, version, operation, owner, at, size"

# The first one from then on, and not the last one before: a clock that was set back would hide what lies between.
REVISION_AT = (
    "SELECT coalesce("
    "(SELECT min(revision) - 1 FROM __agents_entry_events WHERE namespace = ? AND at >= ?),"
    " (SELECT revision FROM __agents_entry_heads WHERE namespace = ?), 0)"
)


class Head(NamedTuple):
    """Where a namespace stands."""

    store_id: str
    revision: int
    compacted: int
    epoch: int
    audit_seq: int
    audit_hash: str


def topic_of(namespace: str) -> str:
    """What is rung when something was committed."""
    return f"entries/{namespace}"


def entry_of(row: Sequence[Any]) -> Entry:
    """A row of `ENTRY`, `SUMMARY` or `VERSION`."""
    scope, key, version, revision, value, size, history, created, updated, owner, mark = row
    return Entry(
        scope=scope,
        key=key,
        version=version,
        revision=revision,
        value=value,
        size=size,
        history_bytes=history,
        created_at=created,
        updated_at=updated,
        owner=owner,
        mark=mark,
    )


def event_of(row: Sequence[Any]) -> EntryEvent:
    """A row of `EVENT`."""
    revision, position, scope, key, version, operation, owner, at, size = row
    return EntryEvent(
        revision=revision,
        position=position,
        scope=scope,
        key=key,
        version=version,
        operation=operation,
        owner=owner,
        at=at,
        size=size,
    )


def within(namespace: str, scope: str, prefix: str) -> tuple[str, list[str]]:
    """Keys of a scope that start with a prefix, as a range: no letter of it means anything else."""
    keys, bound = _range("key", prefix)
    return f"namespace = ? AND scope = ?{keys}", [namespace, scope, *bound]


def scopes_within(namespace: str, prefix: str) -> tuple[str, list[str]]:
    """Scopes that start with a prefix, in the same way: sessions have scopes, too, and there may be many of them."""
    scopes, bound = _range("scope", prefix)
    return f"namespace = ?{scopes}", [namespace, *bound]


def events_within(namespace: str, scope: str | None, prefix: str) -> tuple[str, list[str]]:
    """Events of such keys; without a scope those of all."""
    if scope is not None:
        return within(namespace, scope, prefix)
    return "namespace = ?", [namespace]


def _range(column: str, prefix: str) -> tuple[str, list[str]]:
    if not prefix:
        return "", []
    end = successor(prefix)
    return (f" AND {column} >= ?", [prefix]) if end is None else (f" AND {column} >= ? AND {column} < ?", [prefix, end])
