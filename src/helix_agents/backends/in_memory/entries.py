"""Entries in memory: the store behind the state capabilities, in its shortest form."""

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path

import msgspec

from helix_agents.backends.in_memory.entry_rows import (
    MemoryRows,
    append_audit,
    find_head,
    head_of,
    move_head,
    topic_of,
    write_plan,
)
from helix_agents.backends.in_memory.handle import Handle, own
from helix_agents.backends.in_memory.rows import current_run
from helix_agents.backends.in_memory.tables import EntryTables, Tables
from helix_agents.backends.in_memory.transaction import Transaction
from helix_agents.backends.wakeups import Waiter
from helix_agents.domain.audit import AuditRow
from helix_agents.domain.capability_errors import InvalidInput
from helix_agents.domain.entries import (
    SESSION_SCOPES,
    AgentSummary,
    Changed,
    Entry,
    EntryPage,
    EntryTransaction,
    EventPage,
    Glance,
    Overview,
    RestoreEntries,
    RunSummary,
    ScopeUsage,
    SessionSummary,
    Transacted,
)
from helix_agents.domain.entry_plan import ONCE, Plan, first_answer, next_revision, plan_changes, plan_transaction
from helix_agents.domain.entry_restore import restore_key
from helix_agents.domain.ids import SessionId
from helix_agents.domain.pending import PendingCall
from helix_agents.ports.entries import EntryDump, EntryStore

DUMP_ROWS = 500


class InMemoryEntryStore(Handle):
    """Entries that live as long as their `Memory`. A memory has no folder beside it, so files need an explicit one."""

    @property
    def home(self) -> Path | None:
        return None

    def now_ms(self) -> int:
        return self._clock.now_ms()

    async def store_id(self) -> str:
        async with self._writing("store_id") as tx:
            return head_of(tx).store_id

    async def transact(self, request: EntryTransaction) -> Transacted:
        request = own(request)
        async with self._writing("transact") as tx:
            rows = MemoryRows(tx.tables.entries)
            if request.once is not None:
                answer = first_answer(request, rows.find(ONCE, request.once))
                if answer is not None:
                    return answer
            revision = next_revision(request.changes, head_of(tx).revision)
            plan = plan_transaction(request, rows, revision=revision, now=tx.now)
            write_plan(tx, plan)
            append_audit(tx, request.audit, revision)
            move_head(tx, revision=revision)
            self._ring(tx)
        return plan.answer

    async def find(self, scope: str, key: str) -> Entry | None:
        with self._reading() as tables:
            entry = MemoryRows(tables.entries).find(scope, key)
        return entry if entry is not None and entry.value is not None else None

    async def find_version(self, scope: str, key: str, version: int) -> Entry | None:
        return next((each for each in await self.list_versions(scope, key) if each.version == version), None)

    async def list_versions(self, scope: str, key: str, *, limit: int | None = None) -> tuple[Entry, ...]:
        with self._reading() as tables:
            present = MemoryRows(tables.entries).find(scope, key)
            if present is None or present.value is None:
                return ()
            older = tables.entries.versions.get((scope, key), {})
            known = [older[version] for version in sorted(older, reverse=True) if older[version].value is not None]
        return (present, *known)[:limit]

    async def list_entries(
        self, scope: str, *, prefix: str = "", after: str | None = None, limit: int = 1_000, values: bool = False
    ) -> EntryPage:
        with self._reading() as tables:
            found = [each for each in MemoryRows(tables.entries).living(scope) if each.key.startswith(prefix)]
            revision = find_head(tables.entries).revision
        page = [each for each in found if after is None or each.key > after]
        shown = page[:limit] if values else [msgspec.structs.replace(each, value=None) for each in page[:limit]]
        return EntryPage(
            items=tuple(shown),
            total=len(found),
            total_bytes=sum(each.size for each in found),
            history_bytes=sum(each.history_bytes for each in found),
            revision=revision,
            has_more=len(page) > limit,
        )

    async def usage(self, scope: str) -> ScopeUsage:
        with self._reading() as tables:
            return MemoryRows(tables.entries).usage(scope)

    async def list_scopes(self, prefix: str = "") -> tuple[ScopeUsage, ...]:
        with self._reading() as tables:
            return _scopes(tables.entries, prefix)

    async def list_events(
        self, after: int, *, limit: int = 1_000, scope: str | None = None, prefix: str = "", until: int | None = None
    ) -> EventPage:
        with self._reading() as tables:
            head = find_head(tables.entries)
            last = head.revision if until is None else min(until, head.revision)
            found = [
                event
                for (revision, _), event in sorted(tables.entries.events.items())
                if after < revision <= last
                and (scope is None or (event.scope == scope and event.key.startswith(prefix)))
            ]
        reached = max(last, after)
        if len(found) > limit:
            # A page never splits a transaction: the cut one moves to the next page, unless it alone fills this one.
            reached = max(found[limit].revision - 1, found[0].revision)
        return EventPage(
            events=tuple(event for event in found if event.revision <= reached),
            reached=reached,
            head=head.revision,
            compacted=head.compacted,
            epoch=head.epoch,
        )

    async def revision_at(self, at_ms: int) -> int:
        with self._reading() as tables:
            since = (event.revision for event in tables.entries.events.values() if event.at >= at_ms)
            return min(since, default=find_head(tables.entries).revision + 1) - 1

    async def prune_events(self, *, before_ms: int, keep: int) -> int:
        async with self._writing("prune_events") as tx:
            events = tx.tables.entries.events
            newest_first = sorted(events, reverse=True)
            crowded = newest_first[keep][0] if len(newest_first) > keep else 0
            young = min((event.revision for event in events.values() if event.at >= before_ms), default=None)
            old = max((place[0] for place in events if young is None or place[0] < young), default=0)
            up_to = max(crowded, old, head_of(tx).compacted)
            for place in [place for place in events if place[0] <= up_to]:
                tx.remove(events, place)
            move_head(tx, compacted=up_to)
        return up_to

    @asynccontextmanager
    async def listen(self) -> AsyncGenerator[Waiter]:
        with self.memory.wakeups.listen(topic_of(self.namespace)) as waiter:
            yield waiter

    async def overview(self, system: Sequence[str] = (), *, sessions: int = 1_000) -> Overview:
        with self._reading() as tables:
            head = find_head(tables.entries)
            summaries = [_session_summary(tables, session_id) for session_id in tables.sessions]
            newest_first = sorted(summaries, key=lambda session: (-session.updated_at, session.session_id))
            return Overview(
                revision=head.revision,
                at=self._clock.now_ms(),
                epoch=head.epoch,
                scopes=_totals(_scopes(tables.entries, "")),
                agents=_agents(summaries),
                sessions=tuple(newest_first[:sessions]),
                runs=dict(sorted(Counter(run.status for run in tables.runs.values()).items())),
                pending=_pending(tables, None),
                usage=dict(sorted(Counter(entry.source_type for entry in tables.usage.values()).items())),
                system={scope: tuple(MemoryRows(tables.entries).living(scope)) for scope in system},
            )

    async def glance(
        self, system: Sequence[str] = (), *, agent: str | None = None, runs_since: int | None = None
    ) -> Glance:
        with self._reading() as tables:
            return Glance(
                revision=find_head(tables.entries).revision,
                runs=_recent(tables, agent, runs_since) if runs_since is not None else (),
                pending=_pending(tables, agent),
                system={scope: tuple(MemoryRows(tables.entries).living(scope)) for scope in system},
            )

    @asynccontextmanager
    async def dump(self, scopes: Sequence[str]) -> AsyncGenerator[EntryDump]:
        with self._reading() as tables:
            dump = _MemoryDump(tables.entries, scopes)
        yield dump

    async def stage_restore(self, restore_id: str, rows: Sequence[Entry]) -> None:
        async with self._writing("stage_restore") as tx:
            staged = tx.within(tx.tables.entries.staged, restore_id)
            for row in rows:
                tx.put(staged, (row.scope, row.key, row.version), row)

    async def restore(self, request: RestoreEntries) -> Transacted:
        request = own(request)
        async with self._writing("restore") as tx:
            answer = _restore(tx, request)
            self._ring(tx)
        return answer

    async def discard_restore(self, restore_id: str | None) -> None:
        async with self._writing("discard_restore") as tx:
            staged = tx.tables.entries.staged
            for each in [restore_id] if restore_id is not None else list(staged):
                tx.remove(staged, each)

    async def list_audit(self, after: int = 0, *, limit: int = 1_000) -> tuple[AuditRow, ...]:
        with self._reading() as tables:
            audit = tables.entries.audit
            return tuple(audit[seq] for seq in sorted(audit) if seq > after)[:limit]

    async def prune_audit(self, up_to: int) -> int:
        async with self._writing("prune_audit") as tx:
            audit = tx.tables.entries.audit
            gone = [seq for seq in audit if seq <= up_to]
            for seq in gone:
                tx.remove(audit, seq)
        return len(gone)

    def _ring(self, tx: Transaction) -> None:
        tx.afterwards(lambda: self.memory.wakeups.ring((topic_of(self.namespace),)))


class _MemoryDump:
    """A copy of the rows; they never change, so copying the tables is enough."""

    def __init__(self, tables: EntryTables, scopes: Sequence[str]) -> None:
        self.revision = find_head(tables).revision
        self._rows: list[Entry] = []
        for scope in scopes:
            for key, present in sorted(tables.entries.get(scope, {}).items()):
                older = tables.versions.get((scope, key), {})
                self._rows.extend((*(older[version] for version in sorted(older)), present))

    async def rows(self) -> AsyncIterator[Sequence[Entry]]:
        for start in range(0, len(self._rows), DUMP_ROWS):
            yield self._rows[start : start + DUMP_ROWS]


def _scopes(tables: EntryTables, prefix: str) -> tuple[ScopeUsage, ...]:
    return tuple(usage for scope, usage in sorted(tables.usage.items()) if usage.keys > 0 and scope.startswith(prefix))


def _totals(usages: Sequence[ScopeUsage]) -> tuple[ScopeUsage, ...]:
    """The totals of every scope, with all sessions as one."""
    found: dict[str, ScopeUsage] = {}
    for usage in usages:
        name = SESSION_SCOPES if usage.scope.startswith(SESSION_SCOPES) else usage.scope
        known = found.get(name) or ScopeUsage(scope=name)
        found[name] = ScopeUsage(
            scope=name,
            keys=known.keys + usage.keys,
            bytes=known.bytes + usage.bytes,
            revision=max(known.revision, usage.revision),
        )
    return tuple(found[name] for name in sorted(found))


def _session_summary(tables: Tables, session_id: SessionId) -> SessionSummary:
    record, run = tables.sessions[session_id].record, current_run(tables, session_id)
    return SessionSummary(
        session_id=session_id,
        agent=record.agent_type,
        status=record.status,
        updated_at=record.updated_at,
        run_status=run.status if run is not None else None,
    )


def _agents(sessions: Sequence[SessionSummary]) -> dict[str, AgentSummary]:
    there = Counter(session.agent for session in sessions)
    running = Counter(session.agent for session in sessions if session.run_status == "running")
    return {agent: AgentSummary(sessions=there[agent], running=running[agent]) for agent in sorted(there)}


def _restore(tx: Transaction, request: RestoreEntries) -> Transacted:
    tables = tx.tables.entries
    staged = tables.staged.get(request.restore_id)
    if staged is None:
        raise InvalidInput("Nothing is staged for this restore.", {"restore_id": request.restore_id})
    head = head_of(tx)
    rows = MemoryRows(tables)
    plan = Plan(revision=head.revision + 1, at=tx.now, owner=request.owner)
    results: list[Changed] = []
    for scope in request.scopes:
        before = len(plan.events)
        by_key = {
            key: [staged[place] for place in places]
            for key, places in groupby(sorted(each for each in staged if each[0] == scope), key=lambda each: each[1])
        }
        keys = size = 0
        for key in sorted({*by_key, *tables.entries.get(scope, {})}):
            row = restore_key(plan, rows.find(scope, key), by_key.get(key, []), request.keep_versions)
            if row is not None and row.value is not None:
                keys, size = keys + 1, size + row.size + row.history_bytes
        plan.usages[scope] = ScopeUsage(scope=scope, keys=keys, bytes=size, revision=plan.revision)
        results.append(Changed(version=0, removed=len(plan.events) - before))
    write_plan(tx, plan)
    write_plan(tx, plan_changes(request.changes, rows, revision=plan.revision, now=tx.now, owner=request.owner))
    append_audit(tx, request.audit, plan.revision)
    move_head(tx, revision=plan.revision, epoch=head.epoch + 1)
    tx.remove(tables.staged, request.restore_id)
    return Transacted(revision=plan.revision, at=tx.now, results=tuple(results))


_: type[EntryStore] = InMemoryEntryStore


def _is_of(tables: Tables, session_id: SessionId, agent: str | None) -> bool:
    row = tables.sessions.get(session_id)
    return row is not None and agent in (None, row.record.agent_type)


def _pending(tables: Tables, agent: str | None) -> tuple[PendingCall, ...]:
    found = [
        call
        for calls in tables.pending.values()
        for call in calls.values()
        if call.state == "waiting" and (agent is None or _is_of(tables, call.session_id, agent))
    ]
    return tuple(own(call) for call in sorted(found, key=lambda call: (call.created_at, call.tool_call_id)))


def _recent(tables: Tables, agent: str | None, since: int) -> tuple[RunSummary, ...]:
    found = [
        RunSummary(
            run_id=run.run_id,
            session_id=run.session_id,
            agent=tables.sessions[run.session_id].record.agent_type,
            turn=run.turn,
            status=run.status,
            started_at=run.started_at,
            ended_at=run.ended_at,
        )
        for run in tables.runs.values()
        if _is_of(tables, run.session_id, agent) and (run.ended_at is None or run.ended_at >= since)
    ]
    return tuple(sorted(found, key=lambda run: (run.started_at, run.session_id, run.turn)))
