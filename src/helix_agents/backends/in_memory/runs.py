"""Runs, the leases of the processes that drive them, and how dead ones are found."""

from dataclasses import replace
from functools import cached_property

import msgspec

from helix_agents.backends.in_memory.handle import Handle, own, page_of
from helix_agents.backends.in_memory.rows import current_run, session_row
from helix_agents.backends.in_memory.tables import Tables
from helix_agents.backends.in_memory.transaction import Transaction
from helix_agents.backends.lease_watch import LeaseWatch
from helix_agents.domain import door
from helix_agents.domain.errors import RunAlreadyExistsError, RunNotFoundError
from helix_agents.domain.ids import RunId, SessionId, check_id
from helix_agents.domain.paging import DEFAULT_LIMIT, Page, check_page
from helix_agents.domain.runs import (
    Fence,
    KnownAs,
    Lease,
    RunMetadata,
    RunRecord,
    RunStatus,
    RunUpdate,
    age,
    claimed,
    is_orphan,
    recorded,
    settled,
    updated,
)
from helix_agents.domain.session_changes import changed


def next_turn(tables: Tables, session_id: SessionId) -> int:
    """The turn after the highest one so far."""
    return 1 + max((tables.runs[run_id].turn for run_id in tables.session_runs.get(session_id, ())), default=0)


def put_run(tx: Transaction, run: RunRecord) -> None:
    """Store a run, new or changed."""
    if run.run_id not in tx.tables.runs:
        tx.append_under(tx.tables.session_runs, run.session_id, run.run_id)
    tx.put(tx.tables.runs, run.run_id, run)


def settle_current_run(tx: Transaction, session_id: SessionId, status: RunStatus, reason: str | None) -> None:
    """End the session's current run if it is going."""
    run = settled(current_run(tx.tables, session_id), status, reason, tx.now)
    if run is not None:
        put_run(tx, run)


class InMemoryRuns(Handle):
    """The facet `Runs`."""

    @cached_property
    def _lease_watch(self) -> LeaseWatch:
        return LeaseWatch()

    async def create_run(self, session_id: SessionId, run_id: RunId, metadata: RunMetadata | None = None) -> RunRecord:
        metadata = metadata or RunMetadata()
        door.check_run(run_id, metadata)
        async with self._writing("create_run") as tx:
            row = session_row(tx.tables, session_id)
            if run_id in tx.tables.runs:
                raise RunAlreadyExistsError(run_id)
            settle_current_run(tx, session_id, "failed", "superseded")
            run = recorded(session_id, run_id, metadata, next_turn(tx.tables, session_id), tx.now)
            put_run(tx, run)
            tx.remove(tx.tables.flags, session_id)
            record = changed(row.record, tx.now, current_run_id=run_id)
            tx.put(tx.tables.sessions, session_id, replace(row, record=record, remembered=None))
        return run

    async def update_run_status(self, run_id: RunId, status: RunStatus, updates: RunUpdate | None = None) -> RunRecord:
        update = msgspec.structs.replace(updates or RunUpdate(), status=status)
        door.check_run_update(update)
        async with self._writing("update_run_status") as tx:
            run = tx.tables.runs.get(run_id)
            if run is None:
                raise RunNotFoundError(run_id)
            run = updated(run, update, tx.now)
            put_run(tx, run)
        return run

    async def get_current_run(self, session_id: SessionId) -> RunRecord | None:
        with self._reading() as tables:
            return current_run(tables, session_id) if session_id in tables.sessions else None

    async def get_run(self, run_id: RunId) -> RunRecord | None:
        with self._reading() as tables:
            return tables.runs.get(run_id)

    async def list_runs(self, session_id: SessionId, *, offset: int = 0, limit: int = DEFAULT_LIMIT) -> Page[RunRecord]:
        check_page(offset, limit)
        with self._reading() as tables:
            session_row(tables, session_id)
            runs = [tables.runs[run_id] for run_id in tables.session_runs.get(session_id, ())]
        runs.sort(key=lambda run: (run.turn, run.run_id), reverse=True)
        return page_of(runs, offset, limit, own)

    async def count_running(self, user_id: str | None) -> int:
        with self._reading() as tables:
            going = (tables.sessions[run.session_id] for run in tables.runs.values() if run.status == "running")
            return sum(row.record.user_id == user_id and row.record.parent_session_id is None for row in going)

    async def renew_lease(self, owner: str, ttl_ms: int) -> Lease:
        check_id(owner, "owner")
        async with self._writing("renew_lease") as tx:
            lease = Lease(owner=owner, expires_at=tx.now + ttl_ms)
            door.check_numbers(lease)
            tx.put(tx.tables.leases, owner, (lease, ttl_ms))
        return lease

    async def find_lease(self, owner: str) -> Lease | None:
        with self._reading() as tables:
            now = self._clock.now_ms()
            lease = self._lease_of(tables, owner, now)
        return lease if lease is not None and lease.expires_at > now else None

    async def release_lease(self, owner: str) -> None:
        async with self._writing("release_lease") as tx:
            tx.remove(tx.tables.leases, owner)

    async def list_orphans(
        self, *, limit: int = DEFAULT_LIMIT, after: RunRecord | None = None
    ) -> tuple[RunRecord, ...]:
        check_page(0, limit)
        first = age(after)
        with self._reading() as tables:
            now = self._clock.now_ms()
            orphans = [
                run
                for run in tables.runs.values()
                if is_orphan(run, self._lease_of(tables, run.owner, now), tables.runs.get(run.parent_run_id or ""), now)
            ]
        return tuple(sorted((run for run in orphans if age(run) > first), key=age)[:limit])

    async def claim_run(
        self, session_id: SessionId, fence: Fence, owner: str | None, *, known_as: KnownAs | None = None
    ) -> RunRecord:
        door.check_claim(owner, known_as)
        async with self._writing("claim_run") as tx:
            run = claimed(session_id, current_run(tx.tables, session_id), fence, owner, known_as)
            put_run(tx, run)
        return run

    def _lease_of(self, tables: Tables, owner: str | None, now: int) -> Lease | None:
        """The lease for as long as it can be trusted; a lease that has ended may still be stored."""
        if owner is None or owner not in tables.leases:
            return None
        return Lease(owner=owner, expires_at=self._lease_watch.alive_until(*tables.leases[owner], now))
