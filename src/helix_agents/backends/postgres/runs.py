"""Runs in Postgres, and the leases of the processes that drive them."""

import time

import msgspec

from helix_agents.backends.postgres.connection import Connection, askable
from helix_agents.backends.postgres.database_clock import SERVER_MS
from helix_agents.backends.postgres.facet import Facet
from helix_agents.backends.postgres.paging import read_page
from helix_agents.backends.postgres.rows import (
    SessionHead,
    SessionRow,
    find_run,
    find_session,
    insert_run,
    load_session,
    put,
    run_of,
    save_run,
    save_session,
)
from helix_agents.backends.session_rows import RUN_COLUMNS, record_of
from helix_agents.domain.door import check_claim, check_run, check_run_update
from helix_agents.domain.errors import RunAlreadyExistsError, RunNotFoundError
from helix_agents.domain.ids import RunId, SessionId, check_id
from helix_agents.domain.paging import DEFAULT_LIMIT, Page, check_page
from helix_agents.domain.runs import (
    DEAD_LEASES_LAST_MS,
    Fence,
    KnownAs,
    Lease,
    RunMetadata,
    RunRecord,
    RunStatus,
    RunUpdate,
    age,
    claimed,
    recorded,
    settled,
    updated,
)
from helix_agents.domain.session_changes import changed

_RUN_OF_SESSION = ", ".join(f"r.{name}" for name in RUN_COLUMNS.split(", "))


async def current_run(connection: Connection, row: SessionHead) -> RunRecord | None:
    """The run that started last, or None before the first."""
    return await find_run(connection, row.namespace, row.run_id) if row.run_id is not None else None


async def next_turn(connection: Connection, row: SessionHead) -> int:
    """The number of the session's next run."""
    found = await connection.one(
        "SELECT max(turn) FROM __agents_runs WHERE namespace = ? AND session_id = ?", (row.namespace, row.session_id)
    )
    return (found[0] or 0) + 1 if found is not None else 1


async def settle_current(connection: Connection, row: SessionHead, status: RunStatus, reason: str, now: int) -> None:
    """End the session's current run, if it is still going, because another one takes its place."""
    replaced = settled(await current_run(connection, row), status, reason, now)
    if replaced is not None:
        await save_run(connection, row.namespace, replaced)


async def make_current(connection: Connection, row: SessionRow, run: RunRecord, *, started: bool = False) -> None:
    """Store a new run as the session's current one, with no commit remembered yet.

    A run that was `started` remembers the answer to its start: the row's present version and message count.
    """
    first_answer = (row.version, row.message_count) if started else None
    await insert_run(connection, row.namespace, run, first_answer)
    row.run_id, row.attempt, row.running = run.run_id, run.attempt, True
    row.commit_step = row.commit_round = -1
    row.commit_checkpoint = row.commit_extra = None


async def store_current(connection: Connection, row: SessionHead, run: RunRecord) -> None:
    """Store a change to the session's current run, including its fence."""
    await save_run(connection, row.namespace, run)
    row.attempt, row.running = run.attempt, run.status == "running"


# A renewal also removes the leases of dead processes, skipping those that a concurrent renewal has locked.
_RENEW = f"""
WITH dead AS (
    DELETE FROM __agents_leases l USING (
        SELECT owner FROM __agents_leases WHERE namespace = ?1 AND owner <> ?2 AND expires_at < ?4
        FOR UPDATE SKIP LOCKED
    ) AS d WHERE l.namespace = ?1 AND l.owner = d.owner
)
INSERT INTO __agents_leases (namespace, owner, expires_at) VALUES (?1, ?2, ?3)
ON CONFLICT (namespace, owner) DO UPDATE SET expires_at = excluded.expires_at RETURNING {SERVER_MS}
"""


class PostgresRuns(Facet):
    """The runs of a session."""

    async def create_run(self, session_id: SessionId, run_id: RunId, metadata: RunMetadata | None = None) -> RunRecord:
        given = metadata or RunMetadata()
        check_run(run_id, given)
        now = self._clock.now_ms()

        async def work(connection: Connection) -> RunRecord:
            row = await load_session(connection, self._namespace, session_id)
            if await find_run(connection, self._namespace, run_id) is not None:
                raise RunAlreadyExistsError(run_id)
            run = recorded(session_id, run_id, given, await next_turn(connection, row), now)
            before = row.version
            await settle_current(connection, row, "failed", "superseded", now)
            put(row, changed(record_of(row), now))
            await make_current(connection, row, run)
            self._state_writes.keep(row, before, connection)
            await save_session(connection, row)
            return run

        return await self._db.write(work)

    async def update_run_status(self, run_id: RunId, status: RunStatus, updates: RunUpdate | None = None) -> RunRecord:
        update = msgspec.structs.replace(updates or RunUpdate(), status=status)
        check_run_update(update)
        now = self._clock.now_ms()

        async def work(connection: Connection) -> RunRecord:
            run = await find_run(connection, self._namespace, run_id)
            if run is not None:
                await find_session(connection, self._namespace, run.session_id)
                run = await find_run(connection, self._namespace, run_id)
            if run is None:
                raise RunNotFoundError(run_id)
            ended = updated(run, update, now)
            await save_run(connection, self._namespace, ended)
            await connection.execute(
                "UPDATE __agents_sessions SET running = ? WHERE namespace = ? AND session_id = ? AND run_id = ?",
                (status == "running", self._namespace, run.session_id, run_id),
            )
            return ended

        return await self._db.write(work)

    async def get_current_run(self, session_id: SessionId) -> RunRecord | None:
        row = await self._db.one(
            f"SELECT {_RUN_OF_SESSION} FROM __agents_sessions s JOIN __agents_runs r"
            " ON r.namespace = s.namespace AND r.run_id = s.run_id WHERE s.namespace = ? AND s.session_id = ?",
            (self._namespace, session_id),
        )
        return run_of(row) if row is not None else None

    async def get_run(self, run_id: RunId) -> RunRecord | None:
        row = await self._db.one(
            f"SELECT {RUN_COLUMNS} FROM __agents_runs WHERE namespace = ? AND run_id = ?", (self._namespace, run_id)
        )
        return run_of(row) if row is not None else None

    async def list_runs(self, session_id: SessionId, *, offset: int = 0, limit: int = DEFAULT_LIMIT) -> Page[RunRecord]:
        check_page(offset, limit)
        await self._check_there(session_id)
        return await read_page(
            self._db,
            columns=RUN_COLUMNS,
            source="__agents_runs WHERE namespace = ? AND session_id = ?",
            order="turn DESC",
            values=(self._namespace, session_id),
            offset=offset,
            limit=limit,
            item=run_of,
        )

    async def count_running(self, user_id: str | None) -> int:
        row = await self._db.one(
            "SELECT count(*) FROM __agents_runs r JOIN __agents_sessions s USING (namespace, session_id)"
            " WHERE namespace = ? AND r.status = 'running' AND s.user_id IS NOT DISTINCT FROM ?"
            " AND s.parent_session_id IS NULL",
            (self._namespace, user_id),
        )
        return row[0] if row is not None else 0

    async def renew_lease(self, owner: str, ttl_ms: int) -> Lease:
        check_id(owner, "owner")
        now = self._clock.now_ms()
        lease = Lease(owner=owner, expires_at=now + ttl_ms)
        asked = time.monotonic()
        row = await self._db.call(_RENEW, (self._namespace, lease.owner, lease.expires_at, now - DEAD_LEASES_LAST_MS))
        if row is not None:
            self._db.clock.heard(row[0], asked)
        return lease

    async def find_lease(self, owner: str) -> Lease | None:
        row = await self._db.one(
            "SELECT expires_at FROM __agents_leases WHERE namespace = ? AND owner = ? AND expires_at > ?",
            (self._namespace, owner, self._clock.now_ms()),
        )
        return Lease(owner=owner, expires_at=row[0]) if row is not None else None

    async def release_lease(self, owner: str) -> None:
        await self._db.execute(
            "DELETE FROM __agents_leases WHERE namespace = ? AND owner = ?", askable(self._namespace, owner)
        )

    async def list_orphans(
        self, *, limit: int = DEFAULT_LIMIT, after: RunRecord | None = None
    ) -> tuple[RunRecord, ...]:
        check_page(0, limit)
        rows = await self._db.all(
            f"SELECT {RUN_COLUMNS} FROM __agents_runs r WHERE namespace = ?1 AND status = 'running'"
            " AND NOT EXISTS (SELECT 1 FROM __agents_leases l"
            "  WHERE l.namespace = ?1 AND l.owner = r.owner AND l.expires_at > ?2)"
            " AND NOT EXISTS (SELECT 1 FROM __agents_runs p"
            "  WHERE p.namespace = ?1 AND p.run_id = r.parent_run_id AND p.status = 'running')"
            " AND (started_at, run_id) > (?4, ?5) ORDER BY started_at, run_id LIMIT ?3",
            (self._namespace, self._clock.now_ms(), limit, *age(after)),
        )
        return tuple(map(run_of, rows))

    async def claim_run(
        self, session_id: SessionId, fence: Fence, owner: str | None, *, known_as: KnownAs | None = None
    ) -> RunRecord:
        check_claim(owner, known_as)

        async def work(connection: Connection) -> RunRecord:
            row = await load_session(connection, self._namespace, session_id)
            run = claimed(session_id, await current_run(connection, row), fence, owner, known_as)
            await store_current(connection, row, run)
            await save_session(connection, row)
            return run

        return await self._db.write(work)
