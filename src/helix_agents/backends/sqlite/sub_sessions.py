"""A session's references to its children, in SQLite."""

from collections.abc import Iterable, Sequence

from helix_agents.backends.sqlite.connection import Connection
from helix_agents.backends.sqlite.facet import Facet
from helix_agents.backends.sqlite.rows import find_session, load_session
from helix_agents.backends.sqlite.runs import current_run
from helix_agents.domain.door import check_ref, check_ref_update
from helix_agents.domain.ids import SessionId
from helix_agents.domain.records import decode, encode
from helix_agents.domain.runs import went_on
from helix_agents.domain.sub_sessions import SubSessionRef, SubSessionRefUpdate, added, linked, updated


def add_refs(
    connection: Connection, namespace: str, session_id: SessionId, refs: Iterable[SubSessionRef], now: int
) -> None:
    """Add references; an existing one stays as it is."""
    for ref in refs:
        new = added(ref, now)
        connection.execute(
            "INSERT INTO __agents_sub_session_refs (namespace, session_id, sub_session_id, mode, name, status, body)"
            " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (namespace, session_id, new.sub_session_id, new.mode, new.name, new.status, encode(new).decode()),
        )


def update_ref(
    connection: Connection, namespace: str, session_id: SessionId, update: SubSessionRefUpdate, now: int
) -> SubSessionRef | None:
    """Change a reference; None if there is no such child."""
    row = connection.one(
        "SELECT key, body FROM __agents_sub_session_refs WHERE namespace = ? AND session_id = ? AND sub_session_id = ?",
        (namespace, session_id, update.sub_session_id),
    )
    if row is None:
        return None
    ref = updated(decode(row[1], SubSessionRef), update, now)
    connection.execute(
        "UPDATE __agents_sub_session_refs SET status = ?, body = ? WHERE key = ?",
        (ref.status, encode(ref).decode(), row[0]),
    )
    return ref


def link_ref(connection: Connection, namespace: str, session_id: SessionId, ref: SubSessionRef, now: int) -> None:
    """Add a reference when a child starts; an existing one is brought up to date."""
    add_refs(connection, namespace, session_id, (ref,), now)
    update_ref(connection, namespace, session_id, linked(ref), now)


def read_refs(connection: Connection, namespace: str, session_id: SessionId) -> tuple[SubSessionRef, ...]:
    """The references of a session, oldest first."""
    rows = connection.all(
        "SELECT body FROM __agents_sub_session_refs WHERE namespace = ? AND session_id = ? ORDER BY key",
        (namespace, session_id),
    )
    return tuple(decode(row[0], SubSessionRef) for row in rows)


def some_went_on(connection: Connection, namespace: str, children: Iterable[SessionId]) -> bool:
    """Whether one of these children no longer waits."""
    found = (find_session(connection, namespace, child) for child in children)
    return any(went_on(current_run(connection, row)) for row in found if row is not None)


class SQLiteSubSessions(Facet):
    """The children of a session."""

    async def add_sub_session_refs(self, session_id: SessionId, refs: Sequence[SubSessionRef]) -> None:
        for ref in refs:
            check_ref(ref)
        now = self._clock.now_ms()

        def work(connection: Connection) -> None:
            load_session(connection, self._namespace, session_id)
            add_refs(connection, self._namespace, session_id, refs, now)

        await self._db.write(work)

    async def update_sub_session_ref(self, session_id: SessionId, update: SubSessionRefUpdate) -> SubSessionRef | None:
        check_ref_update(update)
        now = self._clock.now_ms()

        def work(connection: Connection) -> SubSessionRef | None:
            load_session(connection, self._namespace, session_id)
            return update_ref(connection, self._namespace, session_id, update, now)

        return await self._db.write(work)

    async def get_sub_session_refs(self, session_id: SessionId) -> tuple[SubSessionRef, ...]:
        def work(connection: Connection) -> tuple[SubSessionRef, ...]:
            load_session(connection, self._namespace, session_id)
            return read_refs(connection, self._namespace, session_id)

        return await self._db.read_by_key(work)
