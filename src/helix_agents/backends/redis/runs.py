"""Runs, the leases of the processes that drive them, and how dead ones are found."""

import asyncio

import msgspec

from helix_agents.backends.redis import index
from helix_agents.backends.redis.facet import Facet
from helix_agents.backends.redis.index import entry_id
from helix_agents.backends.redis.rows import (
    RunEntry,
    Session,
    find_run,
    find_session,
    load_session,
    put_run,
    read_run,
    read_session,
    run_row,
    save_session,
    session_of,
)
from helix_agents.backends.redis.transaction import Known, Transaction
from helix_agents.domain import door
from helix_agents.domain.errors import RunAlreadyExistsError, RunNotFoundError
from helix_agents.domain.ids import RunId, SessionId, check_id
from helix_agents.domain.paging import DEFAULT_LIMIT, Page, check_page
from helix_agents.domain.records import decode
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
    is_orphan,
    recorded,
    settled,
    updated,
)
from helix_agents.domain.session_changes import changed


def settle_current_run(tx: Transaction, known: Known[Session], status: RunStatus, reason: str | None) -> None:
    """End the session's current run if it is going."""
    run = settled(known.value.run, status, reason, tx.now)
    if run is not None:
        put_run(tx, known, run)


def begin_run(tx: Transaction, known: Known[Session], run: RunRecord, start: tuple[int, int] | None = None) -> None:
    """Make a new run the session's current one."""
    session = known.value
    session.run = None
    session.memo = None
    session.flag = None
    session.set(turn=max(session.row.turn, run.turn))
    put_run(tx, known, run, start=start)


class RedisRuns(Facet):
    """The facet `Runs`."""

    async def create_run(self, session_id: SessionId, run_id: RunId, metadata: RunMetadata | None = None) -> RunRecord:
        metadata = metadata or RunMetadata()
        door.check_run(run_id, metadata)
        taken = await self._owner_of(run_id)

        async def work(tx: Transaction) -> RunRecord:
            known = await load_session(tx, session_id)
            if taken is not None or await find_run(tx, known, run_id) is not None:
                raise RunAlreadyExistsError(run_id)
            session = known.value
            settle_current_run(tx, known, "failed", "superseded")
            run = recorded(session_id, run_id, metadata, session.row.turn + 1, tx.now)
            session.record = changed(session.record, tx.now, current_run_id=run_id)
            begin_run(tx, known, run)
            save_session(tx, known)
            return run

        return await self._write("create_run", session_id, work)

    async def update_run_status(self, run_id: RunId, status: RunStatus, updates: RunUpdate | None = None) -> RunRecord:
        update = msgspec.structs.replace(updates or RunUpdate(), status=status)
        door.check_run_update(update)
        session_id = await self._owner_of(run_id)
        if session_id is None:
            raise RunNotFoundError(run_id)

        async def work(tx: Transaction) -> RunRecord:
            known = await find_session(tx, session_id)
            row = None if known is None else await find_run(tx, known, run_id)
            if known is None or row is None:
                raise RunNotFoundError(run_id)
            run = updated(row.run, update, tx.now)
            put_run(tx, known, run, row=row)
            return run

        return await self._write("update_run_status", session_id, work)

    async def get_current_run(self, session_id: SessionId) -> RunRecord | None:
        async def work(tx: Transaction) -> RunRecord | None:
            known = await find_session(tx, session_id)
            return None if known is None else known.value.run

        return await self._read("get_current_run", session_id, work)

    async def get_run(self, run_id: RunId) -> RunRecord | None:
        session_id = await self._owner_of(run_id)
        if session_id is None:
            return None

        async def work(tx: Transaction) -> RunRecord | None:
            known = await find_session(tx, session_id)
            row = None if known is None else await find_run(tx, known, run_id)
            return None if row is None else row.run

        return await self._read("get_run", session_id, work)

    async def list_runs(self, session_id: SessionId, *, offset: int = 0, limit: int = DEFAULT_LIMIT) -> Page[RunRecord]:
        check_page(offset, limit)

        async def work(tx: Transaction) -> Page[RunRecord]:
            await load_session(tx, session_id)
            turns = tx.slot.turns(session_id)
            total, ids = await tx.read(("ZCARD", turns), ("ZREVRANGE", turns, offset, offset + limit - 1))
            rows = await tx.read(*(read_run(tx.slot, session_id, name.decode()) for name in ids)) if ids else []
            found = [run_row(*fields) for fields in rows]
            items = tuple(row.run for row in found if row is not None)
            return Page(items=items, total=total, offset=offset, limit=limit)

        return await self._read("list_runs", session_id, work)

    async def count_running(self, user_id: str | None) -> int:
        found = await self._space.find(index.RUNNING)
        entries = [decode(payload, RunEntry) for _, payload in found.entries]
        by_session = {entry.run.session_id: entry for entry in entries}
        sessions = await asyncio.gather(*(self._session_of(entry) for entry in by_session.values()))
        return sum(session is not None and _is_going(session, user_id) for session in sessions)

    async def renew_lease(self, owner: str, ttl_ms: int) -> Lease:
        check_id(owner, "owner")
        now = self._clock.now_ms()
        lease = Lease(owner=owner, expires_at=now + ttl_ms)
        door.check_numbers(lease)
        key = self._space.index.slot.key("leases")
        commands = (
            ("ZADD", key, lease.expires_at, owner),
            ("ZREMRANGEBYSCORE", key, "-inf", now - DEAD_LEASES_LAST_MS),
        )
        await self._space.run("renew_lease", (), commands, 0, write=True)
        return lease

    async def find_lease(self, owner: str) -> Lease | None:
        key = self._space.index.slot.key("leases")
        (score,) = (await self._space.run("find_lease", (), (("ZSCORE", key, owner),), 0)).replies
        if score is None or int(float(score)) <= self._clock.now_ms():
            return None
        return Lease(owner=owner, expires_at=int(float(score)))

    async def release_lease(self, owner: str) -> None:
        key = self._space.index.slot.key("leases")
        await self._space.run("release_lease", (), (("ZREM", key, owner),), 0, write=True)

    async def list_orphans(
        self, *, limit: int = DEFAULT_LIMIT, after: RunRecord | None = None
    ) -> tuple[RunRecord, ...]:
        check_page(0, limit)
        found = await self._space.find(index.RUNNING)
        entries = {entry.run.run_id: entry for _, payload in found.entries for entry in (decode(payload, RunEntry),)}
        now = self._clock.now_ms()
        key = self._space.index.slot.key("leases")
        (flat,) = (
            await self._space.run("leases", (), (("ZRANGEBYSCORE", key, f"({now}", "+inf", "WITHSCORES"),), 0)
        ).replies
        leases = {
            flat[n].decode(): Lease(owner=flat[n].decode(), expires_at=int(float(flat[n + 1])))
            for n in range(0, len(flat), 2)
        }

        def orphaned(run: RunRecord) -> bool:
            parent = entries.get(run.parent_run_id or "")
            return is_orphan(run, leases.get(run.owner or ""), None if parent is None else parent.run, now)

        first = age(after)
        orphans = [entry for entry in entries.values() if age(entry.run) > first and orphaned(entry.run)]
        orphans.sort(key=lambda entry: age(entry.run))
        runs = await asyncio.gather(*(self._run_of(entry) for entry in orphans[:limit]))
        over = [
            entry for entry, run in zip(orphans[:limit], runs, strict=True) if run is None or run.status != "running"
        ]
        await self._space.doubt([("r", entry.tag, entry.run.session_id, entry.run.run_id) for entry in over])
        return tuple(run for run in runs if run is not None and run.status == "running")

    async def claim_run(
        self, session_id: SessionId, fence: Fence, owner: str | None, *, known_as: KnownAs | None = None
    ) -> RunRecord:
        door.check_claim(owner, known_as)

        async def work(tx: Transaction) -> RunRecord:
            known = await load_session(tx, session_id)
            run = claimed(session_id, known.value.run, fence, owner, known_as)
            put_run(tx, known, run)
            return run

        return await self._write("claim_run", session_id, work)

    async def _owner_of(self, run_id: RunId) -> SessionId | None:
        """The session that a run belongs to."""
        entry = await self._space.entry(entry_id("r", run_id), RunEntry)
        return entry.run.session_id if entry is not None else None

    async def _session_of(self, entry: RunEntry) -> Session | None:
        session_id = entry.run.session_id
        read = read_session(self._space.slot(entry.tag), session_id)
        return session_of((await self._space.run("running", (), (read,), 0)).replies[0], b"", session_id)

    async def _run_of(self, entry: RunEntry) -> RunRecord | None:
        read = read_run(self._space.slot(entry.tag), entry.run.session_id, entry.run.run_id)
        row = run_row(*(await self._space.run("run", (), (read,), 0)).replies[0])
        return None if row is None else row.run


def _is_going(session: Session, user_id: str | None) -> bool:
    """Whether this is a root session of the user with a run that is going."""
    record, run = session.record, session.run
    is_theirs = record.user_id == user_id and record.parent_session_id is None
    return is_theirs and run is not None and run.status == "running"
