"""The atomic writes of a run in Postgres: its start, its steps, and an end imposed from outside."""

import contextlib
from collections.abc import Sequence

from helix_agents.backends.postgres.branches import rewind
from helix_agents.backends.postgres.checkpoints import commit_at
from helix_agents.backends.postgres.connection import Connection, Row, Value, has_to_be_looked_at
from helix_agents.backends.postgres.effects import forget_every_effect
from helix_agents.backends.postgres.entry_writes import (
    delete_session_entries,
    rewind_session_entries,
    write_session_entries,
)
from helix_agents.backends.postgres.flags import drop_flag
from helix_agents.backends.postgres.lineage import append_messages, load_custom_state
from helix_agents.backends.postgres.pending import calls_below, change_calls, driven_calls, save_calls
from helix_agents.backends.postgres.queues import take_queued, take_steering
from helix_agents.backends.postgres.rows import (
    SessionRow,
    children_of,
    find_run,
    find_session,
    load_session,
    lock_tree_of,
    put,
    save_session,
)
from helix_agents.backends.postgres.run_start import READ, PlainStart, in_new_session, in_session_as_read, is_plain
from helix_agents.backends.postgres.runs import current_run, make_current, next_turn, settle_current, store_current
from helix_agents.backends.postgres.sessions import PostgresSessions
from helix_agents.backends.postgres.staging import drop_staged, stage, take_staged
from helix_agents.backends.postgres.step_commit import (
    PlainStep,
    Step,
    commit_carefully,
    has_outgrown,
)
from helix_agents.backends.postgres.stream_rows import claim_stream
from helix_agents.backends.postgres.sub_sessions import link_ref, update_ref
from helix_agents.backends.session_rows import record_of, version_of
from helix_agents.domain import door
from helix_agents.domain.checkpoints import CheckpointMeta
from helix_agents.domain.commits import (
    UNSETTLED,
    Committed,
    ParentLink,
    RunStartCommitted,
    SettleSession,
    StartRun,
    StepCommit,
    check_expectations,
    check_repeated_start,
    check_settle,
    given_up,
    has_open_step,
    is_unsettled,
    settled_run,
    started_run,
)
from helix_agents.domain.errors import (
    ConflictError,
    HelixError,
    RunAlreadyExistsError,
    SessionNotFoundError,
    StaleStateError,
    StoreError,
)
from helix_agents.domain.ids import SessionId
from helix_agents.domain.messages import Message
from helix_agents.domain.pending import abandon
from helix_agents.domain.records import encode
from helix_agents.domain.runs import RunRecord, check_fence
from helix_agents.domain.session_changes import saved, settled, started
from helix_agents.domain.sessions import Holder, SessionState, StatusChanged, StatusOutcome
from helix_agents.domain.writes import difference


class PostgresCommits(PostgresSessions):
    """The writes that frame a run."""

    async def start_run(self, start: StartRun) -> RunStartCommitted:
        door.check_start(start)
        bodies = self._encoded(start.session_id, start.append_messages)
        if start.parent is not None:
            self._check_staged(start.parent.session_id, start.parent.stage)
        now = self._clock.now_ms()
        if is_plain(start, self._limits.state_bytes):
            plain = await self._planned_start(start, bodies, now)
            stored = await self._tried(plain.statement, plain.values) if plain is not None else None
            if plain is not None and stored is not None:
                return plain.answer(stored, self._state_writes)
        return await self._db.write(lambda connection: self._start(connection, start, bodies, now))

    async def _planned_start(self, start: StartRun, bodies: list[str], now: int) -> PlainStart | None:
        """The rows that a plain start leads to; None if the start has to be examined under a lock."""
        try:
            if start.create is not None:
                return in_new_session(self._namespace, start, bodies, now)
            found = await self._db.one(READ, (self._namespace, start.session_id))
            return in_session_as_read(start, found, bodies, now, self._state_writes) if found is not None else None
        except ConflictError:
            # Perhaps this start was already made, which is no conflict.
            return None

    async def save_state_and_promote_staging(
        self,
        session_id: SessionId,
        state: SessionState,
        append_messages: Sequence[Message],
        checkpoint_meta: CheckpointMeta,
        *,
        expected_version: int | None = None,
        commit: StepCommit | None = None,
    ) -> Committed:
        door.check_step(state, checkpoint_meta, commit)
        bodies = self._encoded(session_id, append_messages)
        now = self._clock.now_ms()
        if commit is None:
            return await self._db.write(
                lambda connection: self._save_and_promote(
                    connection, session_id, state, bodies, checkpoint_meta, expected_version, now
                )
            )
        self._check_staged(session_id, commit.stage)
        step = Step(
            namespace=self._namespace,
            state=state,
            bodies=bodies,
            meta=checkpoint_meta,
            commit=commit,
            expected_version=expected_version,
            now=now,
        )
        return await self._commit_step(step)

    async def _commit_step(self, step: Step) -> Committed:
        """Commit in one statement if that is all it needs, else under a lock.

        A statement whose answer was lost is sent again: the fence and the remembered answer make that safe.
        """
        plain = PlainStep(step, self._state_writes)
        if plain.is_plain:
            row = await self._tried(plain.statement, plain.values())
            if row is not None:
                if has_outgrown(row):
                    await self._materialise(step.session_id, row)
                return plain.answer(row)
        return await self._db.write(lambda connection: commit_carefully(connection, step, self._state_writes))

    async def _tried(self, statement: str, values: Sequence[Value]) -> Row | None:
        """The answer of an SQL function; None if it did nothing."""
        try:
            return await self._db.call(statement, values)
        except HelixError as problem:
            if has_to_be_looked_at(problem.__cause__):
                return None
            raise

    async def _materialise(self, session_id: SessionId, row: Row) -> None:
        """Keep a copy of a state that has outgrown its last one; if that fails, a later commit does it."""
        segment, count, since = row[1], row[5], row[7]

        async def work(connection: Connection) -> None:
            text = encode(await load_custom_state(connection, segment, count)).decode()
            await connection.execute(
                "UPDATE __agents_state_log SET base = ? WHERE id = ?", (text, segment << 32 | count)
            )
            await connection.execute(
                "UPDATE __agents_sessions SET state_base_bytes = ?, state_since_bytes = state_since_bytes - ?"
                " WHERE namespace = ? AND session_id = ? AND segment = ? AND state_since_bytes >= ?",
                (len(text.encode()), since, self._namespace, session_id, segment, since),
            )

        with contextlib.suppress(StoreError):
            await self._db.write(work)

    async def settle_session(self, request: SettleSession) -> StatusOutcome:
        door.check_settle(request)
        bodies = self._encoded(request.session_id, request.append_messages)
        now = self._clock.now_ms()

        async def work(connection: Connection) -> StatusOutcome:
            await lock_tree_of(connection, self._namespace, request.session_id)
            row = await load_session(connection, self._namespace, request.session_id)
            conflict = check_settle(request, record_of(row), await current_run(connection, row))
            if conflict is not None:
                return conflict
            await change_calls(connection, self._namespace, await calls_below(connection, row), abandon)
            await append_messages(connection, row, bodies, now)
            ended = [row.session_id]
            # A settled session stays settled: starting it anew has to wait for the tree's lock.
            for child in await children_of(connection, self._namespace, request.session_id, statuses=UNSETTLED):
                below = await load_session(connection, self._namespace, child)
                if is_unsettled(record_of(below)):
                    await self._settle(connection, below, request, now)
                    ended.append(child)
            await self._settle(connection, row, request, now)
            if request.destroy_entries:
                await delete_session_entries(connection, self._namespace, ended)
            return StatusChanged(new_version=row.version)

        return await self._db.write(work)

    async def _start(self, connection: Connection, start: StartRun, bodies: list[str], now: int) -> RunStartCommitted:
        await self._lock_trees(connection, start)
        row = await find_session(connection, self._namespace, start.session_id)
        existing = await find_run(connection, self._namespace, start.run_id)
        if check_repeated_start(start, existing, row.run_id if row is not None else None):
            assert existing is not None
            return await self._first_answer(connection, existing)
        if start.parent is not None:
            await self._link_parent(connection, start.parent, now)
        row = await self._expected_session(connection, row, start, now)
        before = row.version
        if start.queued:
            await take_queued(connection, self._namespace, row.session_id, start.run_id, start.queued_revision)
        await settle_current(connection, row, start.replaced_status, start.replaced_reason, now)
        back_to: Holder | None = None
        if start.rewind_to is not None:
            back_to = await rewind(connection, row, start.rewind_to, now)
            await drop_staged(connection, row, None)
            await forget_every_effect(connection, self._namespace, row.session_id)
        if start.abandon_pending or start.drop_unanswered or start.rewind_to is not None:
            await save_calls(connection, self._namespace, given_up(start, await driven_calls(connection, row)))
        if start.takes_messages and row.steered:
            taken = await take_steering(connection, row, start.run_id)
            bodies = [*bodies, *(encode(message).decode() for message in taken)]
        await append_messages(connection, row, bodies, now)
        record = started(record_of(row), start, row.message_count, now, back_to=back_to)
        put(row, record)
        if start.create is None and not has_open_step(record):
            await drop_staged(connection, row, None)
        if start.writes:
            await self._state_writes.log(connection, row, start.writes.ops, version_before=before)
        else:
            self._state_writes.keep(row, before, connection)
        for update in start.ref_updates:
            await update_ref(connection, self._namespace, row.session_id, update, now)
        await drop_flag(connection, self._namespace, row.session_id)
        run = started_run(start, await next_turn(connection, row), now)
        await make_current(connection, row, run, started=True)
        await save_session(connection, row)
        if start.rewind_to is not None:
            to, mark = version_of(start.rewind_to), row.version
            await rewind_session_entries(connection, self._namespace, row.session_id, to=to, mark=mark, now=now)
        if start.entries:
            owner, mark = row.agent_type, row.version
            await write_session_entries(connection, self._namespace, start.entries, owner=owner, mark=mark, now=now)
        place = None
        if start.stream is not None:
            place = await claim_stream(connection, self._namespace, start.stream, run, now)
        return RunStartCommitted(run=run, new_version=row.version, message_count=row.message_count, stream=place)

    async def _lock_trees(self, connection: Connection, start: StartRun) -> None:
        """Lock out other operations on more than one session of the tree; the parent's row is locked first."""
        create = start.create
        above = start.parent.session_id if start.parent is not None else create.parent_session_id if create else None
        await lock_tree_of(connection, self._namespace, above or start.session_id)
        if above is not None:
            await find_session(connection, self._namespace, above)

    async def _first_answer(self, connection: Connection, run: RunRecord) -> RunStartCommitted:
        """The answer to an earlier start whose caller never received it."""
        first = await connection.one(
            "SELECT start_version, start_messages FROM __agents_runs WHERE namespace = ? AND run_id = ?",
            (self._namespace, run.run_id),
        )
        if first is None or first[0] is None:
            raise RunAlreadyExistsError(run.run_id)
        return RunStartCommitted(run=run, new_version=first[0], message_count=first[1])

    async def _settle(self, connection: Connection, row: SessionRow, request: SettleSession, now: int) -> None:
        await drop_flag(connection, self._namespace, row.session_id)
        run = settled_run(await current_run(connection, row), request, now)
        before = row.version
        put(row, settled(record_of(row), request, now))
        if request.writes and row.session_id == request.session_id:
            await self._state_writes.log(connection, row, request.writes.ops, version_before=before)
        if run is not None:
            await store_current(connection, row, run)
        await save_session(connection, row)

    async def _link_parent(self, connection: Connection, parent: ParentLink, now: int) -> None:
        row = await load_session(connection, self._namespace, parent.session_id)
        check_fence(row.session_id, await current_run(connection, row), parent.fence)
        await link_ref(connection, self._namespace, row.session_id, parent.ref, now)
        if parent.stage:
            await stage(connection, row, parent.stage, now)

    async def _expected_session(
        self, connection: Connection, row: SessionRow | None, start: StartRun, now: int
    ) -> SessionRow:
        """The session this run starts in: created if the caller asks for it, otherwise just as the caller read it."""
        if start.create is not None:
            made = await self._insert_session(connection, start.session_id, start.create, now)
            # Creating the session and starting its run are one commit and therefore one version, not two.
            made.version = 0
            return made
        if row is None:
            raise SessionNotFoundError(start.session_id)
        check_expectations(start, record_of(row), await current_run(connection, row))
        return row

    async def _save_and_promote(
        self,
        connection: Connection,
        session_id: SessionId,
        state: SessionState,
        bodies: list[str],
        meta: CheckpointMeta,
        expected_version: int | None,
        now: int,
    ) -> Committed:
        """The step commit for callers outside the engine: the record as a whole, compared with the stored one."""
        row = await load_session(connection, self._namespace, session_id)
        before = row.version
        if expected_version not in (None, before):
            raise StaleStateError(session_id, expected_version or 0, before)
        stored = await load_custom_state(connection, row.segment, row.state_count)
        put(row, saved(record_of(row), state, now))
        await append_messages(connection, row, bodies, now)
        ops = (*await take_staged(connection, row, meta.step_id), *difference(stored, state.custom_state).ops)
        if ops:
            await self._state_writes.log(connection, row, ops, version_before=before)
        return await commit_at(connection, row, meta, ops, now)
