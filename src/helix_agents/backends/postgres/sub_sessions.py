"""A session's references to its children, in Postgres."""

from collections.abc import Iterable, Sequence
from typing import Any

from helix_agents.backends.postgres.connection import Connection, askable
from helix_agents.backends.postgres.facet import Facet
from helix_agents.backends.postgres.rows import find_session, load_session
from helix_agents.backends.postgres.runs import current_run
from helix_agents.domain.door import check_ref, check_ref_update
from helix_agents.domain.ids import SessionId
from helix_agents.domain.records import decode, encode
from helix_agents.domain.runs import went_on
from helix_agents.domain.sub_sessions import SubSessionRef, SubSessionRefUpdate, added, linked, updated


def ref_rows(refs: Iterable[SubSessionRef], now: int) -> list[dict[str, Any]]:
    """References in the database's form: the fields it queries by, and the whole record as stored."""
    return [
        {
            "sub_session_id": ref.sub_session_id,
            "mode": ref.mode,
            "name": ref.name,
            "status": ref.status,
            "body": added(ref, now),
        }
        for ref in refs
    ]


async def add_refs(
    connection: Connection, namespace: str, session_id: SessionId, refs: Iterable[SubSessionRef], now: int
) -> None:
    """Add references; an existing one stays as it is."""
    columns = ("sub_session_id", "mode", "name", "status")
    await connection.execute_many(
        "INSERT INTO __agents_sub_session_refs (namespace, session_id, sub_session_id, mode, name, status, body)"
        " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        [
            (namespace, session_id, *(each[name] for name in columns), encode(each["body"]).decode())
            for each in ref_rows(refs, now)
        ],
    )


async def update_ref(
    connection: Connection, namespace: str, session_id: SessionId, update: SubSessionRefUpdate, now: int
) -> SubSessionRef | None:
    """Change a reference; None if there is no such child."""
    row = await connection.one(
        "SELECT key, body FROM __agents_sub_session_refs WHERE namespace = ? AND session_id = ? AND sub_session_id = ?"
        " FOR UPDATE",
        askable(namespace, session_id, update.sub_session_id),
    )
    if row is None:
        return None
    ref = updated(decode(row[1], SubSessionRef), update, now)
    await connection.execute(
        "UPDATE __agents_sub_session_refs SET status = ?, body = ? WHERE key = ?",
        (ref.status, encode(ref).decode(), row[0]),
    )
    return ref


async def link_ref(connection: Connection, namespace: str, session_id: SessionId, ref: SubSessionRef, now: int) -> None:
    """Add a reference when a child starts; an existing one is brought up to date."""
    await add_refs(connection, namespace, session_id, (ref,), now)
    await update_ref(connection, namespace, session_id, linked(ref), now)


async def read_refs(connection: Connection, namespace: str, session_id: SessionId) -> tuple[SubSessionRef, ...]:
    """The references of a session, oldest first."""
    rows = await connection.all(
        "SELECT body FROM __agents_sub_session_refs WHERE namespace = ? AND session_id = ? ORDER BY key",
        (namespace, session_id),
    )
    return tuple(decode(row[0], SubSessionRef) for row in rows)


async def some_went_on(connection: Connection, namespace: str, children: Iterable[SessionId]) -> bool:
    """Whether one of these children no longer waits. The others stay locked until the transaction ends."""
    found = [await find_session(connection, namespace, child) for child in sorted(children)]
    return any([went_on(await current_run(connection, row)) for row in found if row is not None])


class PostgresSubSessions(Facet):
    """The children of a session."""

    async def add_sub_session_refs(self, session_id: SessionId, refs: Sequence[SubSessionRef]) -> None:
        for ref in refs:
            check_ref(ref)
        now = self._clock.now_ms()

        async def work(connection: Connection) -> None:
            await load_session(connection, self._namespace, session_id)
            await add_refs(connection, self._namespace, session_id, refs, now)

        await self._db.write(work)

    async def update_sub_session_ref(self, session_id: SessionId, update: SubSessionRefUpdate) -> SubSessionRef | None:
        check_ref_update(update)
        now = self._clock.now_ms()

        async def work(connection: Connection) -> SubSessionRef | None:
            await load_session(connection, self._namespace, session_id)
            return await update_ref(connection, self._namespace, session_id, update, now)

        return await self._db.write(work)

    async def get_sub_session_refs(self, session_id: SessionId) -> tuple[SubSessionRef, ...]:
        bodies = await self._bodies_of(session_id, "__agents_sub_session_refs")
        return tuple(decode(body, SubSessionRef) for body in bodies)
