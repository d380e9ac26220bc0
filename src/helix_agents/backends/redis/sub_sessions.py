"""A session's children, as their parent knows them."""

from collections.abc import Iterable, Sequence

import msgspec

from helix_agents.backends.redis.facet import Facet
from helix_agents.backends.redis.rows import Session, find_session, load_session, save_session
from helix_agents.backends.redis.transaction import Known, Transaction
from helix_agents.domain import door
from helix_agents.domain.ids import SessionId
from helix_agents.domain.records import Record, decode, encode
from helix_agents.domain.runs import went_on
from helix_agents.domain.sub_sessions import SubSessionRef, SubSessionRefUpdate, added, linked, updated


class _RefRow(Record):
    """A reference and its position among the others."""

    place: int
    ref: SubSessionRef


class Refs:
    """The references of one session inside a transaction."""

    def __init__(self, tx: Transaction, known: Known[Session], rows: dict[SessionId, _RefRow]) -> None:
        self._tx = tx
        self._known = known
        self._rows = rows

    @classmethod
    async def of(cls, tx: Transaction, known: Known[Session]) -> "Refs":
        """The references of a session."""
        (flat,) = await tx.read(("HGETALL", tx.slot.refs(known.value.record.session_id)))
        return cls(tx, known, {flat[n].decode(): decode(flat[n + 1], _RefRow) for n in range(0, len(flat), 2)})

    def add(self, refs: Iterable[SubSessionRef]) -> None:
        """Add references; an existing reference to the same child stays as it is."""
        for ref in refs:
            if ref.sub_session_id not in self._rows:
                self._put(_RefRow(place=len(self._rows), ref=added(ref, self._tx.now)))

    def update(self, update: SubSessionRefUpdate) -> SubSessionRef | None:
        """Change a reference; None if the session has no such child."""
        row = self._rows.get(update.sub_session_id)
        if row is None:
            return None
        changed = updated(row.ref, update, self._tx.now)
        self._put(msgspec.structs.replace(row, ref=changed))
        return changed

    def link(self, ref: SubSessionRef) -> None:
        """Add a reference when a child starts; an existing one is brought up to date."""
        self.add((ref,))
        self.update(linked(ref))

    def all(self) -> tuple[SubSessionRef, ...]:
        """The references, oldest first."""
        return tuple(row.ref for row in sorted(self._rows.values(), key=lambda row: row.place))

    def _put(self, row: _RefRow) -> None:
        self._rows[row.ref.sub_session_id] = row
        save_session(self._tx, self._known)
        key = self._tx.slot.refs(self._known.value.record.session_id)
        self._tx.do("HSET", key, row.ref.sub_session_id, encode(row))


async def some_went_on(tx: Transaction, children: Iterable[SessionId]) -> bool:
    """Whether one of these children no longer waits."""
    found = [await find_session(tx, child) for child in children]
    return any(known is not None and went_on(known.value.run) for known in found)


class RedisSubSessions(Facet):
    """The facet `SubSessions`."""

    async def add_sub_session_refs(self, session_id: SessionId, refs: Sequence[SubSessionRef]) -> None:
        for ref in refs:
            door.check_ref(ref)

        async def work(tx: Transaction) -> None:
            (await Refs.of(tx, await load_session(tx, session_id))).add(refs)

        await self._write("add_sub_session_refs", session_id, work)

    async def update_sub_session_ref(self, session_id: SessionId, update: SubSessionRefUpdate) -> SubSessionRef | None:
        door.check_ref_update(update)

        async def work(tx: Transaction) -> SubSessionRef | None:
            return (await Refs.of(tx, await load_session(tx, session_id))).update(update)

        return await self._write("update_sub_session_ref", session_id, work)

    async def get_sub_session_refs(self, session_id: SessionId) -> tuple[SubSessionRef, ...]:
        async def work(tx: Transaction) -> tuple[SubSessionRef, ...]:
            return (await Refs.of(tx, await load_session(tx, session_id))).all()

        return await self._read("get_sub_session_refs", session_id, work)
