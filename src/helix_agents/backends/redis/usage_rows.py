"""The usage of sessions, as rows beside them: one hash per session, a field per run, attempt, step and number."""

from collections.abc import Iterable
from typing import Any

import msgspec

from helix_agents.backends.redis import index
from helix_agents.backends.redis.index import Entry, entry_id, gone
from helix_agents.backends.redis.keys import LINE
from helix_agents.backends.redis.rows import Session, save_session
from helix_agents.backends.redis.transaction import Known, Transaction
from helix_agents.domain.ids import SessionId
from helix_agents.domain.records import Record, encode
from helix_agents.domain.usage import UsageEntry


class UsedEntry(Record):
    """Says in the index that a session has usage: where it is, and the roots its entries name."""

    roots: tuple[SessionId, ...]


def field_of(entry: UsageEntry) -> str:
    """The key that identifies an entry."""
    return LINE.join((entry.run_id, str(entry.attempt), str(entry.step), str(entry.n)))


def used_entry(tag: str, session_id: SessionId, roots: Iterable[SessionId]) -> Entry:
    """The index entry of a session's usage, found by the session and by every root that a usage entry names."""
    names = tuple(sorted(set(roots)))
    orders = ((index.USED, 0.0), *((f"used/{name}", 0.0) for name in sorted({*names, session_id})))
    return Entry(entry_id("u", tag, session_id), encode(UsedEntry(roots=names)), orders)


def unused_entry(tag: str, session_id: SessionId, now: int) -> Entry:
    """The same for a session without usage."""
    return gone(entry_id("u", tag, session_id), now)


def add_usage(tx: Transaction, known: Known[Session], entries: Iterable[UsageEntry]) -> None:
    """Store a step's usage, each entry once. The index learns of the step's own session with its first entry."""
    session = known.value
    for entry in entries:
        stamped = msgspec.structs.replace(entry, recorded_at=entry.recorded_at or tx.now)
        tx.do("HSETNX", tx.slot.usage(entry.session_id), field_of(entry), encode(stamped))
        own = entry.session_id == session.record.session_id and entry.root_session_id == session.record.root_session_id
        if own and session.row.used:
            continue
        if own:
            session.set(used=True)
        origin: tuple[Any, ...] = ("u", tx.tag, entry.session_id)
        tx.index(
            known.key,
            used_entry(tx.tag, entry.session_id, (entry.root_session_id, session.record.root_session_id)),
            origin,
        )
        save_session(tx, known)
