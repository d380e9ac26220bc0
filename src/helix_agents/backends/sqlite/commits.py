"""The atomic writes of a run in SQLite: its start, its steps, and an end imposed from outside."""

from collections.abc import Sequence

from helix_agents.backends.session_rows import put_record, record_of, version_of
from helix_agents.backends.sqlite.branches import rewind
from helix_agents.backends.sqlite.checkpoints import commit_at
from helix_agents.backends.sqlite.connection import Connection
from helix_agents.backends.sqlite.effects import forget_every_effect
from helix_agents.backends.sqlite.entry_rows import (
    delete_session_entries,
    rewind_session_entries,
    write_session_entries,
)
from helix_agents.backends.sqlite.flags import drop_flag
from helix_agents.backends.sqlite.lineage import append_messages, load_custom_state
from helix_agents.backends.sqlite.pending import calls_below, change_calls, driven_calls, save_call
from helix_agents.backends.sqlite.queues import take_queued, take_steering
from helix_agents.backends.sqlite.rows import (
    SessionRow,
    children_of,
    find_run,
    find_session,
    load_session,
    save_session,
)
from helix_agents.backends.sqlite.runs import current_run, make_current, next_turn, settle_current, store_current
from helix_agents.backends.sqlite.sessions import SQLiteSessions
from helix_agents.backends.sqlite.staging import drop_staged, stage, take_staged
from helix_agents.backends.sqlite.step_commit import EncodedStep, commit_step
from helix_agents.backends.sqlite.stream_rows import claim_stream
from helix_agents.backends.sqlite.sub_sessions import link_ref, update_ref
from helix_agents.domain import door
from helix_agents.domain.checkpoints import CheckpointMeta
from helix_agents.domain.commits import (
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
from helix_agents.domain.errors import RunAlreadyExistsError, SessionNotFoundError, StaleStateError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.messages import Message
from helix_agents.domain.pending import abandon
from helix_agents.domain.runs import RunRecord, check_fence
from helix_agents.domain.session_changes import saved, settled, started
from helix_agents.domain.sessions import Holder, SessionState, StatusChanged, StatusOutcome
from helix_agents.domain.writes import difference


class SQLiteCommits(SQLiteSessions):
    """The writes that frame a run."""

    async def start_run(self, start: StartRun) -> RunStartCommitted:
        door.check_start(start)
        bodies = self._encoded(start.session_id, start.append_messages)
        if start.parent is not None:
            self._check_staged(start.parent.session_id, start.parent.stage)
        now = self._clock.now_ms()
        return await self._db.write(lambda connection: self._start(connection, start, bodies, now))

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
        step = EncodedStep(self._namespace, state, bodies, checkpoint_meta, commit, expected_version, now)
        return await self._db.write(lambda connection: commit_step(connection, step, self._state_writes))

    async def settle_session(self, request: SettleSession) -> StatusOutcome:
        door.check_settle(request)
        bodies = self._encoded(request.session_id, request.append_messages)
        now = self._clock.now_ms()

        def work(connection: Connection) -> StatusOutcome:
            row = load_session(connection, self._namespace, request.session_id)
            conflict = check_settle(request, record_of(row), current_run(connection, row))
            if conflict is not None:
                return conflict
            change_calls(connection, self._namespace, calls_below(connection, row), abandon)
            append_messages(connection, row, bodies, now)
            for child in children_of(connection, self._namespace, request.session_id):
                below = load_session(connection, self._namespace, child)
                if is_unsettled(record_of(below)):
                    self._settle(connection, below, request, now)
            self._settle(connection, row, request, now)
            return StatusChanged(new_version=row.version)

        return await self._db.write(work)

    def _start(self, connection: Connection, start: StartRun, bodies: list[str], now: int) -> RunStartCommitted:
        row = find_session(connection, self._namespace, start.session_id)
        existing = find_run(connection, self._namespace, start.run_id)
        if check_repeated_start(start, existing, row.run_id if row is not None else None):
            assert existing is not None
            return self._first_answer(connection, existing)
        if start.parent is not None:
            self._link_parent(connection, start.parent, now)
        row = self._expected_session(connection, row, start, now)
        before = row.version
        if start.queued:
            take_queued(connection, self._namespace, row.session_id, start.run_id, start.queued_revision)
        settle_current(connection, row, start.replaced_status, start.replaced_reason, now)
        back_to: Holder | None = None
        if start.rewind_to is not None:
            back_to = rewind(connection, row, start.rewind_to, now)
            drop_staged(connection, row, None)
            forget_every_effect(connection, self._namespace, row.session_id)
            to, mark = version_of(start.rewind_to), before + 1
            rewind_session_entries(connection, self._namespace, row.session_id, to=to, mark=mark, now=now)
        for call in given_up(start, driven_calls(connection, row)):
            save_call(connection, self._namespace, call)
        append_messages(connection, row, bodies, now)
        if start.takes_messages:
            take_steering(connection, row, start.run_id, now)
        record = started(record_of(row), start, row.message_count, now, back_to=back_to)
        put_record(row, record)
        if row.staged and not has_open_step(record):
            drop_staged(connection, row, None)
        if start.writes:
            self._state_writes.log(connection, row, start.writes.ops, version_before=before)
        else:
            self._state_writes.keep(row, before)
        for update in start.ref_updates:
            update_ref(connection, self._namespace, row.session_id, update, now)
        if start.create is None:
            drop_flag(connection, self._namespace, row.session_id)
        run = started_run(start, next_turn(connection, row) if start.create is None else 1, now)
        make_current(connection, row, run, answered=(row.version, row.message_count))
        save_session(connection, row)
        if start.entries:
            owner, mark = row.agent_type, row.version
            write_session_entries(connection, self._namespace, start.entries, owner=owner, mark=mark, now=now)
        place = None
        if start.stream is not None:
            place = claim_stream(connection, self._namespace, start.stream, run, now)
        return RunStartCommitted(run=run, new_version=row.version, message_count=row.message_count, stream=place)

    def _first_answer(self, connection: Connection, run: RunRecord) -> RunStartCommitted:
        """The answer to an earlier start whose caller never received it."""
        first = connection.one(
            "SELECT start_version, start_messages FROM __agents_runs WHERE namespace = ? AND run_id = ?",
            (self._namespace, run.run_id),
        )
        if first is None or first[0] is None:
            raise RunAlreadyExistsError(run.run_id)
        return RunStartCommitted(run=run, new_version=first[0], message_count=first[1])

    def _settle(self, connection: Connection, row: SessionRow, request: SettleSession, now: int) -> None:
        drop_flag(connection, self._namespace, row.session_id)
        if request.destroy_entries:
            delete_session_entries(connection, self._namespace, row.session_id)
        run = settled_run(current_run(connection, row), request, now)
        before = row.version
        put_record(row, settled(record_of(row), request, now))
        if request.writes and row.session_id == request.session_id:
            self._state_writes.log(connection, row, request.writes.ops, version_before=before)
        if run is not None:
            store_current(connection, row, run)
        save_session(connection, row)

    def _link_parent(self, connection: Connection, parent: ParentLink, now: int) -> None:
        row = load_session(connection, self._namespace, parent.session_id)
        check_fence(row.session_id, current_run(connection, row), parent.fence)
        link_ref(connection, self._namespace, row.session_id, parent.ref, now)
        if parent.stage:
            stage(connection, row, parent.stage, now)

    def _expected_session(
        self, connection: Connection, row: SessionRow | None, start: StartRun, now: int
    ) -> SessionRow:
        """The session this run starts in: created if the caller asks for it, otherwise just as the caller read it."""
        if start.create is not None:
            made = self._insert_session(connection, start.session_id, start.create, now)
            # Creating the session and starting its run are one commit and therefore one version, not two.
            made.version = 0
            return made
        if row is None:
            raise SessionNotFoundError(start.session_id)
        check_expectations(start, record_of(row), current_run(connection, row))
        return row

    def _save_and_promote(
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
        row = load_session(connection, self._namespace, session_id)
        before = row.version
        if expected_version not in (None, before):
            raise StaleStateError(session_id, expected_version or 0, before)
        stored = load_custom_state(connection, row.segment, row.state_count)
        put_record(row, saved(record_of(row), state, now))
        append_messages(connection, row, bodies, now)
        ops = (*take_staged(connection, row, meta.step_id), *difference(stored, state.custom_state).ops)
        if ops:
            self._state_writes.log(connection, row, ops, version_before=before)
        return commit_at(connection, row, meta, ops, now)
