"""A session's children, as their parent knows them."""

from collections.abc import Iterable, Sequence

from helix_agents.backends.in_memory.handle import Handle, own
from helix_agents.backends.in_memory.rows import current_run, session_row
from helix_agents.backends.in_memory.transaction import Transaction
from helix_agents.domain import door
from helix_agents.domain.ids import SessionId
from helix_agents.domain.runs import went_on
from helix_agents.domain.sub_sessions import SubSessionRef, SubSessionRefUpdate, added, linked, updated


def add_refs(tx: Transaction, session_id: SessionId, refs: Iterable[SubSessionRef]) -> None:
    """Add references; an existing reference to the same child stays as it is."""
    for ref in refs:
        rows = tx.within(tx.tables.refs, session_id)
        if ref.sub_session_id not in rows:
            tx.put(rows, ref.sub_session_id, added(ref, tx.now))


def update_ref(tx: Transaction, session_id: SessionId, update: SubSessionRefUpdate) -> SubSessionRef | None:
    """Change a reference; None when the session has no such child."""
    rows = tx.tables.refs.get(session_id, {})
    ref = rows.get(update.sub_session_id)
    if ref is None:
        return None
    changed = updated(ref, update, tx.now)
    tx.put(rows, update.sub_session_id, changed)
    return changed


def some_went_on(tx: Transaction, children: Iterable[SessionId]) -> bool:
    """Whether one of these children no longer waits."""
    return any(went_on(current_run(tx.tables, child)) for child in children if child in tx.tables.sessions)


def link_ref(tx: Transaction, session_id: SessionId, ref: SubSessionRef) -> None:
    """Add a reference when a child starts; an existing one is brought up to date."""
    add_refs(tx, session_id, (ref,))
    update_ref(tx, session_id, linked(ref))


class InMemorySubSessions(Handle):
    """The facet `SubSessions`."""

    async def add_sub_session_refs(self, session_id: SessionId, refs: Sequence[SubSessionRef]) -> None:
        for ref in refs:
            door.check_ref(ref)
        private = [own(ref) for ref in refs]
        async with self._writing("add_sub_session_refs") as tx:
            session_row(tx.tables, session_id)
            add_refs(tx, session_id, private)

    async def update_sub_session_ref(self, session_id: SessionId, update: SubSessionRefUpdate) -> SubSessionRef | None:
        door.check_ref_update(update)
        update = own(update)
        async with self._writing("update_sub_session_ref") as tx:
            session_row(tx.tables, session_id)
            ref = update_ref(tx, session_id, update)
        return None if ref is None else own(ref)

    async def get_sub_session_refs(self, session_id: SessionId) -> tuple[SubSessionRef, ...]:
        with self._reading() as tables:
            session_row(tables, session_id)
            refs = tuple(tables.refs.get(session_id, {}).values())
        return tuple(own(ref) for ref in refs)
