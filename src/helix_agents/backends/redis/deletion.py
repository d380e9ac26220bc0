"""How a session and everything below it goes, while branches of it stay whole."""

from typing import Any

from helix_agents.backends.redis.index import entry_id
from helix_agents.backends.redis.keyspace import Keyspace
from helix_agents.backends.redis.lineage import load_segments, release
from helix_agents.backends.redis.pending import call_id_of, load_calls
from helix_agents.backends.redis.rows import find_session, gone_entry, load_members, tree
from helix_agents.backends.redis.stream_rows import remove_stream
from helix_agents.backends.redis.transaction import Known, Transaction
from helix_agents.domain.ids import SessionId, StreamId
from helix_agents.ports.clock import Clock


async def delete_tree(tx: Transaction, space: Keyspace, session_id: SessionId) -> list[SessionId]:
    """Remove the session and every session below it; answers whom."""
    if await find_session(tx, session_id) is None:
        return []
    members = await load_members(tx)
    gone = await tree(tx, session_id)
    segments = await load_segments(tx)
    tx.change(members)
    tx.change(segments)
    for member in gone:
        await _delete_one(tx, space, member)
    release(tx, segments.value, set(gone))
    if members.value.keys() <= set(gone):
        # Nobody is left in this slot, not even a branch.
        tx.do("UNLINK", members.key)
        tx.do("UNLINK", segments.key)
    else:
        tx.do_with_all("HDEL", members.key, gone)
    # What is left of these is read anew when it is needed.
    segments.value = members.value = None  # pyright: ignore[reportAttributeAccessIssue]
    return gone


async def streams_aside(tx: Transaction, session_id: SessionId) -> list[StreamId]:
    """Streams of the session and of those below it that are not named after them, and so may lie in another slot."""
    if await find_session(tx, session_id) is None:
        return []
    found = [await find_session(tx, member) for member in await tree(tx, session_id)]
    records = [known.value.record for known in found if known is not None]
    return [record.stream_id for record in records if record.stream_id not in (None, record.session_id)]


async def _delete_one(tx: Transaction, space: Keyspace, session_id: SessionId) -> None:
    known = await find_session(tx, session_id)
    if known is None:
        return
    slot, record = tx.slot, known.value.record
    runs, used = await tx.read(("ZRANGE", slot.turns(session_id), 0, -1), ("HLEN", slot.usage(session_id)))
    tx.change(known)
    for run in runs:
        gone_entry(tx, known.key, entry_id("r", run.decode()), ("r", tx.tag, session_id, run.decode()))
    gone_entry(tx, known.key, entry_id("s", session_id), ("s", tx.tag, session_id))
    if used:
        gone_entry(tx, known.key, entry_id("u", tx.tag, session_id), ("u", tx.tag, session_id))
    await _delete_calls(tx, session_id, record.root_session_id)
    for key in (
        known.key,
        slot.runs(session_id),
        slot.turns(session_id),
        slot.checkpoints(session_id),
        slot.refs(session_id),
        slot.staging(session_id),
        slot.effects(session_id),
        slot.usage(session_id),
        slot.usage_guard(session_id),
    ):
        tx.do("UNLINK", key)
    known.value = None  # pyright: ignore[reportAttributeAccessIssue]
    tx.do("PUBLISH", None, space.keys.channel(f"flag/{session_id}"), "")
    await remove_stream(tx, space, record.stream_id or session_id)


async def _delete_calls(tx: Transaction, session_id: SessionId, root: SessionId) -> None:
    for owner in dict.fromkeys((root, session_id)):
        calls = await load_calls(tx, owner)
        if not calls.revision:
            continue
        (ended,) = await tx.read(("HGETALL", tx.slot.ended_calls(owner)))
        names = {call_id: call.session_id for call_id, call in calls.value.items()}
        names.update({ended[n].decode(): call_id_of(ended[n + 1]) for n in range(0, len(ended), 2)})
        mine = [call_id for call_id, of in names.items() if owner == session_id or of == session_id]
        if not mine and owner != session_id:
            continue
        tx.change(calls)
        for call_id in mine:
            gone_entry(tx, calls.key, entry_id("c", call_id, owner), ("c", tx.tag, owner, call_id))
        if owner == session_id:
            tx.do("UNLINK", calls.key)
            tx.do("UNLINK", tx.slot.ended_calls(owner))
            calls.value.clear()
        else:
            tx.do_with_all("HDEL", calls.key, mine)
            tx.do_with_all("HDEL", tx.slot.ended_calls(owner), mine)
            for call_id in mine:
                calls.value.pop(call_id, None)


async def leave_place(space: Keyspace, session_id: SessionId, tag: str, clock: Clock) -> None:
    """Take away the note of where a session lay that is gone; whoever makes one of that name can do without."""

    async def work(tx: Transaction) -> None:
        key = tx.slot.place(session_id)
        place: Known[Any] = await tx.load(key, (("HGET", key, "tag"),), lambda replies: replies[0])
        if place.value == tag.encode():
            tx.change(place)
            tx.do("DEL", key)
            place.value = None

    await space.write("leave", session_id, work, clock=clock, tag=session_id)
