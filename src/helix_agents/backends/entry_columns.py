"""Rows of entries as all SQL backends store them: their columns, their decoding, and the rows a prefix selects."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from helix_agents.domain.entries import Entry, EntryEvent, successor

ENTRY = "scope, key, version, revision, value, size, history_bytes, created_at, updated_at, owner, mark"
SUMMARY = "scope, key, version, revision, NULL, size, history_bytes, created_at, updated_at, owner, mark"
VERSION = "scope, key, version, revision, value, size, 0, created_at, updated_at, owner, mark"
EVENT = "revision, position, scope, key, version, operation, owner, at, size"

# The first row from that time on, not the last row before it: a clock that was set back would hide the rows between.
REVISION_AT = (
    "SELECT coalesce("
    "(SELECT min(revision) - 1 FROM __agents_entry_events WHERE namespace = ? AND at >= ?),"
    " (SELECT revision FROM __agents_entry_heads WHERE namespace = ?), 0)"
)


class Head(NamedTuple):
    """The state of a namespace's log of entries."""

    store_id: str
    revision: int
    compacted: int
    epoch: int
    audit_seq: int
    audit_hash: str


def topic_of(namespace: str) -> str:
    """The topic that rings when something was committed."""
    return f"entries/{namespace}"


def entry_of(row: Sequence[Any]) -> Entry:
    """The entry in a row of `ENTRY`, `SUMMARY` or `VERSION`."""
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
    """The event in a row of `EVENT`."""
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
    """A condition for the keys of a scope that start with a prefix, as a range, so no character needs escaping."""
    keys, bound = _range("key", prefix)
    return f"namespace = ? AND scope = ?{keys}", [namespace, scope, *bound]


def scopes_within(namespace: str, prefix: str) -> tuple[str, list[str]]:
    """The same for scopes that start with a prefix. Sessions have scopes as well, and there may be many of them."""
    scopes, bound = _range("scope", prefix)
    return f"namespace = ?{scopes}", [namespace, *bound]


def events_within(namespace: str, scope: str | None, prefix: str) -> tuple[str, list[str]]:
    """A condition for the events of such keys; without a scope, of all keys."""
    if scope is not None:
        return within(namespace, scope, prefix)
    return "namespace = ?", [namespace]


def _range(column: str, prefix: str) -> tuple[str, list[str]]:
    if not prefix:
        return "", []
    end = successor(prefix)
    return (f" AND {column} >= ?", [prefix]) if end is None else (f" AND {column} >= ? AND {column} < ?", [prefix, end])
