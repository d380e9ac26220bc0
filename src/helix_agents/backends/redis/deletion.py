"""How a session and everything below it is deleted while its branches stay whole."""

from collections.abc import Sequence, Set
from typing import Any

from helix_agents.backends.redis.index import entry_id
from helix_agents.backends.redis.keyspace import Keyspace
from helix_agents.backends.redis.lineage import load_segments, release
from helix_agents.backends.redis.pending import bring_calls, every_call, load_calls
from helix_agents.backends.redis.rows import Session, find_session, find_sessions, gone_entry, load_members, tree
from helix_agents.backends.redis.stream_rows import bring_stream, remove_stream
from helix_agents.backends.redis.transaction import READ_AT_ONCE, Command, Known, Transaction
from helix_agents.domain.ids import SessionId, StreamId
from helix_agents.ports.clock import Clock

MOST_REMEMBERED = 50_000
"""Of a slot with more sessions than this, who is in it is not remembered."""


class StreamsAsideError(Exception):
    """Streams of a tree that are in other slots, and have to be deleted before it."""

    def __init__(self, streams: Sequence[StreamId]) -> None:
        self.streams = streams


async def delete_tree(
    tx: Transaction, space: Keyspace, session_id: SessionId, deleted: Set[StreamId]
) -> list[SessionId]:
    """Remove the session and every session below it; returns which were removed. `deleted` are streams in other slots
    that are gone already.

    Raises:
        StreamsAsideError: there are others of them. They go first: if this is interrupted, the next deletion of the
            session finds them again.
    """
    if await find_session(tx, session_id) is None:
        return []
    members = await load_members(tx)
    gone = await tree(tx, session_id)
    segments = await load_segments(tx)
    tx.change(members)
    tx.change(segments)
    found = await find_sessions(tx, gone)
    if aside := [stream_id for known in found if (stream_id := _stream_aside(known.value)) not in (None, *deleted)]:
        raise StreamsAsideError(aside)
    owners = dict.fromkeys(name for known in found for name in _owners(known.value))
    for first in range(0, len(found), READ_AT_ONCE):
        some = found[first : first + READ_AT_ONCE]
        for known in some:
            tx.bring(*_parts(tx, known.value.record.session_id))
            bring_stream(tx, _stream_of(known.value))
        for known in some:
            await _delete_one(tx, space, known)
    await _delete_calls(tx, list(owners), set(gone))
    release(tx, segments.value, set(gone))
    members.value.remove(gone)
    left = len(members.value.parents)
    if left:
        tx.do_with_all("HDEL", members.key, gone)
    else:
        # No session is left in this slot, not even a branch.
        tx.do("UNLINK", members.key)
        tx.do("UNLINK", segments.key)
    if not 0 < left <= MOST_REMEMBERED:
        # What is left of these is read again when it is needed. Otherwise the next deletion here knows it.
        segments.value = members.value = None  # pyright: ignore[reportAttributeAccessIssue]
    return gone


def _owners(session: Session) -> tuple[SessionId, SessionId]:
    """The sessions that a session's calls are stored under: its root, and itself if it is the root of others."""
    return session.record.root_session_id, session.record.session_id


def _stream_aside(session: Session) -> StreamId | None:
    """A session's stream if it is not named after it, and so may be in another slot."""
    stream_id = session.record.stream_id
    return None if stream_id == session.record.session_id else stream_id


def _stream_of(session: Session) -> StreamId:
    return session.record.stream_id or session.record.session_id


def _parts(tx: Transaction, session_id: SessionId) -> tuple[Command, Command]:
    """The reads that tell which index entries a session has."""
    return ("ZRANGE", tx.slot.turns(session_id), 0, -1), ("HLEN", tx.slot.usage(session_id))


async def _delete_one(tx: Transaction, space: Keyspace, known: Known[Session]) -> None:
    slot, session = tx.slot, known.value
    session_id = session.record.session_id
    runs, used = await tx.read(*_parts(tx, session_id))
    tx.change(known)
    for run in runs:
        gone_entry(tx, known.key, entry_id("r", run.decode()), ("r", tx.tag, session_id, run.decode()))
    gone_entry(tx, known.key, entry_id("s", session_id), ("s", tx.tag, session_id))
    if used:
        gone_entry(tx, known.key, entry_id("u", tx.tag, session_id), ("u", tx.tag, session_id))
    for key in (
        known.key,
        slot.runs(session_id),
        slot.turns(session_id),
        slot.checkpoints(session_id),
        slot.refs(session_id),
        slot.staging(session_id),
        slot.effects(session_id),
        slot.queued(session_id),
        slot.taken(session_id),
        slot.usage(session_id),
        slot.usage_guard(session_id),
    ):
        tx.do("UNLINK", key)
    known.value = None  # pyright: ignore[reportAttributeAccessIssue]
    tx.do("PUBLISH", None, space.keys.channel(f"flag/{session_id}"), "")
    await remove_stream(tx, space, _stream_of(session))


async def _delete_calls(tx: Transaction, owners: Sequence[SessionId], gone: set[SessionId]) -> None:
    """Remove the calls of deleted sessions, and all calls stored under one of them."""
    for first in range(0, len(owners), READ_AT_ONCE):
        some = owners[first : first + READ_AT_ONCE]
        for owner in some:
            bring_calls(tx, owner)
        for owner in some:
            calls = await load_calls(tx, owner)
            mine = [
                call.tool_call_id for call in await every_call(tx, owner) if owner in gone or call.session_id in gone
            ]
            if not calls.revision or not (mine or owner in gone):
                continue
            tx.change(calls)
            for call_id in mine:
                gone_entry(tx, calls.key, entry_id("c", call_id, owner), ("c", tx.tag, owner, call_id))
            if owner in gone:
                tx.do("UNLINK", calls.key)
                tx.do("UNLINK", tx.slot.ended_calls(owner))
                calls.value.clear()
            else:
                tx.do_with_all("HDEL", calls.key, mine)
                tx.do_with_all("HDEL", tx.slot.ended_calls(owner), mine)
                for call_id in mine:
                    calls.value.pop(call_id, None)


async def leave_place(space: Keyspace, session_id: SessionId, tag: str, clock: Clock) -> None:
    """Remove the record of where a deleted session was; a new session of that name does not need it."""

    async def work(tx: Transaction) -> None:
        key = tx.slot.place(session_id)
        place: Known[Any] = await tx.load(key, (("HGET", key, "tag"),), lambda replies: replies[0])
        if place.value == tag.encode():
            tx.change(place)
            tx.do("DEL", key)
            place.value = None

    await space.write("leave", session_id, work, clock=clock, tag=session_id)
