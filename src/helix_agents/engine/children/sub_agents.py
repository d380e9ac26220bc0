"""Sub-agents: opening a child is decided from the store alone, and driving it is a turn like any other.

| what is found                                  | what follows                                              |
|------------------------------------------------|-----------------------------------------------------------|
| no such child                                  | it is created, with the parent's reply and reference, and driven |
| its run is in progress (a crash)               | the same run is driven as its next attempt                |
| suspended, nothing answered in it or below it  | it still waits                                            |
| suspended, something answered                  | a new run of it consumes the answer                       |
| at its end                                     | its result is the call's result                           |
"""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import msgspec

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.failures import Contained, FailRun
from helix_agents.agent.hook_events import AfterSubAgentEvent, BeforeSubAgentEvent, BeforeToolEvent
from helix_agents.agent.remote_agents import RemoteAgentTool
from helix_agents.agent.sub_agents import DelegationTool, SubAgentTool
from helix_agents.domain.chunks import SubagentStart
from helix_agents.domain.commits import ParentLink, SettleSession, StartRun
from helix_agents.domain.errors import ConflictError, HelixError, StateSchemaChangedError, SupersededError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.messages import ToolMessage
from helix_agents.domain.pending import READY
from helix_agents.domain.records import JSON
from helix_agents.domain.runs import SUSPENDED, Fence, RunRecord, went_on
from helix_agents.domain.sessions import CreateSession, InterruptFlag, SessionState, StatusChanged
from helix_agents.domain.sub_sessions import RemoteChild, SubSessionRef, SubSessionRefUpdate
from helix_agents.domain.texts import said_by
from helix_agents.domain.writes import NO_WRITES
from helix_agents.engine.children.ends import TIMED_OUT, ChildEnd, end_of_child
from helix_agents.engine.children.letting_go import child_id_of, end_chunk, let_go, write_end
from helix_agents.engine.children.meant_agents import find_holder
from helix_agents.engine.desk import RestingResult
from helix_agents.engine.effects import Batch, CallOutcome, DriveRun, PlannedCall
from helix_agents.engine.log import log_exception
from helix_agents.engine.remote.following import follow_remote
from helix_agents.engine.remote.rest import DISPATCH_FAILED
from helix_agents.engine.remote.stops import OPEN, REMOTE, TOOL, id_there
from helix_agents.engine.scope import RunScope
from helix_agents.engine.services import Services
from helix_agents.engine.steps.answers import abandoned, tool_is_gone
from helix_agents.engine.steps.executing import announce, open_call, settle, tell_before
from helix_agents.engine.steps.ledger import resting_reply
from helix_agents.engine.steps.spending import tell_spending
from helix_agents.engine.steps.step_work import CANCELLED
from helix_agents.engine.steps.stop_watch import StopSignal, look_for_stop, watching
from helix_agents.engine.steps.undriven import tell_failed
from helix_agents.engine.user_code import OfHooks, fire_with_draft
from helix_agents.ports.clock import Clock
from helix_agents.ports.state_store import SessionStateStore

ABANDONED = "abandoned"


class _Opened(NamedTuple):
    """A child's run that is to be driven, and the arguments of its call."""

    run: RunRecord
    given: dict[str, JSON]


async def run_child(scope: RunScope, batch: Batch, planned: PlannedCall) -> CallOutcome:
    """Take a delegated call as far as its child goes."""
    opened = await _bring_to_drive(scope, batch, planned, driven=False)
    if isinstance(opened, CallOutcome):
        return opened
    await drive_to_rest(scope, planned, opened.run, planned.timeout_ms)
    return await _outcome(scope, batch, planned, opened.given)


async def hand_out_child(
    scope: RunScope, batch: Batch, planned: PlannedCall, *, driven: bool
) -> CallOutcome | DriveRun:
    """Open the child of a delegated call for the requester to drive, or return the call's outcome."""
    if driven:
        # The child may have been stopped with the whole tree without this process having heard of it.
        await look_for_stop(scope.services.store, scope.session.root_session_id, scope.stop)
    opened = await _bring_to_drive(scope, batch, planned, driven=driven)
    if isinstance(opened, CallOutcome):
        return opened
    run = opened.run
    return DriveRun(session_id=run.session_id, run_id=run.run_id, attempt=run.attempt)


async def _bring_to_drive(
    scope: RunScope, batch: Batch, planned: PlannedCall, *, driven: bool
) -> CallOutcome | _Opened:
    """The child's run, ready to be driven; or the call's outcome if there is nothing to drive."""
    call = await open_call(scope, batch, planned)
    tool = scope.agent.find_tool(planned.tool_name)
    if not isinstance(tool, DelegationTool):
        return await _settle_without_tool(scope, batch, planned, tool_is_gone(call))
    if scope.stop.requested.is_set() and not driven and not await _is_done(scope, planned):
        return CallOutcome(tool_call_id=planned.tool_call_id, state="stopped")
    try:
        given = tool.parse(call.arguments)
        run = await _open_child(scope, batch, planned, tool, given)
    except HelixError as problem:
        return await _dispatch_failed(scope, batch, planned, problem)
    try:
        if not driven:
            await _announce_start(scope, batch, planned, tool, given)
    except FailRun as decision:
        await let_go(scope, run.session_id)
        return await _outcome(scope, batch, planned, given, fail_run=decision.reason)
    if run.status == "running" and isinstance(tool, RemoteAgentTool):
        stop = scope.stop.below()
        with stopping_after(tool.timeout_ms, stop, run, scope.services.clock), Contained(f"Tool {tool.name!r}"):
            await follow_remote(scope, planned, run, tool, tool.opening_message(given), stop)
    elif run.status == "running":
        return _Opened(run, given)
    return await _outcome(scope, batch, planned, given)


async def _is_done(scope: RunScope, planned: PlannedCall) -> bool:
    """Whether the child already came to its end: a stop no longer affects its result."""
    run = await scope.services.store.get_current_run(child_id_of(planned))
    return run is not None and run.status != "running" and run.status not in SUSPENDED


async def _settle_without_tool(
    scope: RunScope, batch: Batch, planned: PlannedCall, result: RestingResult
) -> CallOutcome:
    """Settle a call whose tool a deploy removed; its child, if it has one, ends with it."""
    child_id = child_id_of(planned)
    if await let_go(scope, child_id):
        child = await scope.services.store.load_state(child_id)
        await write_end(scope, end_chunk(scope, batch.step, planned, child.agent_type, "interrupted"))
        update = SubSessionRefUpdate(sub_session_id=child_id, status="interrupted")
        result = msgspec.structs.replace(result, child=update)
    await announce(scope, batch.step, result.message, NO_WRITES)
    return await settle(scope, batch, result)


async def _open_child(
    scope: RunScope, batch: Batch, planned: PlannedCall, tool: DelegationTool, given: dict[str, JSON]
) -> RunRecord:
    """The child's run, ready to be driven if it is running."""
    store, child_id = scope.services.store, child_id_of(planned)
    agent = tool.agent if isinstance(tool, SubAgentTool) else None
    if agent is not None:
        scope.services.agents.register_if_new(agent)
    run = await store.get_current_run(child_id)
    if run is None:
        start = await _first_start(scope, batch, planned, tool, given)
        return (await store.start_run(start)).run
    if run.status == "running":
        await check_still_driving(scope)
        return await store.claim_run(child_id, run.fence, scope.run.owner)
    session = await store.load_state(child_id)
    if run.status in SUSPENDED and await answered_below(store, session):
        try:
            start = next_start(scope, agent, session, run)
        except StateSchemaChangedError as problem:
            await fail_child(scope.services, run.session_id, run.fence, problem)
            return await store.get_current_run(child_id) or run
        # Linked anew, so that the parent's fence is checked in the transaction that starts the run.
        linked = msgspec.structs.replace(start, parent=await _link(scope, batch, planned, tool))
        return (await store.start_run(linked)).run
    return run


async def check_still_driving(scope: RunScope) -> None:
    """Check that this driver still owns its run: one that was frozen while another took over must not take the child
    from it.

    A check is enough, because adopting a run compares its attempt. A driver that freezes between the check and the
    adoption finds the child adopted by the other driver, or adopts it a moment before the other one does so again.
    Either way one of them continues.

    Raises:
        SupersededError: another driver has this run.
    """
    current = await scope.services.store.get_current_run(scope.session.session_id)
    if current is None or current.fence != scope.run.fence:
        run = scope.run
        raise SupersededError(run.session_id, run.run_id, run.attempt, "another driver took the parent over")


async def _first_start(
    scope: RunScope, batch: Batch, planned: PlannedCall, tool: DelegationTool, given: dict[str, JSON]
) -> StartRun:
    session = scope.session
    agent = tool.agent if isinstance(tool, SubAgentTool) else None
    return StartRun(
        session_id=child_id_of(planned),
        run_id=scope.services.ids.new("run"),
        create=CreateSession(
            agent_type=tool.child_type,
            agent_version=agent.version if agent is not None else 1,
            custom_state=agent.initial_state() if agent is not None else {},
            parent_session_id=session.session_id,
            root_session_id=session.root_session_id,
            user_id=session.user_id,
            expires_at=session.expires_at,
            tracing_context=session.tracing_context,
            metadata={REMOTE: OPEN, TOOL: tool.name} if isinstance(tool, RemoteAgentTool) else {},
        ),
        append_messages=(tool.opening_message(given),),
        parent=await _link(scope, batch, planned, tool),
        parent_run_id=scope.run.run_id,
        owner=scope.run.owner,
        tell=scope.services.tells(scope.run),
    )


def next_start(scope: RunScope, agent: AnyAgent | None, session: SessionState, run: RunRecord) -> StartRun:
    """A run that continues what the child left open. For a child behind another service, the state is migrated there.

    Raises:
        StateSchemaChangedError: its stored state no longer fits the agent.
    """
    fitted = NO_WRITES
    agent = find_holder(scope.services.agents, agent, session)
    if agent is not None:
        fitted = scope.services.present_state(agent, session.custom_state, session.agent_version).writes
    return StartRun(
        session_id=session.session_id,
        run_id=scope.services.ids.new("run"),
        expected_version=session.version,
        expected_run=run.fence,
        agent_version=agent.version if agent is not None else None,
        writes=fitted,
        keep_suspension=True,
        keep_step_count=True,
        count_resume=True,
        previous_run_id=run.run_id,
        parent_run_id=scope.run.run_id,
        owner=scope.run.owner,
        tell=scope.services.tells(scope.run),
    )


async def _link(scope: RunScope, batch: Batch, planned: PlannedCall, tool: DelegationTool) -> ParentLink:
    """Binds the child to the call and lets only the parent's driver start it."""
    remote = None
    if isinstance(tool, RemoteAgentTool):
        remote = RemoteChild(url=tool.transport.url, agent=tool.remote_agent, session_id=id_there(child_id_of(planned)))
    return ParentLink(
        session_id=scope.session.session_id,
        fence=scope.run.fence,
        ref=SubSessionRef(
            sub_session_id=child_id_of(planned),
            agent_type=tool.child_type,
            tool_call_id=planned.tool_call_id,
            delegation=scope.services.ids.new("delegation"),
            location="local" if remote is None else "remote",
            remote=remote,
            parent_run_id=scope.run.run_id,
        ),
        stage=await resting_reply(scope, batch),
    )


async def answered_below(store: SessionStateStore, session: SessionState) -> bool:
    """Whether a suspended session or the children it waits for have an answer or a timeout, or a companion among them
    no longer waits: a detached companion may have continued by itself."""
    calls = session.pending_client_tool_calls.values()
    if any(call.state in READY and call.session_id == session.session_id for call in calls):
        return True
    for wait in session.suspended_awaiting_children.values():
        child = await store.load_state(wait.child_session_id)
        if await answered_below(store, child) or (child.mode == "persistent" and await _went_on(store, child)):
            return True
    return False


async def _went_on(store: SessionStateStore, child: SessionState) -> bool:
    """Whether a companion no longer waits. An approval is consumed before the call that it allows runs, and only the
    commit after that call ends the suspension; in between, its run is in progress."""
    if child.suspension_context is None:
        return True
    return went_on(await store.get_current_run(child.session_id))


async def drive_to_rest(
    scope: RunScope, planned: PlannedCall, run: RunRecord, timeout_ms: int | None = None, *, watched: bool = False
) -> None:
    """Drive a child inside its parent's call, until it ends or waits for an answer.

    A `watched` child can be stopped alone, by its own interrupt flag.
    """
    stop = scope.stop.below()
    services = scope.services
    flags = watching(services.store, run.session_id, services.sleep, stop) if watched else nullcontext()
    async with flags:
        await _drive_to_rest(scope, planned, run, timeout_ms, stop)


async def _drive_to_rest(
    scope: RunScope, planned: PlannedCall, run: RunRecord, timeout_ms: int | None, stop: StopSignal
) -> None:
    with stopping_after(timeout_ms, stop, run, scope.services.clock):
        try:
            end = await scope.services.drive_child(scope, run, planned.tool_call_id, stop)
        except Exception as problem:
            if isinstance(problem, HelixError) and (problem.retryable or isinstance(problem, ConflictError)):
                raise
            await fail_child(scope.services, run.session_id, run.fence, problem)
            return
    if end.status == "superseded":
        raise SupersededError(run.session_id, run.run_id, run.attempt, "another driver took the child over")


@contextmanager
def stopping_after(timeout_ms: int | None, stop: StopSignal, run: RunRecord | None, clock: Clock) -> Generator[None]:
    """Stop a child that takes too long, counted from the start of its run, whichever process drove it before."""
    if timeout_ms is None or run is None:
        yield
        return
    over_at = run.started_at + timeout_ms
    flag = InterruptFlag(run_id=run.run_id, reason=TIMED_OUT, set_at=over_at)
    left = max(over_at - clock.now_ms(), 0)
    timer = asyncio.get_running_loop().call_later(left / 1000, stop.request, flag)
    try:
        yield
    finally:
        timer.cancel()


async def fail_child(services: Services, session_id: SessionId, fence: Fence, problem: BaseException) -> None:
    """Fail a child that cannot be driven; its siblings and its parent continue."""
    log_exception("subagent.driver_failed", problem, session_id=session_id, run_id=fence.run_id)
    code = problem.code if isinstance(problem, HelixError) else "internal_error"
    settled = await services.store.settle_session(
        SettleSession(
            session_id=session_id,
            expected=("active", "paused"),
            expected_run=fence,
            status="failed",
            error=said_by(problem),
            failure_reason=code,
            completion_reason=code,
        )
    )
    if isinstance(settled, StatusChanged):
        await tell_failed(services, session_id, fence, code, said_by(problem))


async def _outcome(
    scope: RunScope, batch: Batch, planned: PlannedCall, given: dict[str, JSON], *, fail_run: str | None = None
) -> CallOutcome:
    """What the child came to, as the outcome of the parent's call."""
    store, child_id = scope.services.store, child_id_of(planned)
    run = await store.get_current_run(child_id)
    if run is not None and run.status in SUSPENDED and scope.is_given_up:
        # The user sent a new message: what the child waits for will never be answered.
        await let_go(scope, child_id, ABANDONED)
        run = await store.get_current_run(child_id)
    assert run is not None
    if run.status == "running":
        raise SupersededError(run.session_id, run.run_id, run.attempt, "another driver took the child over")
    if run.status in SUSPENDED:
        await _tell_spending(scope, child_id)
        return CallOutcome(tool_call_id=planned.tool_call_id, state="waiting")
    if scope.stop.requested.is_set() and (run.status == "interrupted" or run.completion_reason == CANCELLED):
        await _tell_spending(scope, child_id)
        return CallOutcome(tool_call_id=planned.tool_call_id, state="stopped")
    session = await store.load_state(child_id)
    await tell_spending(scope, session)
    end = await end_of_call(scope, planned, session, run)
    message, status = end.message, end.status
    ended = run.ended_at or run.started_at
    took = ended - session.created_at
    await write_end(scope, end_chunk(scope, batch.step, planned, session.agent_type, status, message.content))
    await announce(scope, batch.step, message, NO_WRITES)
    event = AfterSubAgentEvent(
        tool_call_id=planned.tool_call_id,
        agent=session.agent_type,
        child_session_id=child_id,
        status=status,
        result=message.content,
        error=session.error,
        duration_ms=took,
    )
    left = OfHooks()
    try:
        left = await fire_with_draft(scope, batch.step, event)
    except FailRun as decision:
        fail_run = decision.reason
    spent = scope.usage_entry(
        batch.step, source_type="subagent", source_name=session.agent_type, amount=took, success=not message.error
    )
    result = RestingResult(
        message=message,
        writes=left.writes,
        usage=(spent, *left.usage),
        input=given,
        child=end.ref_update,
        duration_ms=took,
        ended_at=ended,
        fail_run=fail_run,
    )
    return await settle(scope, batch, result)


async def _tell_spending(scope: RunScope, child_id: SessionId) -> None:
    if scope.counts_spending:
        await tell_spending(scope, await scope.services.store.load_state(child_id))


async def end_of_call(scope: RunScope, planned: PlannedCall, session: SessionState, run: RunRecord) -> ChildEnd:
    """How a child ended, as the parent's model reads it and its reference records it."""
    if scope.is_given_up and run.completion_reason == ABANDONED:
        return ChildEnd(session, abandoned(planned), "terminated")
    return await end_of_child(scope.services.store, planned.tool_call_id, planned.tool_name, session, run)


async def _announce_start(
    scope: RunScope, batch: Batch, planned: PlannedCall, tool: DelegationTool, given: dict[str, JSON]
) -> None:
    """Announce the start of a delegation, once: later rounds, and attempts after a crash, find it announced.

    Raises:
        FailRun: a hook wants the run to fail.
    """
    if batch.round > 0:
        return
    about = {"tool_call_id": planned.tool_call_id, "child_session_id": child_id_of(planned)}
    if not await _start_was_said(scope, batch.step, planned):
        await scope.writer.write(scope.chunk(SubagentStart, batch.step, **about, child_agent_type=tool.child_type))
    await tell_before(
        scope,
        batch,
        planned,
        BeforeToolEvent(tool_name=planned.tool_name, tool_call_id=planned.tool_call_id, input=given),
        BeforeSubAgentEvent(**about, agent=tool.child_type, input=given),
    )


async def _start_was_said(scope: RunScope, step: int, planned: PlannedCall) -> bool:
    """Whether a dead attempt or an earlier try of this effect already announced it: a start is never discarded."""
    if scope.run.attempt == 1 and not scope.is_shared:
        return False
    said = await scope.services.streams.get_chunks_from_step(scope.stream_id, step, run_id=scope.run.run_id)
    return any(isinstance(chunk, SubagentStart) and chunk.tool_call_id == planned.tool_call_id for chunk in said)


async def _dispatch_failed(scope: RunScope, batch: Batch, planned: PlannedCall, problem: HelixError) -> CallOutcome:
    """Give the call an error and let the run continue, unless the problem concerns the driver itself.

    Raises:
        SupersededError: the child or its parent has another driver.
        HelixError: the store is not answering; the effect may be repeated.
    """
    if isinstance(problem, SupersededError) or problem.retryable:
        raise problem
    if isinstance(problem, ConflictError):
        run = scope.run
        raise SupersededError(run.session_id, run.run_id, run.attempt, "the child has another driver") from problem
    log_exception("subagent.dispatch_failed", problem, tool=planned.tool_name, session_id=scope.session.session_id)
    message = ToolMessage(
        tool_call_id=planned.tool_call_id,
        tool_name=planned.tool_name,
        content=f"The sub-agent could not be started: {problem}",
        error=True,
        code=DISPATCH_FAILED,
    )
    await announce(scope, batch.step, message, NO_WRITES)
    return await settle(scope, batch, RestingResult(message=message, told=False))
