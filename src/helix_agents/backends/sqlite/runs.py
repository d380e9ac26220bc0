"""Runs in SQLite, and the leases of the processes that drive them."""

from functools import cached_property
from typing import Any

import msgspec

from helix_agents.backends.lease_watch import LeaseWatch
from helix_agents.backends.session_rows import RUN_COLUMNS, put_record, record_of
from helix_agents.backends.sqlite.connection import Connection
from helix_agents.backends.sqlite.facet import Facet
from helix_agents.backends.sqlite.paging import read_page
from helix_agents.backends.sqlite.rows import (
    SessionHead,
    SessionRow,
    find_run,
    insert_run,
    load_session,
    run_of,
    save_run,
    save_session,
)
from helix_agents.domain.door import check_claim, check_run, check_run_update
from helix_agents.domain.errors import RunAlreadyExistsError, RunNotFoundError
from helix_agents.domain.ids import RunId, SessionId, check_id
from helix_agents.domain.paging import DEFAULT_LIMIT, Page, check_page
from helix_agents.domain.records import encode
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


def current_run(connection: Connection, row: SessionHead) -> RunRecord | None:
    """The run that started last, or None before the first."""
    return find_run(connection, row.namespace, row.run_id) if row.run_id is not None else None


def next_turn(connection: Connection, row: SessionHead) -> int:
    """The number of the session's next run."""
    found = connection.one(
        "SELECT max(turn) FROM __agents_runs WHERE namespace = ? AND session_id = ?", (row.namespace, row.session_id)
    )
    return (found[0] or 0) + 1 if found is not None else 1


def settle_current(connection: Connection, row: SessionHead, status: RunStatus, reason: str, now: int) -> None:
    """End the session's current run, if it is still going, because another one takes its place."""
    replaced = settled(current_run(connection, row), status, reason, now)
    if replaced is not None:
        save_run(connection, row.namespace, replaced)


def make_current(
    connection: Connection, row: SessionRow, run: RunRecord, answered: tuple[int, int] | None = None
) -> None:
    """Store a new run as the session's current one, with no commit remembered yet.

    `answered` holds the version and the message count that its start answers, now and when it is sent again.
    """
    insert_run(connection, row.namespace, run, answered)
    row.run_id, row.attempt, row.running = run.run_id, run.attempt, 1
    row.commit_step = row.commit_round = -1
    row.commit_checkpoint = row.commit_extra = None


def store_current(connection: Connection, row: SessionHead, run: RunRecord) -> None:
    """Store a change to the session's current run, including its fence."""
    save_run(connection, row.namespace, run)
    row.attempt, row.running = run.attempt, int(run.status == "running")


class SQLiteRuns(Facet):
    """The runs of a session."""

    @cached_property
    def _lease_watch(self) -> LeaseWatch:
        return LeaseWatch()

    async def create_run(self, session_id: SessionId, run_id: RunId, metadata: RunMetadata | None = None) -> RunRecord:
        given = metadata or RunMetadata()
        check_run(run_id, given)
        now = self._clock.now_ms()

        def work(connection: Connection) -> RunRecord:
            row = load_session(connection, self._namespace, session_id)
            if find_run(connection, self._namespace, run_id) is not None:
                raise RunAlreadyExistsError(run_id)
            run = recorded(session_id, run_id, given, next_turn(connection, row), now)
            before = row.version
            settle_current(connection, row, "failed", "superseded", now)
            put_record(row, changed(record_of(row), now))
            make_current(connection, row, run)
            self._state_writes.keep(row, before)
            save_session(connection, row)
            return run

        return await self._db.write(work)

    async def update_run_status(self, run_id: RunId, status: RunStatus, updates: RunUpdate | None = None) -> RunRecord:
        update = msgspec.structs.replace(updates or RunUpdate(), status=status)
        check_run_update(update)
        now = self._clock.now_ms()

        def work(connection: Connection) -> RunRecord:
            run = find_run(connection, self._namespace, run_id)
            if run is None:
                raise RunNotFoundError(run_id)
            ended = updated(run, update, now)
            save_run(connection, self._namespace, ended)
            connection.execute(
                "UPDATE __agents_sessions SET running = ? WHERE namespace = ? AND session_id = ? AND run_id = ?",
                (int(status == "running"), self._namespace, run.session_id, run_id),
            )
            return ended

        return await self._db.write(work)

    async def get_current_run(self, session_id: SessionId) -> RunRecord | None:
        row = await self._db.look_up(
            f"SELECT {RUN_COLUMNS} FROM __agents_runs WHERE namespace = ?1 AND run_id ="
            " (SELECT run_id FROM __agents_sessions WHERE namespace = ?1 AND session_id = ?2)",
            (self._namespace, session_id),
        )
        return run_of(row) if row is not None else None

    async def get_run(self, run_id: RunId) -> RunRecord | None:
        def work(connection: Connection) -> RunRecord | None:
            return find_run(connection, self._namespace, run_id)

        return await self._db.read_by_key(work, transaction=False)

    async def list_runs(self, session_id: SessionId, *, offset: int = 0, limit: int = DEFAULT_LIMIT) -> Page[RunRecord]:
        check_page(offset, limit)

        def work(connection: Connection) -> Page[RunRecord]:
            load_session(connection, self._namespace, session_id)
            return read_page(
                connection,
                columns=RUN_COLUMNS,
                source="__agents_runs WHERE namespace = ? AND session_id = ?",
                order="turn DESC",
                values=(self._namespace, session_id),
                offset=offset,
                limit=limit,
                item=run_of,
            )

        return await self._db.read(work)

    async def count_running(self, user_id: str | None) -> int:
        row = await self._db.look_up(
            "SELECT count(*) FROM __agents_runs r JOIN __agents_sessions s USING (namespace, session_id)"
            " WHERE r.namespace = ? AND r.status = 'running' AND s.user_id IS ? AND s.parent_session_id IS NULL",
            (self._namespace, user_id),
        )
        return row[0] if row is not None else 0

    async def renew_lease(self, owner: str, ttl_ms: int) -> Lease:
        check_id(owner, "owner")
        now = self._clock.now_ms()
        lease, forgotten = Lease(owner=owner, expires_at=now + ttl_ms), now - DEAD_LEASES_LAST_MS

        def work(connection: Connection) -> Lease:
            connection.execute(
                "INSERT INTO __agents_leases (namespace, owner, expires_at, ttl_ms) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (namespace, owner)"
                " DO UPDATE SET expires_at = excluded.expires_at, ttl_ms = excluded.ttl_ms",
                (self._namespace, lease.owner, lease.expires_at, ttl_ms),
            )
            # There are only as many rows as processes, so a scan is cheap.
            connection.execute(
                "DELETE FROM __agents_leases WHERE namespace = ? AND expires_at < ?", (self._namespace, forgotten)
            )
            return lease

        return await self._db.write(work)

    async def find_lease(self, owner: str) -> Lease | None:
        now = self._clock.now_ms()
        row = await self._db.look_up(
            "SELECT owner, expires_at, ttl_ms FROM __agents_leases"
            " WHERE namespace = ? AND owner = ? AND expires_at > ?",
            (self._namespace, owner, now),
        )
        until = 0 if row is None else self._alive_until(row, now)
        return Lease(owner=owner, expires_at=until) if until > now else None

    async def release_lease(self, owner: str) -> None:
        def work(connection: Connection) -> None:
            connection.execute(
                "DELETE FROM __agents_leases WHERE namespace = ? AND owner = ?", (self._namespace, owner)
            )

        await self._db.write(work)

    async def list_orphans(
        self, *, limit: int = DEFAULT_LIMIT, after: RunRecord | None = None
    ) -> tuple[RunRecord, ...]:
        check_page(0, limit)
        now = self._clock.now_ms()

        def work(connection: Connection) -> tuple[RunRecord, ...]:
            ahead = connection.all(
                "SELECT owner, expires_at, ttl_ms FROM __agents_leases WHERE namespace = ? AND expires_at - ttl_ms > ?",
                (self._namespace, now),
            )
            dead = [row[0] for row in ahead if self._alive_until(row, now) <= now]
            rows = connection.all(
                f"SELECT {RUN_COLUMNS} FROM __agents_runs r WHERE namespace = ?1 AND status = 'running'"
                " AND NOT EXISTS (SELECT 1 FROM __agents_leases l"
                "  WHERE l.namespace = ?1 AND l.owner = r.owner AND l.expires_at > ?2"
                "  AND l.owner NOT IN (SELECT value FROM json_each(?6)))"
                " AND NOT EXISTS (SELECT 1 FROM __agents_runs p"
                "  WHERE p.namespace = ?1 AND p.run_id = r.parent_run_id AND p.status = 'running')"
                " AND (started_at, run_id) > (?4, ?5) ORDER BY started_at, run_id LIMIT ?3",
                (self._namespace, now, limit, *age(after), encode(dead).decode()),
            )
            return tuple(map(run_of, rows))

        return await self._db.read(work)

    def _alive_until(self, row: tuple[Any, ...], now: int) -> int:
        owner, expires_at, ttl_ms = row
        if ttl_ms is None:
            # A process of an older version renews it, and says nothing of its length.
            return expires_at
        return self._lease_watch.alive_until(Lease(owner=owner, expires_at=expires_at), ttl_ms, now)

    async def claim_run(
        self, session_id: SessionId, fence: Fence, owner: str | None, *, known_as: KnownAs | None = None
    ) -> RunRecord:
        check_claim(owner, known_as)

        def work(connection: Connection) -> RunRecord:
            row = load_session(connection, self._namespace, session_id)
            run = claimed(session_id, current_run(connection, row), fence, owner, known_as)
            store_current(connection, row, run)
            save_session(connection, row)
            return run

        return await self._db.write(work)
