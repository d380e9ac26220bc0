"""The start of a run in Postgres: read in one statement, decided by the domain, stored in one if nothing changed since.

A start that creates its conversation reads nothing and is a single statement.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from helix_agents.backends.postgres.connection import Row, Value
from helix_agents.backends.postgres.rows import SESSION_COLUMNS, SessionRow, new_row, put, run_of
from helix_agents.backends.postgres.state_writes import StateWrites, not_lists_after
from helix_agents.backends.session_rows import RUN_COLUMNS, record_of
from helix_agents.domain.commits import RunStartCommitted, StartRun, check_expectations, started_run
from helix_agents.domain.records import encode
from helix_agents.domain.runs import RunRecord, settled
from helix_agents.domain.session_changes import created, started
from helix_agents.domain.streams import StreamPlace
from helix_agents.domain.writes import Append

_OF_RUN = ", ".join(f"r.{name}" for name in RUN_COLUMNS.split(", "))
_RUN_WIDTH = RUN_COLUMNS.count(",") + 1
READ = f"""
SELECT {SESSION_COLUMNS},
    (SELECT max(turn) FROM __agents_runs t WHERE t.namespace = s.namespace AND t.session_id = s.session_id), {_OF_RUN}
FROM __agents_sessions s LEFT JOIN __agents_runs r ON r.namespace = s.namespace AND r.run_id = s.run_id
WHERE s.namespace = ? AND s.session_id = ?
"""
_START = f"SELECT * FROM __agents_start_run({', '.join('?' * 26)})"
_START_WRITING = f"SELECT * FROM __agents_start_writing_run({', '.join('?' * 29)})"


@dataclass(frozen=True)
class PlainStart:
    """A start that changes nothing but its own session, and the rows it leads to."""

    start: StartRun
    row: SessionRow
    run: RunRecord
    values: tuple[Value, ...]
    not_lists: frozenset[str] | None

    @property
    def statement(self) -> str:
        """The statement that stores it, given its values."""
        return _START if self.start.stream is None else _START_WRITING

    def answer(self, stored: Row, state_writes: StateWrites) -> RunStartCommitted:
        """The caller's answer; also remembers what is now known about the state."""
        segment, messages = stored[0], stored[1]
        if self.not_lists is not None:
            state_writes.remember(self.row.session_id, self.row.version, segment, self.not_lists)
        place = None
        if self.start.stream is not None and stored[2] is not None:
            place = StreamPlace(writer=stored[2], latest=stored[3])
        return RunStartCommitted(run=self.run, new_version=self.row.version, message_count=messages, stream=place)


def is_plain(start: StartRun, limit: int | None) -> bool:
    """Whether a start looks at nothing but its own session."""
    makes = start.create
    if makes is not None and (makes.branch is not None or makes.parent_session_id is not None):
        return False
    if limit is not None and (start.writes or (makes is not None and makes.custom_state)):
        return False
    return not (
        start.parent is not None
        or start.rewind_to is not None
        or start.abandon_pending
        or start.drop_unanswered
        or start.entries
        or start.ref_updates
        or start.queued
    )


def in_new_session(namespace: str, start: StartRun, bodies: list[str], now: int) -> PlainStart:
    """The start that creates its session."""
    assert start.create is not None
    state = start.create.custom_state
    not_lists = frozenset(key for key, value in state.items() if type(value) is not list)
    after = not_lists_after(start.session_id, not_lists, start.writes.ops)
    row = new_row(namespace, created(start.session_id, start.create, now, parent=None), 0)
    # Creating the session and starting its run are one commit and therefore one version, not two.
    row.version = 0
    run = started_run(start, 1, now)
    base = encode(state).decode() if state else None
    return _planned(start, row, run, bodies, now, read=(None,) * 5, base=base, replaced=None, not_lists=after)


def in_session_as_read(
    start: StartRun, found: Row, bodies: list[str], now: int, state_writes: StateWrites
) -> PlainStart | None:
    """The start in an existing session; None if its appends, or messages that wait for it, have to be examined under a
    lock.

    Raises:
        StaleStateError: the session changed since the caller read it.
        RunConflictError: another run is current than the one the caller read.
    """
    *columns, turn = tuple(found)[:-_RUN_WIDTH]
    of_run = tuple(found)[-_RUN_WIDTH:]
    row = SessionRow(*columns)
    current = run_of(of_run) if of_run[0] is not None else None
    if current is not None and current.run_id == start.run_id:
        return None
    if start.takes_messages and row.steered:
        return None
    known = state_writes.known(row.session_id, row.version, row.segment)
    if known is None and Append in map(type, start.writes.ops):
        return None
    check_expectations(start, record_of(row), current)
    after = not_lists_after(row.session_id, known, start.writes.ops) if known is not None else None
    replaced = settled(current, start.replaced_status, start.replaced_reason, now)
    run = started_run(start, (turn or 0) + 1, now)
    read = (row.version, row.run_id, row.attempt, row.running, row.expires_at)
    return _planned(start, row, run, bodies, now, read=read, base=None, replaced=replaced, not_lists=after)


def _planned(
    start: StartRun,
    row: SessionRow,
    run: RunRecord,
    bodies: list[str],
    now: int,
    *,
    read: tuple[Value, ...],
    base: str | None,
    replaced: RunRecord | None,
    not_lists: frozenset[str] | None,
) -> PlainStart:
    row.message_count += len(bodies)
    put(row, started(record_of(row), start, row.message_count, now))
    values: tuple[Any, ...] = (
        row.namespace,
        row.session_id,
        now,
        *read,
        row.agent_type,
        row.version,
        row.step_count,
        row.resume_count,
        row.mode,
        row.user_id,
        row.root_session_id,
        row.expires_at,
        row.tags,
        row.metadata,
        row.labels,
        row.suspension,
        row.detail,
        bodies,
        encode(start.writes).decode() if start.writes else None,
        base,
        encode(msgspec.structs.asdict(run)).decode(),
        encode(msgspec.structs.asdict(replaced)).decode() if replaced is not None else None,
    )
    claim = start.stream
    if claim is not None:
        values = (*values, claim.stream_id, claim.agent_type, claim.max_chunks)
    return PlainStart(start, row, run, values, not_lists)
