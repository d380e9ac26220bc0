"""Companions: named children that keep their conversation across calls, runs and processes.

A companion call is run in the round after the commit that announced it. What it finds is decided from the store alone,
so a call that is run again after a crash finds the child it started before and starts no second one.
"""

from collections.abc import Mapping
from typing import Any

from helix_agents.agent.companions import PersistentAgent
from helix_agents.domain.commits import ParentLink, SettleSession, StartRun
from helix_agents.domain.errors import HelixError, SupersededError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.messages import ToolMessage, UserMessage
from helix_agents.domain.pending import READY, PendingFilter
from helix_agents.domain.records import JSON
from helix_agents.domain.runs import SUSPENDED, RunRecord
from helix_agents.domain.sessions import ChildWait, CreateSession, SessionState, StopKind
from helix_agents.domain.sub_sessions import SubSessionRef, SubSessionRefUpdate
from helix_agents.domain.transcript import heal
from helix_agents.domain.writes import NO_WRITES
from helix_agents.engine.answers import tool_is_gone
from helix_agents.engine.children import answered_below, drive_to_rest, next_start, result_message
from helix_agents.engine.desk import RestingResult
from helix_agents.engine.effects import Batch, CallOutcome, PlannedCall
from helix_agents.engine.executing import announce, open_call, settle
from helix_agents.engine.log import log_exception
from helix_agents.engine.scope import RunScope
from helix_agents.engine.services import Services

# How often, in seconds, a companion that somebody else drives is looked at.
LOOK_AGAIN = 0.1
# How long a companion that was interrupted may take to come to rest before it is told something new.
REST_SECONDS = 30.0


class CompanionError(Exception):
    """The call cannot be done; the sentence is for the model."""


async def run_companion(scope: RunScope, batch: Batch, planned: PlannedCall) -> CallOutcome:
    """Run one companion tool."""
    call = await open_call(scope, batch, planned)
    tool = scope.agent.find_tool(planned.tool_name)
    if tool is None:
        return await settle(scope, batch, tool_is_gone(call))
    if scope.stop.requested.is_set():
        return CallOutcome(tool_call_id=planned.tool_call_id, state="stopped")
    companion = _Companions(scope, batch, planned)
    try:
        given = tool.parse(call.arguments)
        result = await companion.run(given)
    except SupersededError:
        raise
    except (CompanionError, HelixError) as problem:
        if isinstance(problem, HelixError):
            log_exception("subagent.dispatch_failed", problem, tool=planned.tool_name)
        result = _error(planned, str(problem))
    if isinstance(result, CallOutcome):
        return result
    await announce(scope, batch.step, result.message, NO_WRITES)
    return await settle(scope, batch, result)


async def tell_finished_companions(scope: RunScope) -> None:
    """Companions that ended since the last commit reach the model as one hidden message each, once.

    The message and the end of the reference are one commit, so a crash repeats neither or both.
    """
    if not scope.agent.persistent_agents:
        return
    store = scope.services.store
    updates: list[SubSessionRefUpdate] = []
    for ref in await store.get_sub_session_refs(scope.session.session_id):
        if ref.mode != "persistent" or ref.status != "running" or not _is_detached(scope, ref.agent_type):
            continue
        run = await store.get_current_run(ref.sub_session_id)
        if run is None or run.status == "running" or run.status in SUSPENDED:
            continue
        session = await store.load_state(ref.sub_session_id)
        named = PlannedCall(tool_call_id=ref.tool_call_id, tool_name="companion__spawnAgent", kind="companion")
        message, status = await result_message(scope, named, session, run)
        text = f"Companion {ref.name!r} ({ref.agent_type}) is {status}: {message.content}"
        notice = UserMessage(content=text, hidden=True, metadata={"helix": "companion_notice"})
        scope.notices.append(notice)
        scope.transcript.append(notice)
        updates.append(
            SubSessionRefUpdate(
                sub_session_id=ref.sub_session_id, status=status, result=message.content, error=session.error
            )
        )
    scope.settled_companions = tuple(updates)


async def stop_companions(scope: RunScope, kind: StopKind, reason: str | None) -> None:
    """A stop of a session reaches the companions that work for it."""
    if not scope.agent.persistent_agents:
        return
    for ref in await scope.services.store.get_sub_session_refs(scope.session.session_id):
        if ref.mode == "persistent" and ref.status == "running":
            await scope.services.store.set_interrupt_flag(ref.sub_session_id, reason, kind=kind)


async def resume_detached(services: Services, root: SessionId, owner: str | None) -> tuple[RunRecord, ...]:
    """Runs for companions of a tree that waited for somebody and have their answer; the caller drives them."""
    store = services.store
    ready = await store.list_pending(PendingFilter(root_session_id=root, states=tuple(READY)), limit=200)
    started: dict[SessionId, RunRecord] = {}
    for call in ready.items:
        session = await store.load_state(call.session_id)
        while session.parent_session_id is not None and session.session_id not in started:
            run = await store.get_current_run(session.session_id)
            if run is not None and run.parent_run_id is None and run.status in SUSPENDED:
                start = StartRun(
                    session_id=session.session_id,
                    run_id=services.ids.new("run"),
                    expected_version=session.version,
                    expected_run=run.fence,
                    keep_suspension=True,
                    keep_step_count=True,
                    count_resume=True,
                    previous_run_id=run.run_id,
                    owner=owner,
                )
                started[session.session_id] = (await store.start_run(start)).run
                break
            session = await store.load_state(session.parent_session_id)
    return tuple(started.values())


class _Companions:
    """One companion call at work."""

    def __init__(self, scope: RunScope, batch: Batch, planned: PlannedCall) -> None:
        self._scope = scope
        self._batch = batch
        self._planned = planned
        self._store = scope.services.store

    async def run(self, given: Mapping[str, JSON]) -> RestingResult | CallOutcome:
        """Do what the tool's name says."""
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
        agent = self._kind(kind)
        children = await self._children()
        mine = next((ref for ref in children.values() if ref.tool_call_id == self._planned.tool_call_id), None)
        if mine is not None:
            # This very call was run before a crash, or waited for its child: go on with what it started.
            return await self._go_on(agent, mine)
        name = name or _free_name(kind, children)
        existing = children.get(name)
        if existing is not None:
            run = await self._store.get_current_run(existing.sub_session_id)
            if run is not None and (run.status == "running" or run.status in SUSPENDED):
                raise CompanionError(f"Companion {name!r} is still at work; send it a message, or choose another name.")
        return await self._tell(agent, name, existing, message)

    async def _send(self, name: str, message: str) -> RestingResult | CallOutcome:
        ref = await self._child(name)
        agent = self._kind(ref.agent_type)
        if ref.tool_call_id == self._planned.tool_call_id:
            return await self._go_on(agent, ref)
        run = await self._store.get_current_run(ref.sub_session_id)
        if run is not None and run.status == "running":
            await self._store.set_interrupt_flag(ref.sub_session_id, "a message from the parent")
            await self._at_rest(ref.sub_session_id)
        return await self._tell(agent, name, ref, message)

    async def _tell(
        self, agent: PersistentAgent, name: str, existing: SubSessionRef | None, message: str
    ) -> RestingResult | CallOutcome:
        """Start a run of the companion with this message: in its session if that goes on, else in a new one."""
        session = await self._continuable(existing)
        if session is None:
            start = self._new_session(agent, name, message)
        else:
            assert existing is not None
            await self._store.update_sub_session_ref(
                self._scope.session.session_id,
                SubSessionRefUpdate(
                    sub_session_id=existing.sub_session_id,
                    status="running",
                    tool_call_id=self._planned.tool_call_id,
                ),
            )
            start = await self._next_turn(agent, session, message)
        run = (await self._store.start_run(start)).run
        return await self._started(agent, name, run)

    async def _started(self, agent: PersistentAgent, name: str, run: RunRecord) -> RestingResult | CallOutcome:
        if agent.mode == "non_blocking":
            self._scope.services.drive_detached(run)
            return self._ok({"name": name, "status": "running"})
        await drive_to_rest(self._scope, self._planned, run)
        return await self._result(run.session_id)

    async def _go_on(self, agent: PersistentAgent, ref: SubSessionRef) -> RestingResult | CallOutcome:
        """A call that was begun before: its child is driven again, still waits, or has its result."""
        child, name = ref.sub_session_id, ref.name or ref.sub_session_id
        run = await self._store.get_current_run(child)
        if agent.mode == "non_blocking":
            return self._ok({"name": name, "status": "running"})
        if run is not None and run.status == "running":
            claimed = await self._store.claim_run(child, run.fence, self._scope.run.owner)
            await drive_to_rest(self._scope, self._planned, claimed)
        elif run is not None and run.status in SUSPENDED and await answered_below(self._scope, child):
            session = await self._store.load_state(child)
            started = await self._store.start_run(next_start(self._scope, agent.agent, session, run))
            await drive_to_rest(self._scope, self._planned, started.run)
        return await self._result(child)

    async def _result(self, child: SessionId) -> RestingResult | CallOutcome:
        """What a blocking companion came to."""
        run = await self._store.get_current_run(child)
        session = await self._store.load_state(child)
        assert run is not None
        if run.status in SUSPENDED or run.status == "running":
            return self._waiting(session)
        if run.status == "interrupted" and self._scope.stop.requested.is_set():
            return CallOutcome(tool_call_id=self._planned.tool_call_id, state="stopped")
        message, status = await result_message(self._scope, self._planned, session, run)
        update = SubSessionRefUpdate(sub_session_id=child, status=status, result=message.content, error=session.error)
        spent = self._scope.usage_entry(
            self._batch.step, source_type="subagent", source_name=session.agent_type, success=not message.error
        )
        return RestingResult(message=message, child=update, usage=(spent,))

    async def _wait(self, ref: SubSessionRef) -> RestingResult | CallOutcome:
        while not self._scope.stop.requested.is_set():
            run = await self._store.get_current_run(ref.sub_session_id)
            if run is None or run.status != "running":
                return await self._result(ref.sub_session_id)
            await self._scope.services.sleep(LOOK_AGAIN)
        return CallOutcome(tool_call_id=self._planned.tool_call_id, state="stopped")

    async def _terminate(self, ref: SubSessionRef) -> RestingResult:
        child = ref.sub_session_id
        await self._store.set_interrupt_flag(child, "terminated by its parent", kind="abort")
        run = await self._store.get_current_run(child)
        if run is not None and run.status == "running":
            await self._at_rest(child)
        await self._store.settle_session(
            SettleSession(
                session_id=child,
                expected=("active", "interrupted", "paused"),
                status="failed",
                error="terminated by its parent",
                failure_reason="terminated",
                completion_reason="terminated",
            )
        )
        update = SubSessionRefUpdate(sub_session_id=child, status="terminated")
        result = self._ok({"name": ref.name, "status": "terminated"})
        return RestingResult(message=result.message, child=update)

    async def _at_rest(self, child: SessionId) -> None:
        """Wait until nobody drives the companion; a driver that is gone leaves that to its lease."""
        for _ in range(int(REST_SECONDS / LOOK_AGAIN)):
            run = await self._store.get_current_run(child)
            if run is None or run.status != "running":
                return
            await self._scope.services.sleep(LOOK_AGAIN)
        raise CompanionError("The companion did not come to rest in time; try again later.")

    async def _children(self) -> dict[str, SubSessionRef]:
        """Companions by name; of two with one name, the later one."""
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
        """The companion's session, if its conversation goes on: one that failed or was terminated starts anew."""
        if ref is None or ref.status in ("failed", "terminated"):
            return None
        session = await self._store.load_state(ref.sub_session_id)
        return None if session.status == "failed" else session

    def _new_session(self, agent: PersistentAgent, name: str, message: str) -> StartRun:
        scope, child = self._scope, self._planned.child_session_id
        assert child is not None
        session = scope.session
        return StartRun(
            session_id=child,
            run_id=scope.services.ids.new("run"),
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
            parent=ParentLink(
                session_id=session.session_id,
                fence=scope.run.fence,
                ref=SubSessionRef(
                    sub_session_id=child,
                    agent_type=agent.agent.name,
                    tool_call_id=self._planned.tool_call_id,
                    delegation=scope.services.ids.new("delegation"),
                    mode="persistent",
                    name=name,
                    parent_run_id=scope.run.run_id,
                ),
            ),
            **self._driven_by(agent),
        )

    async def _next_turn(self, agent: PersistentAgent, session: SessionState, message: str) -> StartRun:
        run = await self._store.get_current_run(session.session_id)
        page = await self._store.get_messages(session.session_id, limit=200)
        healed = heal([stored.message for stored in reversed(page.items)])
        return StartRun(
            session_id=session.session_id,
            run_id=self._scope.services.ids.new("run"),
            expected_version=session.version,
            expected_run=run.fence if run is not None else None,
            agent_version=agent.agent.version,
            append_messages=(*healed, UserMessage(content=message)),
            abandon_pending=True,
            previous_run_id=run.run_id if run is not None else None,
            **self._driven_by(agent),
        )

    def _driven_by(self, agent: PersistentAgent) -> dict[str, Any]:
        """A blocking companion is driven by its parent's run; any other stands on its own, and so outlives it."""
        parent_run = self._scope.run.run_id if agent.mode == "blocking" else None
        return {"owner": self._scope.run.owner, "parent_run_id": parent_run}

    def _waiting(self, session: SessionState) -> CallOutcome:
        call_id = self._planned.tool_call_id
        self._scope.companion_waits[call_id] = ChildWait(
            tool_call_id=call_id, child_session_id=session.session_id, agent_type=session.agent_type
        )
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


def _is_detached(scope: RunScope, kind: str) -> bool:
    return any(each.agent.name == kind and each.mode == "non_blocking" for each in scope.agent.persistent_agents)


def _free_name(kind: str, children: Mapping[str, SubSessionRef]) -> str:
    number = 1
    while f"{kind}-{number}" in children:
        number += 1
    return f"{kind}-{number}"


def _error(planned: PlannedCall, sentence: str) -> RestingResult:
    message = ToolMessage(
        tool_call_id=planned.tool_call_id,
        tool_name=planned.tool_name,
        content=sentence,
        error=True,
        code="companion_refused",
    )
    return RestingResult(message=message, told=False)
