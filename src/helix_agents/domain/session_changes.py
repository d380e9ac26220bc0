"""The effect of each kind of write on a session's record, decided once for every store.

The records here carry no custom state and none of the rows that others write: stores keep those separately, and
`session_views.assembled` puts them together for a reader.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from helix_agents.domain.checkpoints import Checkpoint
from helix_agents.domain.commits import RunStartCommitted, SettleSession, StartRun
from helix_agents.domain.errors import ModeIsWriteOnceError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.records import check_record
from helix_agents.domain.sessions import (
    CreateSession,
    EarlierVersion,
    Holder,
    InterruptContext,
    SessionState,
    SessionStatus,
)

MOST_EARLIER = 100
"""How many changes of its agent, or of that agent's version, a session remembers: two deploys that work at the same
time change it with each turn, and every step stores them."""


def created(session_id: SessionId, options: CreateSession, now: int, *, parent: SessionState | None) -> SessionState:
    """A new session. Unless it names a root, it belongs to its parent's root, or is a root itself."""
    above = parent.root_session_id if parent is not None else options.parent_session_id
    return SessionState(
        session_id=session_id,
        agent_type=options.agent_type,
        agent_version=options.agent_version,
        stream_id=options.stream_id,
        parent_session_id=options.parent_session_id,
        root_session_id=options.root_session_id or above or session_id,
        mode=options.mode,
        user_id=options.user_id,
        tags=options.tags,
        metadata=options.metadata,
        expires_at=options.expires_at,
        tracing_context=options.tracing_context,
        workspace_ref=options.workspace_ref,
        created_at=now,
        updated_at=now,
    )


def branched(
    session_id: SessionId, source: SessionState, options: CreateSession, now: int, *, holder: Holder
) -> SessionState:
    """A new root session that takes agent and user from its source, and the rest from `options`. This is the agent that
    had its source there, and the version of it that the state has."""
    began = holder_at(source, 0)
    earlier = EarlierVersion(agent_version=began.version, until=0, agent=_if_other(began.agent, holder.agent))
    return msgspec.structs.replace(
        created(session_id, options, now, parent=None),
        agent_type=source.agent_type,
        held_by=_if_other(holder.agent, source.agent_type),
        agent_version=holder.version,
        # It shares its beginning with its source.
        earlier_versions=(earlier,) if source.earlier_versions else (),
        user_id=options.user_id if options.user_id is not None else source.user_id,
        # Not its own: the first run that works in it copies what it needs.
        workspace_ref=options.workspace_ref or source.workspace_ref,
        parent_session_id=None,
        root_session_id=session_id,
    )


def holder_of(session: SessionState) -> Holder:
    """The agent that has a session, and the version of it that the state has."""
    return Holder(session.worked_by, session.agent_version)


def of_version(session: SessionState, agent_version: int, *, until: int) -> SessionState:
    """The record with state of this version of its agent; the version it had `until` one of its own is remembered."""
    return held_by(session, Holder(session.worked_by, agent_version), until=until)


def held_by(session: SessionState, holder: Holder, *, until: int) -> SessionState:
    """The record in the hands of this agent, with state of this version of it; who had it `until` one of its own
    versions is remembered."""
    before = holder_of(session)
    if holder == before:
        return session
    earlier = EarlierVersion(agent_version=before.version, until=until, agent=_if_other(before.agent, holder.agent))
    return msgspec.structs.replace(
        session,
        held_by=_if_other(holder.agent, session.agent_type),
        agent_version=holder.version,
        earlier_versions=(*session.earlier_versions, earlier)[-MOST_EARLIER:],
    )


BEGAN = 1
"""The version that a session is created with."""


def holder_at(session: SessionState, version: int) -> Holder:
    """The agent that had a session when it was at this version of its own, and the version of it that the state had."""
    since = [each for each in session.earlier_versions if version <= each.until]
    if not since:
        return holder_of(session)
    agent = next((each.agent for each in since if each.agent is not None), session.worked_by)
    return Holder(agent, since[0].agent_version)


def holders_before(session: SessionState) -> Iterator[Holder]:
    """Who had a session before, and in which version, the latest first. A branch does not know who had its source."""
    agent = session.worked_by
    for each in reversed(session.earlier_versions):
        agent = each.agent or agent
        if each.until >= BEGAN:
            yield Holder(agent, each.agent_version)


def has_changed_hands(session: SessionState) -> bool:
    """Whether another agent had the session before."""
    return any(each.agent is not None for each in session.earlier_versions)


def _if_other(agent: str, than: str) -> str | None:
    return None if agent == than else agent


def changed(session: SessionState, now: int, **changes: Any) -> SessionState:
    """The record one commit later, with these fields set."""
    return msgspec.structs.replace(session, version=session.version + 1, updated_at=now, **changes)


def savable(given: SessionState, *, with_custom_state: bool = True) -> SessionState:
    """The record without the rows that others write, which may be many and which saving ignores."""
    return msgspec.structs.replace(
        given,
        custom_state=given.custom_state if with_custom_state else {},
        interrupt_flag=None,
        pending_client_tool_calls={},
        completed_client_tool_calls={},
        client_tool_call_ownership={},
    )


def saved(session: SessionState, given: SessionState, now: int) -> SessionState:
    """The record after its owner saved it: identity, counters and pointers remain the store's.

    Raises:
        ModeIsWriteOnceError: the given record changes a mode that was already set.
    """
    if session.mode is not None and given.mode != session.mode:
        raise ModeIsWriteOnceError(session.session_id, session.mode, str(given.mode))
    return changed(
        session,
        now,
        agent_type=given.agent_type,
        held_by=given.held_by,
        agent_version=given.agent_version,
        earlier_versions=given.earlier_versions,
        stream_id=given.stream_id,
        status=given.status,
        step_count=given.step_count,
        output=given.output,
        error=given.error,
        failure_reason=given.failure_reason,
        interrupt_context=given.interrupt_context,
        suspended_awaiting_children=given.suspended_awaiting_children,
        suspended_step_id=given.suspended_step_id,
        suspension_context=given.suspension_context,
        tracing_context=given.tracing_context,
        expires_at=given.expires_at,
        mode=given.mode,
        user_id=given.user_id,
        tags=given.tags,
        metadata=given.metadata,
        workspace_ref=given.workspace_ref,
        resumed=given.resumed,
        budget=given.budget,
        spent=given.spent,
        queued_at=given.queued_at,
    )


def stepped(session: SessionState, given: SessionState, patch: dict[str, str | None], now: int) -> SessionState:
    """The record after a step of its run. User, labels and expiry may have changed since the run read them and are not
    the run's to set, apart from the metadata keys that it patches.

    Raises:
        ModeIsWriteOnceError: as for a record that is saved.
    """
    kept = msgspec.structs.replace(
        given,
        user_id=session.user_id,
        tags=session.tags,
        metadata=patched(session.metadata, patch),
        expires_at=session.expires_at,
    )
    return saved(session, kept, now)


def with_status(
    session: SessionState,
    status: SessionStatus,
    now: int,
    *,
    interrupt_context: InterruptContext | None = None,
    error: str | None = None,
    failure_reason: str | None = None,
) -> SessionState:
    """The record with another status and the context given with it; fields that are None are unchanged.

    Raises:
        UnstorableValueError: a value does not have its declared type.
    """
    record = changed(
        session,
        now,
        status=status,
        interrupt_context=session.interrupt_context if interrupt_context is None else interrupt_context,
        error=session.error if error is None else error,
        failure_reason=session.failure_reason if failure_reason is None else failure_reason,
    )
    check_record(record)
    return record


def with_metadata(session: SessionState, patch: dict[str, str | None], now: int) -> SessionState:
    """The record with these metadata keys set, and those given as None removed.

    Raises:
        UnstorableValueError: one of them is not text.
    """
    record = changed(session, now, metadata=patched(session.metadata, patch))
    check_record(record)
    return record


def patched(metadata: dict[str, str], patch: dict[str, str | None]) -> dict[str, str]:
    """Metadata with these keys set, and those given as None removed."""
    kept = {key: value for key, value in metadata.items() if key not in patch}
    return kept | {key: value for key, value in patch.items() if value is not None}


def started(
    session: SessionState, start: StartRun, message_count: int, now: int, *, back_to: Holder | None = None
) -> SessionState:
    """The record as a new run finds it: active, at step 0, and without traces of the run before. A rewound session is
    in the hands of this agent again, with state of this version of it."""
    ready = session if start.keep_suspension else _without_suspension(session)
    if back_to is not None:
        ready = held_by(ready, back_to, until=session.version)
    if start.agent_version is not None:
        # What the run writes comes with it, and there is no checkpoint before its first step.
        ready = of_version(ready, start.agent_version, until=session.version + 1)
    return changed(
        ready,
        now,
        suspension_context=start.suspension_context or ready.suspension_context,
        status="active",
        current_run_id=start.run_id,
        message_count=message_count,
        step_count=session.step_count if start.keep_step_count else 0,
        resume_count=session.resume_count + start.count_resume,
        resumed=start.count_resume,
        budget=start.budget,
        spent=session.spent if start.keep_step_count else None,
        queued_at=start.queued_at,
        output=None,
        error=None,
        failure_reason=None,
        interrupt_context=None,
        expires_at=session.expires_at if start.expires_at is None else start.expires_at,
    )


def first_begun(start: StartRun, committed: RunStartCommitted) -> SessionState | None:
    """What a store would load right after this start, if the start created the session and describes it completely."""
    create = start.create
    if create is None or create.branch is not None or create.parent_session_id is not None or start.writes:
        return None
    now = committed.run.started_at
    session = started(created(start.session_id, create, now, parent=None), start, committed.message_count, now)
    return msgspec.structs.replace(session, version=committed.new_version, custom_state=create.custom_state)


def settled(session: SessionState, request: SettleSession, now: int) -> SessionState:
    """The record after the session was ended from outside its run; nothing is suspended any more.

    The output applies to the requested session only; the rest also applies to the sessions below it.
    """
    ended = with_status(
        _without_suspension(session),
        request.status,
        now,
        interrupt_context=request.interrupt_context,
        error=request.error,
        failure_reason=request.failure_reason,
    )
    if request.output is None or session.session_id != request.session_id:
        return ended
    return msgspec.structs.replace(ended, output=request.output)


def _without_suspension(session: SessionState) -> SessionState:
    return msgspec.structs.replace(
        session, suspension_context=None, suspended_step_id=None, suspended_awaiting_children={}
    )


def pointed_at(session: SessionState, checkpoint: Checkpoint) -> SessionState:
    """The record with its pointer moved to one of its own checkpoints."""
    return msgspec.structs.replace(
        session,
        checkpoint_id=checkpoint.checkpoint_id,
        checkpointed_at=checkpoint.created_at,
        checkpoint_source=checkpoint.source,
    )
