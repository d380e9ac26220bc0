"""Rows of entries, as every backend in SQL has them: their columns, what a row says, and which rows a prefix names."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from helix_agents.domain.entries import Entry, EntryEvent, successor

ENTRY = "scope, key, version, revision, value, size, history_bytes, created_at, updated_at, owner, mark"
SUMMARY = "scope, key, version, revision, NULL, size, history_bytes, created_at, updated_at, owner, mark"
VERSION = "scope, key, version, revision, value, size, 0, created_at, updated_at, owner, mark"
EVENT = "revision, position, scope, key, version, operation, owner, at, size"


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
    where, bound = "namespace = ? AND scope = ?", [namespace, scope]
    if prefix:
        where, bound = f"{where} AND key >= ?", [*bound, prefix]
        if (end := successor(prefix)) is not None:
            where, bound = f"{where} AND key < ?", [*bound, end]
    return where, bound


def events_within(namespace: str, scope: str | None, prefix: str) -> tuple[str, list[str]]:
    """Events of such keys; without a scope those of all."""
    if scope is not None:
        return within(namespace, scope, prefix)
    return "namespace = ?", [namespace]
