"""What every executor does alike: entries, answers, stops, recovery. Where a run is driven, its runtime says."""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Self, TypeVar, Unpack

import msgspec

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.durations import Duration, optional_milliseconds
from helix_agents.agent.hooks import SomeHooks
from helix_agents.agent.output import OutputT
from helix_agents.agent.registry import AgentRegistry
from helix_agents.domain.budgets import Budget
from helix_agents.domain.commits import StartRun
from helix_agents.domain.errors import (
    AgentAlreadyRunningError,
    ConflictError,
    ExecutorClosedError,
    HelixError,
    NotARootSessionError,
    NothingToResumeError,
    StillWaitingError,
)
from helix_agents.domain.ids import CheckpointId, RunId, SessionId, ToolCallId, check_id
from helix_agents.domain.paging import DEFAULT_LIMIT, Page
from helix_agents.domain.pending import (
    Answer,
    AnswerOutcome,
    PendingCall,
    PendingFilter,
    SubmitAnswer,
)
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.sessions import (
    BranchPoint,
    InterruptOutcome,
    SessionState,
    StopKind,
)
from helix_agents.domain.usage import UsageFilter, UsageOfDay
from helix_agents.engine.children.detached import resume_detached
from helix_agents.engine.children.meant_agents import find_agent
from helix_agents.engine.effects import Ops
from helix_agents.engine.log import log_exception
from helix_agents.engine.remote.stops import delete_remote
from helix_agents.engine.requests.rewinding import rewind
from helix_agents.engine.requests.start_plans import (
    NewSession,
    ResumeMode,
    check_owner,
    plan_resume,
    plan_retry,
    plan_rewind,
    read_standing,
)
from helix_agents.engine.requests.stopping import stop_session
from helix_agents.engine.requests.submitting import submit
from helix_agents.engine.requests.workspaces import workspace_providers
from helix_agents.engine.services import DAY_MS, EngineOptions, Services
from helix_agents.engine.steps.ending import repair_stream
from helix_agents.ports.llm import LLMAdapter
from helix_agents.ports.state_store import SessionStateStore, check_complete
from helix_agents.ports.streams import StreamManager
from helix_agents.ports.usage_store import UsageStore
from helix_agents.runtimes.executor.handle import RunHandle
from helix_agents.runtimes.executor.hosting import AgentExecutor
from helix_agents.runtimes.executor.inputs import (
    IfRunning,
    Input,
    check_agent,
    check_budget_of_call,
    check_if_running,
    check_of_one_call,
    check_resume,
    messages_of,
    metadata_of,
    tags_of,
    user_of,
)
from helix_agents.runtimes.executor.janitor import Janitor, Swept
from helix_agents.runtimes.executor.left_to_others import LeftToOthers
from helix_agents.runtimes.executor.models import Models
from helix_agents.runtimes.executor.recovery import Recovered, recover, take_over
from helix_agents.runtimes.executor.remotes import Remotes
from helix_agents.runtimes.executor.runtime import Runtime
from helix_agents.runtimes.executor.sessions import Sessions
from helix_agents.runtimes.executor.settings import (
    ExecutorSettings,
    check_memory_has_a_place,
    check_settings,
    check_workspaces_apart,
    checked_agents,
)
from helix_agents.runtimes.executor.starting import start_run
from helix_agents.runtimes.executor.turn_queue import TurnQueue
from helix_agents.runtimes.executor.turns import Turns, WantedTurn
from helix_agents.runtimes.executor.waking import Waker
from helix_agents.system import RandomIds, jitter

T = TypeVar("T")


class ExecutorCore:
    """An executor over any runtime; leaving its block lets running steps commit and lets go of the rest."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        state: SessionStateStore,
        streams: StreamManager,
        usage: UsageStore,
        agents: Iterable[AnyAgent] = (),
        **settings: Unpack[ExecutorSettings],
    ) -> None:
        check_complete(state)
        check_settings(type(self), settings)
        self.locks = settings.get("locks")
        self.memories = settings.get("memories")
        self._runtime = runtime
        self._usage = usage
        self._grace = settings.get("grace", 20.0)
        self._janitor_seconds = settings.get("janitor_seconds", 15.0)
        self._on_close = settings.get("on_close")
        self._models = Models()
        self._is_open = False
        self._services = Services(
            store=state,
            streams=streams,
            agents=AgentRegistry(checked_agents(type(self), agents)),
            clock=state,
            ids=RandomIds(),
            adapter_of=self._models.adapter_of,
            sleep=asyncio.sleep,
            jitter=jitter,
            in_thread=asyncio.to_thread,
            drive_child=runtime.drive_child,
            drive_detached=runtime.drive_detached,
            inspect=runtime.inspect,
            is_here=lambda run: runtime.find(run.run_id) is not None,
            name_workflow=runtime.name_workflow,
            entries=settings.get("entries"),
            memories=settings.get("memories"),
            attend_remotes=self._attend_remotes,
            hooks=settings.get("hooks"),
            options=settings.get("options") or EngineOptions(),
        )
        runtime.services = self._services
        self.sessions = Sessions(
            state,
            streams,
            forget_elsewhere=partial(delete_remote, self._services),
            agent_of=partial(find_agent, state, self._services.agents),
            check_at_rest=partial(read_standing, self._services),
            workspace_providers=lambda: workspace_providers(self._services.agents.everyone()),
        )
        self._left = LeftToOthers(runtime)
        self._remotes = Remotes(self._services, resume=self._resume_by_name)
        self._waker = Waker(self._services, begin=self._begin_quietly, leaves=self._left.leaves)
        self._queue = TurnQueue(
            self._services,
            begin=self._begin_quietly,
            leaves=self._left.leaves,
            find=runtime.find,
            in_background=runtime.in_background,
        )
        self._turns = Turns(
            self._services,
            usage=usage,
            queue=self._queue,
            begin=self._begin,
            handle_of=self._handle,
            get_handle=self.get_handle,
            stop=partial(self._stop, reason="another message came", kind="interrupt"),
        )
        self.janitor = Janitor(
            self._services,
            resume=self._resume_by_name,
            resume_companions=self._resume_companions_by_name,
            recover=self.recover,
            wake=self._waker.wake,
            begin_queued=self._queue.begin_all,
            tidy=runtime.tidy,
            remotes=self._remotes,
            resume_grace_ms=settings.get("resume_grace_ms", 30_000),
            stream_retention_ms=settings.get("stream_retention_ms", DAY_MS),
        )

    @property
    def agents(self) -> AgentRegistry:
        """The agents this process knows."""
        return self._services.agents

    async def __aenter__(self) -> Self:
        """Be ready for runs. One that is open already, as it is after `await`, stays as it is until its block is left.

        Raises:
            ExecutorClosedError: it was closed, and is not opened again.
        """
        if self._runtime.leaving:
            raise ExecutorClosedError
        if self._is_open:
            return self
        await self._runtime.start()
        self._is_open = True
        if self._janitor_seconds is not None:
            self._runtime.in_background(self.janitor.run(self._janitor_seconds))
            self._runtime.in_background(self._remotes.pay(self._janitor_seconds))
            self._runtime.in_background(self._remotes.watch(self._janitor_seconds))
            self._runtime.in_background(self._waker.run(self._janitor_seconds))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # -- entries

    async def execute(
        self,
        agent: Agent[Any, OutputT, Any],
        input: Input,
        session_id: SessionId | None = None,
        *,
        branch: BranchPoint | None = None,
        state: Any = None,
        user_id: str | None = None,
        tags: Sequence[str] = (),
        metadata: dict[str, str] | None = None,
        expires_in: Duration | None = None,
        idempotency_key: str | None = None,
        only_new: bool = False,
        if_running: IfRunning = "reject",
        budget: Budget | None = None,
        hooks: SomeHooks = None,
        model: str | LLMAdapter | None = None,
    ) -> RunHandle[OutputT]:
        """Begin a turn: in a new session, or as the next one of an existing session.

        With an `idempotency_key`, the same call again gives the handle of the turn it began. With `only_new`, a session
        that exists is left alone, whoever made it and however lately. With `branch`, the session begins as a copy of
        another one; `user_id`, `tags` and `metadata` are those of a new session, too.

        A turn that goes on is not disturbed (`if_running="reject"`). With `"enqueue"` this one waits, in the store,
        until those before it are over, also one that waits for somebody; it begins once, in whichever process, and its
        handle waits with it. With `"interrupt"` the turn that goes on is stopped, keeping what it did, and this one
        begins after it.

        A `budget` is kept beside that of the agent, in whichever process the turn goes on; it is the turn's own, and
        the next one is without it.

        Raises:
            AgentAlreadyRunningError: the session has a turn that is going on.
            QueueFullError: too many wait already.
            InvalidInputError: a message is none, or what else was given is not what it should be.
            AgentMismatchError: the session, or the one it is to be a branch of, was begun with another agent.
            NotARootSessionError: its parent drives it.
            SessionAlreadyExistsError: it was to be a new one, or a branch, and is there already.
            StateSchemaChangedError: its stored state no longer fits the agent.
            UnknownModelError, MissingExtraError: a model it would ask cannot be opened here.
            DefinitionError: the budget is none, or in dollars where a model has no price.
            ExecutorClosedError, OtherEventLoopError: this process begins nothing any more, or not in this event loop.
        """
        self._know(agent)
        check_if_running(if_running, hooks, model)
        check_budget_of_call(agent, budget)
        if branch is not None:
            check_id(branch.from_session_id)
        new = NewSession(
            branch=branch,
            state=state,
            user_id=user_of(user_id),
            tags=tags_of(tags),
            metadata=metadata_of(metadata),
            required=only_new,
        )
        wanted = WantedTurn(
            session_id=self._services.ids.new("session") if session_id is None else check_id(session_id),
            messages=messages_of(input, idempotency_key),
            new=new,
            expires_in_ms=optional_milliseconds(expires_in, "execute", "expires_in"),
            key=None if only_new else idempotency_key,
            budget=budget,
        )
        begun = await self._turns.begun(agent, wanted)
        if begun is not None:
            return begun
        if if_running == "enqueue" and branch is None and not only_new:
            self._adapter(agent, None, None)
            return await self._turns.after_others(agent, wanted)
        begin = self._turns.instead_of_others if if_running == "interrupt" else self._turns.now
        return await begin(agent, wanted, hooks=hooks, model=model)

    async def resume(
        self,
        agent: Agent[Any, OutputT, Any],
        session_id: SessionId,
        *,
        mode: ResumeMode = "continue",
        message: Input | None = None,
        checkpoint_id: CheckpointId | None = None,
        hooks: SomeHooks = None,
        model: str | LLMAdapter | None = None,
    ) -> RunHandle[OutputT]:
        """Go on with what a session left open: answered calls, an interrupted turn, or an earlier checkpoint.

        `checkpoint_id="beginning"` leads back to before the first message.

        Companions that waited for an answer go on too; where only they do, the handle is that of the session's last
        run.

        Raises:
            SessionNotFoundError, NotARootSessionError, AgentAlreadyRunningError, AgentMismatchError,
            NothingToResumeError, StillWaitingError, CheckpointNotFoundError, StateSchemaChangedError,
            InvalidInputError, UnknownModelError, MissingExtraError, ExecutorClosedError: it cannot; nothing was
            written.
        """
        self._know(agent)
        check_id(session_id)
        check_resume(mode, message, checkpoint_id)
        messages = () if message is None else messages_of(message)
        await check_owner(self._services, agent, session_id)
        companions = await self._to_the_end(self._resume_companions(session_id))
        try:
            start = await plan_resume(
                self._services, agent, session_id, mode, messages=messages, checkpoint_id=checkpoint_id
            )
        except (NothingToResumeError, StillWaitingError, AgentAlreadyRunningError):
            # Whoever has a message, or wants to go back, is told that this was not done.
            handle = await self.get_handle(agent, session_id) if companions and mode == "continue" else None
            if handle is None:
                raise
            return handle
        if isinstance(start, RunRecord):
            return await self._take_over(agent, start, hooks=hooks, model=model)
        handle = await self._begin(agent, start, hooks=hooks, model=model)
        self._queue.goes_on(session_id, after_a_pause=True)
        return handle

    async def retry(
        self,
        agent: Agent[Any, OutputT, Any],
        session_id: SessionId,
        *,
        budget: Budget | None = None,
        hooks: SomeHooks = None,
        model: str | LLMAdapter | None = None,
    ) -> RunHandle[OutputT]:
        """Go on from the last commit of a run that failed, with fresh steps and a fresh budget: the agent's, and beside
        it this one, or else one like that which the turn was begun with.

        Raises:
            SessionNotFoundError, NotARootSessionError, AgentAlreadyRunningError, AgentMismatchError,
            NothingToRetryError, StateSchemaChangedError, InvalidInputError, UnknownModelError, MissingExtraError,
            DefinitionError, ExecutorClosedError: it cannot.
        """
        self._know(agent)
        check_budget_of_call(agent, budget)
        start = await plan_retry(self._services, agent, check_id(session_id), budget=budget)
        return await self._begin(agent, start, hooks=hooks, model=model)

    async def rewind(self, session_id: SessionId, checkpoint_id: CheckpointId) -> SessionState:
        """Bring a session back to a checkpoint, or to its `"beginning"`, and leave it there, interrupted.

        Messages and state are as they were there. No agent is needed: execute or resume goes on from there, whenever
        somebody wants to.

        Raises:
            SessionNotFoundError, CheckpointNotFoundError, AgentAlreadyRunningError, NotARootSessionError: it cannot.
        """
        check_id(checkpoint_id, "checkpoint id")
        return await rewind(self._services, await plan_rewind(self._services, check_id(session_id), checkpoint_id))

    async def get_handle(
        self, agent: Agent[Any, OutputT, Any], session_id: SessionId, run_id: RunId | None = None
    ) -> RunHandle[OutputT] | None:
        """A handle on the session's current run, or on this one of its runs, whoever drives it, and also one that waits
        for its turn; None when there is none."""
        check_agent(agent)
        store = self._services.store
        check_id(session_id)
        if run_id is None:
            run = await store.get_current_run(session_id)
        else:
            # In this order: it may begin between the two looks.
            waiting = await self._turns.waiting(agent, session_id, run_id)
            if waiting is not None:
                return waiting
            run = await store.get_run(run_id)
        if run is None or run.session_id != session_id:
            return None
        if self._runtime.find(run.run_id) is None:
            await repair_stream(self._services, run)
        return self._handle(agent, run)

    async def can_resume(self, agent: AnyAgent, session_id: SessionId) -> HelixError | None:
        """None when resume would go on; else why it would not."""
        check_agent(agent)
        try:
            await plan_resume(self._services, agent, check_id(session_id), "continue")
        except HelixError as reason:
            return reason
        return None

    # -- answers and stops

    async def submit_tool_result(
        self,
        session_id: SessionId,
        tool_call_id: ToolCallId,
        answer: Answer,
        *,
        approval_id: str | None = None,
    ) -> AnswerOutcome:
        """Store an answer to a call that waits; a durable write and nothing else. It says what is needed next.

        Raises:
            InvalidInputError: it is no answer, or contradicts itself.
        """
        submission = SubmitAnswer(
            session_id=check_id(session_id),
            tool_call_id=check_id(tool_call_id, "tool call id"),
            answer=answer,
            approval_id=approval_id,
        )
        limit = self._services.result_bytes
        return await submit(self._services.store, self._services.agents, submission, max_result_bytes=limit)

    async def list_pending(
        self, where: PendingFilter | None = None, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[PendingCall]:
        """What waits, across all sessions."""
        return await self._services.store.list_pending(where, offset=offset, limit=limit)

    async def usage_by_day(self, where: UsageFilter | None = None) -> tuple[UsageOfDay, ...]:
        """What was used across all sessions, added up per day (in UTC), agent and source; the newest day first."""
        return await self._usage.get_usage_by_day(where)

    async def interrupt(self, session_id: SessionId, reason: str | None = None) -> InterruptOutcome:
        """Stop the run that is going, keeping what it did; a session that waits is settled as interrupted.

        The stop reaches everything below the session.

        Raises:
            SessionNotFoundError, NotARootSessionError: there is nothing here to stop.
        """
        return await self._stop(session_id, reason, "interrupt")

    async def abort(self, session_id: SessionId, reason: str | None = None) -> InterruptOutcome:
        """Fail the run that is going, or that waits, for good. The stop reaches everything below the session.

        Raises:
            SessionNotFoundError, NotARootSessionError: there is nothing here to stop.
        """
        return await self._stop(session_id, reason, "abort")

    async def recover(self) -> Recovered:
        """Continue runs whose process died, each as the next attempt of the same run; one process gets each.

        A round that was begun goes on when its caller is cancelled: nobody else finds a run that it has claimed.
        """
        self._runtime.check_loop()
        return await self._to_the_end(recover(self._services, self._runtime, self._left))

    async def sweep(self) -> Swept:
        """One round of the janitor, now; like that of recovery, it goes on when its caller is cancelled."""
        return await self._to_the_end(self.janitor.sweep())

    async def idle(self) -> None:
        """Wait until this process drives no run, and begins none that waited for the end of another here."""
        await self._runtime.idle()
        while await self._queue.may_begin():
            await self._runtime.idle()

    async def close(self) -> None:
        """Start nothing new, give running steps their grace, then let go of what is left."""
        if self._runtime.leaving:
            return
        try:
            await self._runtime.leave(self._grace)
        finally:
            # Also when whoever leaves does not want to wait any longer.
            await self._let_go()

    async def _let_go(self) -> None:
        await self._runtime.let_go()
        await self._models.close()
        for agent in self._services.agents.everyone():
            for tool in agent.all_tools:
                try:
                    await tool.close()
                except Exception as problem:
                    log_exception("tool.not_closed", problem, tool=tool.name)
            if agent.memory is not None:
                try:
                    await agent.memory.close()
                except Exception as problem:
                    log_exception("memory.not_closed", problem, agent=agent.name)
            if agent.workspace is not None:
                try:
                    await agent.workspace.provider.close()
                except Exception as problem:
                    log_exception("workspace.not_closed", problem, agent=agent.name)
        if self._on_close is not None:
            await self._on_close()

    # -- inside

    async def _begin(
        self,
        agent: Agent[Any, OutputT, Any],
        start: StartRun,
        *,
        hooks: SomeHooks,
        model: str | LLMAdapter | None,
    ) -> RunHandle[OutputT]:
        """Commit the start, which decides who runs, and submit it; whoever is cancelled does not stop that half-way."""
        if self._runtime.leaving:
            raise ExecutorClosedError
        adapter = self._adapter(agent, model, hooks)
        owned = msgspec.structs.replace(start, owner=self._runtime.owner, call_hooks=hooks is not None)
        starting = start_run(self._services, self._runtime, owned, hooks=hooks, model=adapter)
        run = await self._to_the_end(starting)
        self._queue.goes_on(run.session_id)
        return self._handle(agent, run)

    async def _to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something that must not stop half-way when its caller is cancelled.

        Raises:
            ExecutorClosedError: this process leaves; what was begun is found by others.
        """
        doing = self._runtime.in_background(work)
        try:
            return await asyncio.shield(doing)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            # Both may be cancelled at once, as whatever is in the background is when this process leaves.
            if doing.cancelled() and not (caller is not None and caller.cancelling()):
                raise ExecutorClosedError from None
            raise

    async def _take_over(
        self, agent: Agent[Any, OutputT, Any], dead: RunRecord, *, hooks: SomeHooks, model: str | LLMAdapter | None
    ) -> RunHandle[OutputT]:
        """Go on with a run whose process died, as its next attempt."""
        adapter = self._adapter(agent, model, hooks)
        taking = take_over(self._services, self._runtime, dead, hooks=hooks, model=adapter)
        try:
            run = await self._to_the_end(taking)
        except ConflictError as lost:
            raise AgentAlreadyRunningError(dead.session_id, dead.run_id) from lost
        return self._handle(agent, run)

    async def _begin_quietly(self, agent: AnyAgent, start: StartRun) -> None:
        """Begin a run that nobody here waits for."""
        await self._begin(agent, start, hooks=None, model=None)

    def _attend_remotes(self) -> None:
        self._remotes.attend()

    def _wrap(self, ops: Ops) -> Ops:
        """The effects as the loop of a run here gets them; whoever wants to watch them overrides this."""
        return ops

    def _handle(self, agent: Agent[Any, OutputT, Any], run: RunRecord) -> RunHandle[OutputT]:
        return RunHandle(self._services, agent, run, usage=self._usage, driver=self._runtime.find(run.run_id))

    async def _resume_by_name(self, session_id: SessionId) -> bool:
        """Go on with a session if its agent is known here, and is not left to others."""
        agent = await self._agent_of(session_id)
        if agent is None or self._left.leaves(agent):
            return False
        await self.resume(agent, session_id)
        return True

    async def _resume_companions_by_name(self, root: SessionId) -> int:
        """Drive companions of a tree as below, unless its agent is left to others."""
        agent = await self._agent_of(root)
        return 0 if agent is not None and self._left.leaves(agent) else await self._resume_companions(root)

    async def _agent_of(self, root: SessionId) -> AnyAgent | None:
        return self._services.agents.find((await self._services.store.load_state(root)).agent_type)

    async def _resume_companions(self, root: SessionId) -> int:
        """Drive companions of a tree that have the answer they waited for; says how many."""
        return await resume_detached(self._services, root, self._runtime.owner)

    async def _stop(self, session_id: SessionId, reason: str | None, kind: StopKind) -> InterruptOutcome:
        session = await self._services.store.load_state(check_id(session_id))
        if session.parent_session_id is not None:
            raise NotARootSessionError(session_id, session.root_session_id)
        return await stop_session(self._services, session_id, kind, reason)

    def _know(self, agent: AnyAgent) -> None:
        """Whoever recovers this run in this process finds its agent by name."""
        check_agent(agent)
        if self._runtime.leaving or not self._is_open:
            raise ExecutorClosedError
        self._runtime.check_loop()
        if self._services.agents.find(agent.name) is not agent:
            self._services.agents.replace(agent)
            self._waker.look()

    def _adapter(self, agent: AnyAgent, model: str | LLMAdapter | None, hooks: SomeHooks) -> LLMAdapter | None:
        """The model that this call gives. A run whose own models cannot be opened here, its sub-agents' included, or
        whose tools take deps that nothing opens here, is refused before anything is written, as is one whose driver, in
        another process, would not get what is given.

        Raises:
            InvalidInputError, UnknownModelError, MissingExtraError, DefinitionError, DepsNotOpenedError: it cannot be
                begun like this.
        """
        check_of_one_call(hooks, model, works=self._runtime.works)
        self._left.check(agent)
        check_memory_has_a_place(agent, self.memories)
        check_workspaces_apart(agent, self._services.agents)
        if model is not None:
            return self._models.adapter_of(model)
        if self._runtime.works:
            self._models.open_all_of(agent)
        return None


_: type[AgentExecutor] = ExecutorCore
