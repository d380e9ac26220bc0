"""Letting go of children: a session that ends, moves on or is rewound leaves none behind that works or waits for it."""

from collections.abc import Iterable

import msgspec

from helix_agents.agent.sub_agents import DelegationTool
from helix_agents.domain.chunks import SubagentEnd, SubagentStart
from helix_agents.domain.commits import SettleSession
from helix_agents.domain.errors import ChunkTooLargeError
from helix_agents.domain.ids import RunId, SessionId, ToolCallId
from helix_agents.domain.records import JSON
from helix_agents.domain.runs import SUSPENDED, RunRecord
from helix_agents.domain.sessions import ChildWait, SessionState
from helix_agents.domain.sub_sessions import SubSessionRef, SubSessionRefUpdate, SubSessionStatus
from helix_agents.engine.children.ends import end_of_child, own_end
from helix_agents.engine.effects import DELEGATED, OpenBatch, PlannedCall
from helix_agents.engine.remote.stops import is_remote, stop_remote
from helix_agents.engine.scope import RunScope
from helix_agents.engine.steps.step_work import CANCELLED


async def end_children(scope: RunScope, batch: OpenBatch) -> None:
    """Let go of the children of a run that ends before its calls have results: none may keep working or waiting."""
    for planned in batch.unsettled:
        if planned.kind in DELEGATED and await let_go(scope, child_id_of(planned)):
            if not await _start_was_said(scope, child_id_of(planned), scope.run.run_id if batch.round == 0 else None):
                continue
            tool = scope.agent.find_tool(planned.tool_name)
            agent_type = tool.child_type if isinstance(tool, DelegationTool) else planned.tool_name
            await write_end(scope, end_chunk(scope, batch.step, planned, agent_type, "interrupted"))
        elif planned.kind == "companion" and (wait := await _companion_of(scope, planned)) is not None:
            scope.companion_waits[planned.tool_call_id] = wait
            await let_go(scope, wait.child_session_id)


async def _companion_of(scope: RunScope, planned: PlannedCall) -> ChildWait | None:
    """The companion that a call waits for, or that has worked for it since before a process died."""
    if planned.tool_call_id in scope.companion_waits:
        return scope.companion_waits[planned.tool_call_id]
    for ref in await scope.services.store.get_sub_session_refs(scope.session.session_id):
        if ref.tool_call_id == planned.tool_call_id and await _works_for_a_call(scope, ref.sub_session_id):
            about = {"tool_call_id": ref.tool_call_id, "agent_type": ref.agent_type}
            return ChildWait(**about, child_session_id=ref.sub_session_id)
    return None


async def end_forgotten_children(
    scope: RunScope, refs: Iterable[SubSessionRef], going_on: Iterable[PlannedCall]
) -> tuple[SubSessionRefUpdate, ...]:
    """Let go of children whose calls no run will return to, because the run crashed and the user moved on, or was
    rewound; returns what the next commit has to say about them.

    Children that had come to their own end are reported with it. Detached companions are left alone.
    """
    store, session = scope.services.store, scope.session
    over: list[SubSessionRefUpdate] = []
    kept = {planned.child_session_id or planned.tool_call_id for planned in going_on}
    for ref in refs:
        # A call may have the id of one that was rewound, whose child is another; a companion is one for many calls.
        if ref.status != "running" or (ref.sub_session_id if ref.mode == "ephemeral" else ref.tool_call_id) in kept:
            continue
        own = await own_end(store, ref)
        if own is None and ref.mode == "persistent" and not await _works_for_a_call(scope, ref.sub_session_id):
            continue
        await let_go(scope, ref.sub_session_id)
        said = _end_of(ref, session, scope.run, None)
        update = SubSessionRefUpdate(sub_session_id=ref.sub_session_id, status="interrupted")
        if own is not None:
            end = await end_of_child(store, ref.tool_call_id, ref.agent_type, *own)
            said = msgspec.structs.replace(said, status=end.status, result=end.message.content)
            update = end.ref_update
        is_known = await _start_was_said(scope, ref.sub_session_id, ref.parent_run_id, died=True)
        if ref.mode == "persistent":
            await store.update_sub_session_ref(session.session_id, update)
            continue
        if is_known:
            await write_end(scope, said)
        over.append(update)
    return tuple(over)


async def _start_was_said(scope: RunScope, child_id: SessionId, begun_by: RunId | None, *, died: bool = False) -> bool:
    """Whether readers know of a delegation that is let go. The child is created before its start is announced: a run
    that `died` in between, or an earlier attempt of this run, may not have announced it, and then its end is not told
    either."""
    if begun_by is None or not (died or scope.run.attempt > 1):
        return True
    await scope.writer.flush()
    said = await scope.services.streams.get_chunks_from_step(scope.stream_id, 0, run_id=begun_by)
    return any(isinstance(chunk, SubagentStart) and chunk.child_session_id == child_id for chunk in said)


async def _works_for_a_call(scope: RunScope, companion: SessionId) -> bool:
    """Whether a companion is driven by a run of its parent, or waits for one to resume it."""
    run = await scope.services.store.get_current_run(companion)
    return run is not None and run.parent_run_id is not None and (run.status == "running" or run.status in SUSPENDED)


def end_chunk(
    scope: RunScope,
    step: int,
    planned: PlannedCall,
    agent_type: str,
    status: SubSessionStatus,
    result: JSON = None,
) -> SubagentEnd:
    """What readers are told when a delegated call is over."""
    about = {"tool_call_id": planned.tool_call_id, "child_session_id": child_id_of(planned)}
    return scope.chunk(SubagentEnd, step, **about, child_agent_type=agent_type, status=status, result=result)


def _end_of(ref: SubSessionRef, owner: SessionState, run: RunRecord, within: ToolCallId | None) -> SubagentEnd:
    """The end of a delegation that its owner will not return to; `within` is the call that the owner works for."""
    return SubagentEnd(
        session_id=owner.session_id,
        run_id=run.run_id,
        agent_type=owner.agent_type,
        step=owner.step_count,
        parent_tool_call_id=within,
        tool_call_id=ref.tool_call_id,
        child_session_id=ref.sub_session_id,
        child_agent_type=ref.agent_type,
        status="interrupted",
    )


async def write_end(scope: RunScope, end: SubagentEnd) -> None:
    """Tell readers of the end, unless they know it; without the result if that is too large for a chunk."""
    if scope.was_told(end):
        return
    try:
        await scope.writer.write(end)
    except ChunkTooLargeError:
        # The result is still in the transcript.
        await scope.writer.write(msgspec.structs.replace(end, result=None))
    # A run that gives up a child may be stopped before that is committed, and then lets go of it once more.
    scope.take_ends_told((end,))


async def let_go(scope: RunScope, child_id: SessionId, reason: str = "interrupted") -> bool:
    """End what a child does or waits for, with everything below it; False if there is no such child."""
    store = scope.services.store
    run = await store.get_current_run(child_id)
    if run is None:
        return False
    session = await store.load_state(child_id)
    await _tell_ends_below(scope, session, run, await _delegated_by(scope, session))
    if run.status != "running" and run.status not in SUSPENDED:
        return True
    flag = scope.stop.flag
    aborted = flag is not None and flag.kind == "abort"
    await store.settle_session(
        SettleSession(
            session_id=child_id,
            expected=("active", "paused"),
            expected_run=run.fence,
            status="failed" if aborted else "interrupted",
            failure_reason=CANCELLED if aborted else None,
            run_status="failed" if aborted else "interrupted",
            completion_reason=CANCELLED if aborted else reason,
        )
    )
    if is_remote(session):
        await stop_remote(scope.services, child_id)
    return True


async def _tell_ends_below(scope: RunScope, session: SessionState, run: RunRecord, within: ToolCallId | None) -> None:
    """Announce the end of every delegation below a child that is let go; `within` is the call it works for."""
    store = scope.services.store
    for ref in await store.get_sub_session_refs(session.session_id):
        if ref.mode != "ephemeral" or ref.status != "running":
            continue
        below, working = await store.load_state(ref.sub_session_id), await store.get_current_run(ref.sub_session_id)
        if working is not None:
            await _tell_ends_below(scope, below, working, ref.tool_call_id)
        if await _start_was_said(scope, ref.sub_session_id, ref.parent_run_id):
            await write_end(scope, _end_of(ref, session, run, within))


async def _delegated_by(scope: RunScope, session: SessionState) -> ToolCallId | None:
    """The call that a child works for."""
    refs = await scope.services.store.get_sub_session_refs(session.parent_session_id or session.session_id)
    return next((ref.tool_call_id for ref in refs if ref.sub_session_id == session.session_id), None)


def child_id_of(planned: PlannedCall) -> SessionId:
    """The child session that a delegated call was planned with."""
    assert planned.child_session_id is not None
    return planned.child_session_id
