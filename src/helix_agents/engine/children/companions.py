"""Companions: named children that keep their conversation across calls, runs and processes.

A companion call runs in the round after the commit that announced it. What it finds is decided from the store alone, so
a call that is repeated after a crash finds the child it started before and does not start a second one.
"""

from collections.abc import Callable, Mapping
from itertools import count

import msgspec

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.companions import PersistentAgent
from helix_agents.agent.failures import FailRun
from helix_agents.agent.hook_events import BeforeToolEvent
from helix_agents.domain.commits import ParentLink, SettleSession, StartRun
from helix_agents.domain.errors import ConflictError, HelixError, StateSchemaChangedError, SupersededError
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.messages import ToolMessage, UserMessage
from helix_agents.domain.records import JSON
from helix_agents.domain.runs import SUSPENDED, RunRecord
from helix_agents.domain.sessions import ChildWait, CreateSession, SessionState, StopKind
from helix_agents.domain.sub_sessions import SubSessionRef, SubSessionRefUpdate
from helix_agents.domain.writes import NO_WRITES, apply_writes, difference
from helix_agents.engine.children.detached import begin_detached, resume_detached
from helix_agents.engine.children.errands import companion_run_id
from helix_agents.engine.children.letting_go import child_id_of, let_go
from helix_agents.engine.children.meant_agents import find_holder
from helix_agents.engine.children.sub_agents import (
    ABANDONED,
    answered_below,
    check_still_driving,
    drive_to_rest,
    end_of_call,
    fail_child,
    next_start,
)
from helix_agents.engine.desk import Note, RestingResult
from helix_agents.engine.effects import Batch, CallOutcome, PlannedCall
from helix_agents.engine.log import log_exception
from helix_agents.engine.requests.stopping import stop_companions
from helix_agents.engine.scope import RunScope
from helix_agents.engine.steps.answers import tool_is_gone
from helix_agents.engine.steps.executing import announce, open_call, settle, tell_before
from helix_agents.engine.steps.salvage import StepEnd, end_of_last_step, salvage, salvaged_state
from helix_agents.engine.steps.spending import tell_spending

# Companions are spoken to in the round after the commit that announced them.
_FIRST_ROUND = 1
# How often, in seconds, a companion that another task or process drives is looked at.
LOOK_AGAIN = 0.1
# After how many looks to check whether its driver is still alive.
LOOKS_PER_INSPECTION = 50
# How long an interrupted companion may take to come to rest before it is sent something new.
REST_SECONDS = 30.0


class CompanionError(Exception):
    """The call cannot be done; the text is for the model."""


async def run_companion(scope: RunScope, batch: Batch, planned: PlannedCall) -> CallOutcome:
    """Run one companion tool."""
    call = await open_call(scope, batch, planned)
    tool = scope.agent.find_tool(planned.tool_name)
    work = _CompanionCall(scope, batch, planned)
    given: dict[str, JSON] = {}
    begun = scope.services.clock.now_ms()
    try:
        if tool is None:
            result = await work.let_go(tool_is_gone(call))
        else:
            given = tool.parse(call.arguments)
            result = await (work.came_to() if scope.stop.requested.is_set() else work.run(given))
    except CompanionError as refused:
        result = await work.let_go(_error(planned, str(refused)))
    except FailRun as decision:
        result = await work.let_go(_error(planned, decision.reason, fail_run=decision.reason))
    except HelixError as problem:
        if problem.retryable or isinstance(problem, SupersededError):
            # Another driver took over, or the store is not answering: neither concerns the model.
            raise
        log_exception("subagent.dispatch_failed", problem, tool=planned.tool_name)
        result = _error(planned, str(problem))
    if isinstance(result, CallOutcome):
        return result
    took = scope.services.clock.now_ms() - begun
    result = msgspec.structs.replace(result, input=given, duration_ms=took)
    await announce(scope, batch.step, result.message, NO_WRITES)
    return await settle(scope, batch, result)


class _CompanionCall:
    """One companion call in progress."""

    def __init__(self, scope: RunScope, batch: Batch, planned: PlannedCall) -> None:
        self._scope = scope
        self._batch = batch
        self._planned = planned
        self._store = scope.services.store
        # Made for this call and recorded with its step: a repetition of the call finds what it started.
        self._run_id = companion_run_id(child_id_of(planned))

    async def let_go(self, result: RestingResult) -> RestingResult:
        """End what this call started, as a deploy removed the tool or the kind; a detached companion is not ended."""
        begun = await self._begun()
        if begun is None or begun.parent_run_id is None:
            return result
        await let_go(self._scope, begun.session_id)
        update = SubSessionRefUpdate(sub_session_id=begun.session_id, status="interrupted")
        return msgspec.structs.replace(result, child=update)

    async def came_to(self) -> RestingResult | CallOutcome:
        """The companion's result, if it came to one for this call before the stop; otherwise the call is stopped."""
        begun = await self._begun()
        if begun is None or begun.parent_run_id is None:
            return CallOutcome(tool_call_id=self._planned.tool_call_id, state="stopped")
        # A companion that works or waits is not waited for, so its call is stopped as well.
        return await self._result(begun.session_id, (await self._latest(begun)).run_id)

    async def run(self, given: dict[str, JSON]) -> RestingResult | CallOutcome:
        """Do what the tool's name says; if the companion moved on in between, look again.

        Raises:
            FailRun: a hook wants the run to fail.
        """
        if self._batch.round == _FIRST_ROUND:
            about = {"tool_name": self._planned.tool_name, "tool_call_id": self._planned.tool_call_id}
            await tell_before(self._scope, self._batch, self._planned, BeforeToolEvent(**about, input=given))
        while True:
            try:
                return await self._run(given)
            except SupersededError:
                raise
            except ConflictError:
                await check_still_driving(self._scope)
                await self._scope.services.sleep(LOOK_AGAIN)

    async def _run(self, given: Mapping[str, JSON]) -> RestingResult | CallOutcome:
        match self._planned.tool_name:
            case "companion__spawnAgent":
                return await self._spawn(given["agent"], given.get("name"), given["initialMessage"])
            case "companion__sendMessage":
                return await self._send(given["name"], given["message"])
            case "companion__listChildren":
                return self._ok([await self._standing(ref) for ref in (await self._children()).values()])
            case "companion__getChildStatus":
                return self._ok(await self._standing(await self._child(given["name"])))
            case "companion__terminateChild":
                return await self._terminate(await self._child(given["name"]))
            case "companion__waitForResult":
                return await self._wait(await self._child(given["name"]))
            case other:
                raise CompanionError(f"There is no companion tool {other!r}.")

    async def _spawn(self, kind: str, name: str | None, message: str) -> RestingResult | CallOutcome:
        """Start a companion, or continue what this call started before."""
        agent = self._kind(kind)
        # Calls run side by side, but take names one after another, in the order in which the model called.
        async with self._scope.companion_starts:
            begun = await self._begun()
            if begun is None:
                name, existing = await self._choose_name(kind, name)
                run = await self._start(agent, name, existing, message)
                started = self._started(agent, name, run, existing)
            else:
                started = self._go_on(agent, begun)
        return await started

    async def _choose_name(self, kind: str, name: str | None) -> tuple[str, SubSessionRef | None]:
        """The name for a new companion, and the reference that had this name before, if any."""
        children = await self._children()
        name = name or _free_name(kind, children)
        existing = children.get(name)
        if existing is not None and existing.agent_type != kind:
            raise CompanionError(f"Companion {name!r} is of kind {existing.agent_type!r}; choose another name.")
        if existing is not None and _is_at_work(await self._store.get_current_run(existing.sub_session_id)):
            raise CompanionError(f"Companion {name!r} is still working; send it a message, or choose another name.")
        return name, existing

    async def _send(self, name: str, message: str) -> RestingResult | CallOutcome:
        """Send a companion a message, interrupting it if it is at work; or continue what this call started before."""
        async with self._scope.companion_starts:
            ref = await self._child(name)
            agent = self._kind(ref.agent_type)
            begun = await self._begun()
            if begun is None:
                if not await self._came_to_rest(ref.sub_session_id, "a message from the parent"):
                    raise CompanionError(f"Companion {name!r} did not stop in time; try again later.")
                ref = await self._child(name)
                run = await self._start(agent, name, ref, message)
                started = self._started(agent, name, run, ref)
            else:
                started = self._go_on(agent, begun)
        return await started

    async def _begun(self) -> RunRecord | None:
        """The run that this very call started before a crash or before it waited: its id is made from the call's."""
        return await self._store.get_run(self._run_id)

    async def _start(
        self, agent: PersistentAgent, name: str, existing: SubSessionRef | None, message: str
    ) -> RunRecord:
        """Start a run of the companion with this message: in its session if that can continue, else in a new one."""
        session = await self._continuable(existing)
        works = agent.agent if session is None else self._who_works(agent, session)
        start = self._new_session(agent, message) if session is None else await self._next_turn(works, session, message)
        ref = SubSessionRef(
            sub_session_id=start.session_id,
            agent_type=agent.agent.name,
            tool_call_id=self._planned.tool_call_id,
            delegation=self._scope.services.ids.new("delegation"),
            mode="persistent",
            name=name,
            parent_run_id=self._scope.run.run_id,
        )
        owned = msgspec.structs.replace(
            start,
            parent=self._link(ref),
            agent_version=works.version,
            owner=self._scope.run.owner,
        )
        if agent.mode == "blocking":
            # Driven by its parent's run. Any other companion is detached, and so outlives that run.
            owned = msgspec.structs.replace(owned, parent_run_id=self._scope.run.run_id, workflow_id=None)
            return (await self._store.start_run(owned)).run
        return await begin_detached(self._scope.services, owned)

    async def _started(
        self, agent: PersistentAgent, name: str, run: RunRecord, before: SubSessionRef | None
    ) -> RestingResult | CallOutcome:
        if agent.mode == "non_blocking":
            self._scope.services.drive_detached(run)
            return await self._under_way(run, name, lambda _: before is None or before.status != "running")
        await drive_to_rest(self._scope, self._planned, run, watched=True)
        return await self._result(run.session_id, run.run_id)

    async def _go_on(self, agent: PersistentAgent, begun: RunRecord) -> RestingResult | CallOutcome:
        """Continue a call that was begun before: its child is driven again, still waits, or has its result."""
        child = begun.session_id
        refs = await self._store.get_sub_session_refs(self._scope.session.session_id)
        ref = next(each for each in refs if each.sub_session_id == child)
        if begun.parent_run_id is None:
            # It has been detached since it started, whatever a deploy made of its kind.
            if begun.status == "running" and begun.owner == self._scope.run.owner:
                # This process started it, and may have lost the answer that said so.
                self._scope.services.drive_detached(begun)
            return await self._under_way(begun, ref.name, lambda previous: previous.output == ref.result)
        run = await self._latest(begun)
        if run.status == "running":
            await check_still_driving(self._scope)
            run = await self._store.claim_run(child, run.fence, self._scope.run.owner)
            await drive_to_rest(self._scope, self._planned, run, watched=True)
        elif run.status in SUSPENDED and await self._has_answer(child):
            run = await self._resumed(agent, ref, run)
        elif run.status in SUSPENDED and self._scope.is_given_up:
            # The user sent a new message: what the companion waits for will never be answered.
            await let_go(self._scope, child, ABANDONED)
        return await self._result(child, run.run_id)

    async def _latest(self, begun: RunRecord) -> RunRecord:
        """The run that now continues what a call started, or was the last to do so."""
        run = await self._store.get_current_run(begun.session_id) if _is_at_work(begun) else begun
        assert run is not None
        return run

    async def _resumed(self, agent: PersistentAgent, ref: SubSessionRef, suspended: RunRecord) -> RunRecord:
        """Resume a companion that has its answer. If its stored state no longer fits the agent, it fails alone."""
        session = await self._store.load_state(suspended.session_id)
        try:
            start = next_start(self._scope, agent.agent, session, suspended)
        except StateSchemaChangedError as problem:
            await fail_child(self._scope.services, suspended.session_id, suspended.fence, problem)
            return suspended
        run = (await self._store.start_run(msgspec.structs.replace(start, parent=self._link(ref)))).run
        await drive_to_rest(self._scope, self._planned, run, watched=True)
        return run

    async def _under_way(self, run: RunRecord, name: str | None, is_told: Callable[[RunRecord], bool]) -> RestingResult:
        """The result of a call that sent a detached companion off. If the companion had just finished something else,
        no notice will report that, so this result does."""
        said: dict[str, JSON] = {"name": name, "status": "running"}
        previous = await self._store.get_run(run.previous_run_id) if run.previous_run_id is not None else None
        if previous is not None and previous.status == "completed" and not is_told(previous):
            said["previous_output"] = previous.output
        return self._ok(said)

    async def _result(self, child: SessionId, run_id: RunId) -> RestingResult | CallOutcome:
        """What the companion came to, as the waiting call's result."""
        run = await self._store.get_run(run_id)
        session = await self._store.load_state(child)
        assert run is not None
        if run.parent_run_id is not None:
            # A detached companion spends from its own budget.
            await tell_spending(self._scope, session)
        if _is_at_work(run):
            return await self._waiting(session)
        if self._scope.stop.requested.is_set() and run.status in ("interrupted", "failed"):
            return CallOutcome(tool_call_id=self._planned.tool_call_id, state="stopped")
        end = await end_of_call(self._scope, self._planned, session, run)
        if end.status == "terminated":
            # A companion whose question was given up keeps its conversation.
            end = end._replace(status="interrupted")
        spent = self._scope.usage_entry(
            self._batch.step, source_type="subagent", source_name=session.agent_type, success=not end.message.error
        )
        return RestingResult(message=end.message, child=end.ref_update, usage=(spent,))

    async def _wait(self, ref: SubSessionRef) -> RestingResult | CallOutcome:
        """Wait until a companion comes to rest; resume it if it has an answer."""
        services, child = self._scope.services, ref.sub_session_id
        for look in count():
            if self._scope.stop.requested.is_set():
                break
            run = await self._store.get_current_run(child)
            assert run is not None
            if run.status in SUSPENDED and await self._has_answer(child):
                await self._check_can_go_on(ref)
                root, owner = self._scope.session.root_session_id, self._scope.run.owner
                await resume_detached(services, root, owner, companion=child)
            elif run.status != "running" and await self._store.get_current_run(child) == run:
                # Otherwise it continued between the two looks and has another run by now.
                return await self._result(child, run.run_id)
            elif run.status == "running" and look % LOOKS_PER_INSPECTION == 0 and await services.inspect(run) == "dead":
                await self._check_can_go_on(ref)
            await services.sleep(LOOK_AGAIN)
        return CallOutcome(tool_call_id=self._planned.tool_call_id, state="stopped")

    async def _check_can_go_on(self, ref: SubSessionRef) -> None:
        """Check that this deploy can continue the companion: waiting for one that is left to another deploy could last
        forever.

        Raises:
            CompanionError: its kind is gone, or the agent that it handed over to.
            StateSchemaChangedError: its stored state no longer fits the agent.
        """
        session = await self._store.load_state(ref.sub_session_id)
        agent = self._who_works(self._kind(ref.agent_type), session)
        self._scope.services.present_state(agent, session.custom_state, session.agent_version)

    async def _terminate(self, ref: SubSessionRef) -> RestingResult:
        """Abort a companion for good, with everything below it."""
        child, reason = ref.sub_session_id, "terminated by its parent"
        await stop_companions(self._scope.services, child, "abort", reason)
        await self._came_to_rest(child, reason, kind="abort")
        await self._store.settle_session(
            SettleSession(
                session_id=child,
                expected=("active", "interrupted", "paused"),
                status="failed",
                error=reason,
                failure_reason="terminated",
                completion_reason="terminated",
            )
        )
        update = SubSessionRefUpdate(sub_session_id=child, status="terminated")
        result = self._ok({"name": ref.name, "status": "terminated"})
        return RestingResult(message=result.message, child=update)

    async def _came_to_rest(self, child: SessionId, reason: str, *, kind: StopKind = "interrupt") -> bool:
        """Stop a companion that is being driven, and wait until it is not; a dead driver is not waited for."""
        for _ in range(int(REST_SECONDS / LOOK_AGAIN)):
            run = await self._store.get_current_run(child)
            if run is None or run.status != "running" or not await self._is_driven(run):
                return True
            await self._store.set_interrupt_flag(child, reason, kind=kind)
            await self._scope.services.sleep(LOOK_AGAIN)
        return False

    async def _has_answer(self, child: SessionId) -> bool:
        return await answered_below(self._store, await self._store.load_state(child))

    async def _is_driven(self, run: RunRecord) -> bool:
        return await self._scope.services.inspect(run) == "alive"

    async def _children(self) -> dict[str, SubSessionRef]:
        """Companions by name; of two with the same name, the later one."""
        refs = await self._store.get_sub_session_refs(self._scope.session.session_id)
        return {ref.name: ref for ref in refs if ref.mode == "persistent" and ref.name is not None}

    async def _child(self, name: str) -> SubSessionRef:
        children = await self._children()
        if name not in children:
            raise CompanionError(f"There is no companion {name!r}. Yours: {', '.join(children) or 'none'}.")
        return children[name]

    def _kind(self, kind: str) -> PersistentAgent:
        for each in self._scope.agent.persistent_agents:
            if each.agent.name == kind:
                self._scope.services.agents.register_if_new(each.agent)
                return each
        known = ", ".join(each.agent.name for each in self._scope.agent.persistent_agents)
        raise CompanionError(f"There is no companion of kind {kind!r}. Kinds: {known}.")

    async def _continuable(self, ref: SubSessionRef | None) -> SessionState | None:
        """The companion's session, if its conversation continues: one that failed or was terminated starts anew."""
        if ref is None or ref.status in ("failed", "terminated"):
            return None
        session = await self._store.load_state(ref.sub_session_id)
        return None if session.status == "failed" else session

    def _new_session(self, agent: PersistentAgent, message: str) -> StartRun:
        session = self._scope.session
        return StartRun(
            session_id=child_id_of(self._planned),
            run_id=self._run_id,
            create=CreateSession(
                agent_type=agent.agent.name,
                agent_version=agent.agent.version,
                custom_state=agent.agent.initial_state(),
                parent_session_id=session.session_id,
                root_session_id=session.root_session_id,
                mode="persistent",
                user_id=session.user_id,
                expires_at=session.expires_at,
                tracing_context=session.tracing_context,
            ),
            append_messages=(UserMessage(content=message),),
            workflow_id=self._scope.services.name_workflow(agent.agent.name, child_id_of(self._planned), 1),
            tell=self._scope.services.tells(self._scope.run),
        )

    async def _next_turn(self, agent: AnyAgent, session: SessionState, message: str) -> StartRun:
        """The next turn in the companion's session, with its state migrated to the agent's current version.

        Raises:
            StateSchemaChangedError: its stored state no longer fits the agent; nothing was written.
        """
        run = await self._store.get_current_run(session.session_id)
        services = self._scope.services
        left = await self._left_behind(agent, session, run)
        state = apply_writes(session.custom_state, left.writes.ops)
        present = services.present_state(agent, state, session.agent_version).custom_state
        return StartRun(
            session_id=session.session_id,
            run_id=self._run_id,
            expected_version=session.version,
            expected_run=run.fence if run is not None else None,
            writes=difference(session.custom_state, present),
            append_messages=(*left.messages, UserMessage(content=message)),
            abandon_pending=True,
            workflow_id=services.name_workflow(
                session.agent_type, session.session_id, run.turn + 1 if run is not None else 1
            ),
            previous_run_id=run.run_id if run is not None else None,
            replaced_status="interrupted",
            replaced_reason="crashed",
            tell=services.tells(self._scope.run),
        )

    async def _left_behind(self, agent: AnyAgent, session: SessionState, run: RunRecord | None) -> StepEnd:
        """What its last turn left uncommitted; for a turn that died, including the words that readers saw."""
        if run is None or run.status != "running" or session.suspension_context is not None:
            return await end_of_last_step(self._store, session, run)
        services = self._scope.services
        state = await salvaged_state(services, agent, session, run)
        return StepEnd(await salvage(services, session, run), difference(session.custom_state, state))

    def _who_works(self, kind: PersistentAgent, session: SessionState) -> AnyAgent:
        """The agent that works in a companion's session: one of this kind, or one that it handed over to.

        Raises:
            CompanionError: it handed over to one that is not known here.
        """
        agent = find_holder(self._scope.services.agents, kind.agent, session)
        if agent is None:
            raise CompanionError(f"This companion handed over to {session.held_by!r}, which is not known here.")
        return agent

    def _link(self, ref: SubSessionRef) -> ParentLink:
        """Lets only the parent's driver start the companion, and records the call that it is for."""
        return ParentLink(session_id=self._scope.session.session_id, fence=self._scope.run.fence, ref=ref)

    async def _waiting(self, session: SessionState) -> CallOutcome:
        call_id = self._planned.tool_call_id
        wait = ChildWait(tool_call_id=call_id, child_session_id=session.session_id, agent_type=session.agent_type)
        await self._scope.note(self._batch.step, call_id, Note(round=self._batch.round, waits_for=wait))
        return CallOutcome(tool_call_id=call_id, state="waiting")

    async def _standing(self, ref: SubSessionRef) -> JSON:
        session = await self._store.load_state(ref.sub_session_id)
        run = await self._store.get_current_run(ref.sub_session_id)
        status = ref.status if ref.status == "terminated" or run is None else run.status
        return {"name": ref.name, "agent": ref.agent_type, "status": status, "output": session.output}

    def _ok(self, content: JSON) -> RestingResult:
        message = ToolMessage(
            tool_call_id=self._planned.tool_call_id, tool_name=self._planned.tool_name, content=content
        )
        return RestingResult(message=message)


def _is_at_work(run: RunRecord | None) -> bool:
    """Whether a run is in progress or waits for an answer."""
    return run is not None and (run.status == "running" or run.status in SUSPENDED)


def _free_name(kind: str, children: Mapping[str, SubSessionRef]) -> str:
    number = 1
    while f"{kind}-{number}" in children:
        number += 1
    return f"{kind}-{number}"


def _error(planned: PlannedCall, sentence: str, *, fail_run: str | None = None) -> RestingResult:
    message = ToolMessage(
        tool_call_id=planned.tool_call_id,
        tool_name=planned.tool_name,
        content=sentence,
        error=True,
        code="companion_refused" if fail_run is None else "tool_failed",
    )
    return RestingResult(message=message, fail_run=fail_run)
