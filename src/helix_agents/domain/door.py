"""The check at the entrance of every store: each id and value that a write brings in, before anything is written."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from msgspec.structs import fields, replace

from helix_agents.domain.checkpoints import CheckpointMeta
from helix_agents.domain.commits import SettleSession, StartRun, StepCommit
from helix_agents.domain.effects import BeginEffect
from helix_agents.domain.errors import InvalidInputError, UnstorableValueError
from helix_agents.domain.ids import RunId, SessionId, check_id, check_new_session_id
from helix_agents.domain.messages import Message
from helix_agents.domain.pending import AnsweredElsewhere, ApprovalAnswer, SubmitAnswer, ToolAnswer
from helix_agents.domain.queued import QueueChange, QueuedTurn, check_steers
from helix_agents.domain.records import Record, check_given, check_json, check_record
from helix_agents.domain.runs import KnownAs, RunMetadata, RunUpdate
from helix_agents.domain.schedules import Schedule
from helix_agents.domain.sessions import (
    CreateSession,
    InterruptFlag,
    SessionState,
    StopKind,
)
from helix_agents.domain.staging import StagedChange
from helix_agents.domain.sub_sessions import SubSessionRef, SubSessionRefUpdate
from helix_agents.domain.usage import UsageEntry
from helix_agents.domain.webhooks import Delivery
from helix_agents.domain.writes import Add, Append, Delete, Include, Replace, StepWrites, Update


def check_input(given: object, kind: Any, what: str, cure: str) -> None:
    """Check what user code passes: nothing else checks its type, or the fields of a record that it creates, and a
    record that cannot be read back would make the session unusable.

    Raises:
        InvalidInputError: it is something else; the message says what to pass.
    """
    if not isinstance(given, kind):
        raise InvalidInputError(what, f"it is of type {type(given).__name__}; {cure}")
    try:
        check_given(given, type(given), what)
    except UnstorableValueError as problem:
        raise InvalidInputError(what, problem.reason) from problem


def _check_optional(value: str | None, kind: str) -> None:
    if value is not None:
        check_id(value, kind)


def check_name(value: str | None, what: str) -> None:
    """A name that is not an id: any text that a database can search for.

    Raises:
        UnstorableValueError: it contains a zero character.
    """
    if value is not None and "\0" in value:
        raise UnstorableValueError(what, f"{value!r} contains a null character")


def check_number(value: int, what: str) -> None:
    """A number that stores keep outside of JSON, where any number fits.

    Raises:
        UnstorableValueError: it needs more than 64 bits.
    """
    if isinstance(value, int) and not -(2**63) <= value < 2**63:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UnstorableValueError(what, f"{value} does not fit into 64 bits")


@cache
def _numbers_of(kind: type[Record]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind) if field.type in (int, int | None))


def check_numbers(record: Record) -> None:
    """The numbers of a record, or of a filter."""
    for name in _numbers_of(type(record)):
        value = getattr(record, name)
        if value is not None:
            check_number(value, f"{type(record).__name__}.{name}")


def check_create(session_id: SessionId, options: CreateSession) -> None:
    """What a new session is given: its ids, its first state, tags and metadata."""
    check_new_session_id(session_id)
    _check_optional(options.parent_session_id, "parent session id")
    _check_optional(options.root_session_id, "root session id")
    _check_optional(options.stream_id, "stream id")
    _check_optional(options.user_id, "user id")
    check_json(options.custom_state, "custom state")
    check_record(options)
    check_numbers(options)
    check_name(options.agent_type, "agent type")


def check_merge(writes: StepWrites) -> None:
    """The values of state writes from outside a run."""
    check_record(writes)
    for op in writes.ops:
        match op:
            case Append(items=values) | Replace(value=values) | Update(entries=values):
                check_json(values, f"write to state key {op.key!r}")
            case Add(before=before, after=after):
                check_json([before, after], f"write to state key {op.key!r}")
            case Include(items=items, removed=removed):
                check_json([*items, *removed], f"write to state key {op.key!r}")
            case Delete():
                pass


def check_answer(submission: SubmitAnswer) -> None:
    """An answer to a call."""
    check_record(submission)
    check_numbers(submission)
    match submission.answer:
        case ToolAnswer(result=given) | ApprovalAnswer(edited_input=given):
            check_json(given, f"answer to call {submission.tool_call_id!r}")
        case AnsweredElsewhere():
            pass


def check_messages(messages: Sequence[Message]) -> None:
    """Messages from outside a run."""
    check_given(list(messages), list[Message], "message")


def check_stop(reason: str | None, kind: StopKind) -> None:
    """What comes with a request to stop a run."""
    check_record(InterruptFlag(run_id="", kind=kind, reason=reason, set_at=0))


def check_saved(state: SessionState) -> None:
    """The ids that saving a session's record may change, and its state."""
    check_json(state.custom_state, "custom state")
    check_record(state)
    check_numbers(state)
    check_name(state.agent_type, "agent type")
    _check_record(state)


def _check_record(state: SessionState) -> None:
    check_json(state.output, "output")
    _check_optional(state.stream_id, "stream id")
    _check_optional(state.user_id, "user id")
    _check_optional(state.suspended_step_id, "step id")


def check_run(run_id: RunId, metadata: RunMetadata) -> None:
    """What is said about a run recorded outside the engine."""
    check_id(run_id, "run id")
    check_record(metadata)
    check_numbers(metadata)
    check_name(metadata.workflow_id, "workflow id")
    _check_optional(metadata.previous_run_id, "run id")
    _check_optional(metadata.parent_run_id, "run id")
    _check_optional(metadata.owner, "owner")


def check_run_update(update: RunUpdate) -> None:
    """A change to a run recorded outside the engine."""
    check_record(update)
    check_numbers(update)


def check_claim(owner: str | None, known_as: KnownAs | None) -> None:
    """The process that takes a run over, and the name by which the run is known from then on."""
    _check_optional(owner, "owner")
    if known_as is not None:
        check_name(known_as.workflow_id, "workflow id")


def check_checkpoint(meta: CheckpointMeta) -> None:
    """The position of a checkpoint."""
    _check_place(meta)
    check_record(meta)
    check_numbers(meta)


def _check_place(meta: CheckpointMeta) -> None:
    check_id(meta.step_id, "step id")


def check_staged(change: StagedChange) -> None:
    """The ids of a staged change."""
    check_id(change.step_id, "step id")
    check_id(change.tool_call_id, "tool call id")


def check_ref(ref: SubSessionRef) -> None:
    """A reference to a child session."""
    check_id(ref.sub_session_id)
    check_id(ref.tool_call_id, "tool call id")
    check_record(ref)
    check_name(ref.name, "name of a sub-session")


def check_ref_update(update: SubSessionRefUpdate) -> None:
    """A change to a reference to a child session."""
    check_record(update)


def check_usage(entry: UsageEntry) -> None:
    """A usage entry."""
    _check_usage_ids(entry)
    check_record(entry)
    check_numbers(entry)
    check_name(entry.source_name, "name of what was used")
    check_name(entry.agent_type, "agent type")


def _check_usage_ids(entry: UsageEntry) -> None:
    check_id(entry.session_id)
    check_id(entry.root_session_id, "root session id")
    check_id(entry.run_id, "run id")
    _check_optional(entry.user_id, "user id")


def check_effect(request: BeginEffect) -> None:
    """A tool that is about to run; what is staged with it is the engine's own."""
    check_id(request.tool_call_id, "tool call id")
    check_id(request.owner, "owner")
    check_record(replace(request, stage=()))
    for change in request.stage:
        check_staged(change)


def check_start(start: StartRun) -> None:
    """The ids of a run that starts, the session it may create, and what it writes at a parent."""
    check_id(start.run_id, "run id")
    _check_optional(start.previous_run_id, "run id")
    _check_optional(start.parent_run_id, "run id")
    _check_optional(start.owner, "owner")
    check_numbers(start)
    check_name(start.workflow_id, "workflow id")
    if start.create is not None:
        check_create(start.session_id, start.create)
    if start.parent is not None:
        check_ref(start.parent.ref)
        for change in start.parent.stage:
            check_staged(change)
    for update in start.ref_updates:
        check_ref_update(update)


def check_queued(turn: QueuedTurn) -> None:
    """A turn for the queue."""
    check_id(turn.run_id, "run id")
    check_record(turn)
    check_numbers(turn)
    check_messages(turn.messages)
    check_json(turn.state, "state")
    if turn.steers:
        check_steers(turn)


def check_queue_change(run_id: RunId, change: QueueChange) -> None:
    """A change to a turn in the queue."""
    check_id(run_id, "run id")
    check_record(change)
    check_messages(change.messages or ())


def check_schedule(schedule: Schedule) -> None:
    """A schedule that is to be stored."""
    check_id(schedule.schedule_id, "schedule id")
    check_id(schedule.revision, "revision")
    if schedule.session_id is not None:
        check_new_session_id(schedule.session_id)
    check_record(schedule)
    check_numbers(schedule)
    check_messages(schedule.messages)


def check_delivery(delivery: Delivery) -> None:
    """A delivery that is to be stored."""
    check_id(delivery.delivery_id, "delivery id")
    check_id(delivery.webhook, "webhook")
    check_id(delivery.session_id)
    check_id(delivery.run_id, "run id")
    check_id(delivery.revision, "revision")
    check_record(delivery)
    check_numbers(delivery)


def check_step(state: SessionState, meta: CheckpointMeta, commit: StepCommit | None) -> None:
    """The ids of a step commit, and its rarer parts; the engine itself made what every step brings.

    A commit with its own writes ignores the record's state.
    """
    _check_place(meta)
    if commit is None:
        check_saved(state)
        return
    _check_record(state)
    if commit.metadata:
        check_given(commit.metadata, dict[str, str | None], "metadata")
    for change in commit.stage:
        check_staged(change)
        check_record(change)
    for call in commit.pending:
        check_id(call.tool_call_id, "tool call id")
        check_id(call.session_id)
        check_id(call.root_session_id, "root session id")
        check_record(call)
    for ref in commit.refs:
        check_ref(ref)
    for update in commit.ref_updates:
        check_ref_update(update)
    for entry in commit.usage:
        _check_usage_ids(entry)


def check_settle(request: SettleSession) -> None:
    """What is said about a session that is ended from outside."""
    check_record(request)
    check_json(request.output, "output")
