"""Sessions that expire: with `state_ttl`, a session that is at rest and alone expires on the server as a whole.

All keys of its slot get the same expiry time, so that no script ever sees half of the session. The time is also in the
session's row: a process that changes the session again, or puts another one beside it, revokes the expiry, whatever its
own setting. Index entries of expired sessions are removed whenever sessions are listed, as every janitor does.
"""

from datetime import timedelta
from typing import Any

from helix_agents.backends.redis import index
from helix_agents.backends.redis.index import Entry, gone
from helix_agents.backends.redis.keyspace import Keyspace
from helix_agents.backends.redis.lineage import load_segments
from helix_agents.backends.redis.pending import load_calls
from helix_agents.backends.redis.rows import Session, SessionEntry, load_members, read_session, save_session
from helix_agents.backends.redis.stream_rows import delete_stream
from helix_agents.backends.redis.transaction import Known, Transaction
from helix_agents.domain.errors import DefinitionError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.pending import OPEN
from helix_agents.domain.records import decode
from helix_agents.domain.runs import SUSPENDED
from helix_agents.ports.clock import Clock

StateTTL = timedelta | float | None
"""How long a session at rest is kept: a time, or seconds; None keeps it forever."""


def ttl_ms(ttl: StateTTL) -> int | None:
    """The time in milliseconds.

    Raises:
        DefinitionError: the time is not positive.
    """
    if ttl is None:
        return None
    found = int((ttl.total_seconds() if isinstance(ttl, timedelta) else ttl) * 1000)
    if found <= 0:
        raise DefinitionError("state_ttl", f"{ttl} ends before it starts; leave it out to keep sessions forever")
    return found


class Expiry:
    """Decides, with each change to a slot, when its session expires."""

    def __init__(self, space: Keyspace) -> None:
        self._space = space

    async def __call__(self, tx: Transaction) -> None:
        """Set or revoke the expiry of this slot's session, together with the transaction's changes."""
        known: Known[Session] | None = tx.known.get(tx.slot.session(tx.tag))
        if known is None or known.value is None or not tx.writes:  # pyright: ignore[reportUnnecessaryComparison]
            return
        before, ttl = known.value.row.vanishes_at, self._space.state_ttl_ms
        if before is None and ttl is None:
            return
        at = self._space.server.now_ms() + ttl if ttl is not None and await _goes(tx, known) else None
        if at is None and before is None:
            return
        known.value.set(vanishes_at=at)
        save_session(tx, known)
        for key in await self._keys(tx, known.value):
            if at is None:
                tx.do("PERSIST", key)
            else:
                tx.do("PEXPIREAT", key, at)

    async def _keys(self, tx: Transaction, session: Session) -> list[str]:
        """Every key in the slot of a session that is alone there."""
        slot, name, stream_id = tx.slot, tx.tag, session.record.stream_id or tx.tag
        segments = {
            *(await load_segments(tx)).value.rows,
            *(args[2] for args in tx.commands if _adds_segment(args, tx)),
        }
        of_stream = (slot.stream(stream_id), slot.chunks(stream_id))
        return [
            *(key(name) for key in (slot.session, slot.runs, slot.turns, slot.checkpoints, slot.refs, slot.staging)),
            *(key(name) for key in (slot.effects, slot.queued, slot.taken, slot.usage, slot.usage_guard)),
            *(key(name) for key in (slot.pending, slot.ended_calls)),
            *(key(segment) for segment in sorted(segments) for key in (slot.messages, slot.states)),
            *(of_stream if await self._space.locate(stream_id) == tx.tag else ()),
            slot.members,
            slot.segments,
        ]


def _adds_segment(command: tuple[Any, ...], tx: Transaction) -> bool:
    return command[:2] == ("HSET", tx.slot.segments)


async def _goes(tx: Transaction, known: Known[Session]) -> bool:
    """Whether a session is at rest and alone: no run, open call or queued turn, and no other session in its slot."""
    record, run = known.value.record, known.value.run
    if record.parent_session_id is not None or record.root_session_id != tx.tag or record.status == "paused":
        return False
    if run is not None and (run.status == "running" or run.status in SUSPENDED):
        return False
    if known.value.row.queued:
        return False
    if any(call.state in OPEN for call in (await load_calls(tx, tx.tag)).value.values()):
        return False
    members = await load_members(tx)
    if members.key in tx.touched and known.revision:
        # Another session is being added to this slot.
        return False
    return members.value.parents.keys() <= {tx.tag}


async def forget_vanished(space: Keyspace, clock: Clock) -> None:
    """Make the index forget expired sessions, and delete the streams they had in other slots."""
    now = space.server.now_ms()
    for _, payload in (await space.find(index.VANISHING, highest=now)).entries:
        entry = decode(payload, SessionEntry)
        session_id = entry.session.session_id
        read = read_session(space.slot(entry.tag), session_id)
        ran = await space.run("vanished", (), (read,), 0)
        if ran.replies[0][0] is not None:
            continue
        if entry.session.stream_id is not None:
            await delete_stream(space, entry.session.stream_id, clock)
        left = await space.index.find(index.tree_order(entry.tag))
        lost: list[tuple[Entry, bytes]] = [(gone(name, now), ran.at_us) for name, _ in left.entries]
        await space.index.put([*lost, (gone(_entry_of(session_id), now), ran.at_us)])


def _entry_of(session_id: SessionId) -> str:
    return index.entry_id("s", session_id)
