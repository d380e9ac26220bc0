"""What every executor does alike: entries, answers, stops, recovery. Where a run is driven, its runtime says."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

from msgspec.structs import replace

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.durations import Duration, optional_milliseconds
from helix_agents.agent.hooks import SomeHooks
from helix_agents.agent.output import OutputT
from helix_agents.agent.registry import AgentRegistry
from helix_agents.domain.budgets import Budget
from helix_agents.domain.errors import (
    AgentAlreadyRunningError,
    DefinitionError,
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
from helix_agents.engine.effects import Ops
from helix_agents.engine.requests.going_on import ResumeMode, plan_resume, plan_retry, plan_rewind
from helix_agents.engine.requests.standing import check_owner
from helix_agents.engine.requests.stopping import stop_session
from helix_agents.engine.requests.submitting import submit
from helix_agents.engine.steps.ending import repair_stream
from helix_agents.ports.llm import LLMAdapter
from helix_agents.ports.state_store import SessionStateStore, check_complete
from helix_agents.ports.streams import StreamManager
from helix_agents.ports.usage_store import UsageStore
from helix_agents.runtimes.executor.assembly import services_for, sessions_of
from helix_agents.runtimes.executor.beginnings import Beginnings
from helix_agents.runtimes.executor.by_name import ByName
from helix_agents.runtimes.executor.caretakers import Caretakers
from helix_agents.runtimes.executor.closing import close_all_of, told_if_it_takes_long
from helix_agents.runtimes.executor.handle import RunHandle
from helix_agents.runtimes.executor.hosting import AgentExecutor
from helix_agents.runtimes.executor.inputs import (
    IfRunning,
    Input,
    check_agent,
    check_budget_of_call,
    check_filter,
    check_if_running,
    check_resume,
    messages_of,
)
from helix_agents.runtimes.executor.janitor import Swept
from helix_agents.runtimes.executor.left_to_others import LeftToOthers
from helix_agents.runtimes.executor.models import Models
from helix_agents.runtimes.executor.recovery import Recovered, recover
from helix_agents.runtimes.executor.rewinds import rewind_reliably
from helix_agents.runtimes.executor.runtime import Runtime
from helix_agents.runtimes.executor.schedules import Schedules
from helix_agents.runtimes.executor.settings import (
    ExecutorSettings,
    check_settings,
    checked_agents,
)
from helix_agents.runtimes.executor.turn_queue import TurnQueue
from helix_agents.runtimes.executor.turns import Turns, WantedTurn, new_session
from helix_agents.runtimes.executor.webhooks import Webhooks, checked_webhooks


class ExecutorCore:
    """An executor over any runtime. Leaving its block lets running steps commit, then releases the rest."""

    if not TYPE_CHECKING:  # A type checker refuses this itself.

        def __new__(cls, *given: object, **_settings: object) -> Self:
            if given:
                name = cls.__name__
                raise DefinitionError(name, f"it is opened by a URL: {name}.open({given[0]!r}, …).")
            return super().__new__(cls)

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
        webhooks = checked_webhooks(type(self), settings.get("webhooks", ()))
        known = AgentRegistry(checked_agents(type(self), agents))
        known.check_handoffs()
        self._services = services_for(
            runtime,
            state=state,
            streams=streams,
            agents=known,
            models=self._models,
            attend_remotes=self._attend_remotes,
            run_ended=self._run_ended,
            has_webhooks=bool(webhooks),
            settings=settings,
        )
        self.sessions = sessions_of(self._services)
        self._left = LeftToOthers(runtime, known)
        self._beginnings = Beginnings(
            self._services,
            runtime,
            models=self._models,
            left=self._left,
            usage=usage,
            began=self._has_begun,
        )
        self._by_name = ByName(self._services, left=self._left, owner=lambda: runtime.owner, resume=self.resume)
        self._queue = TurnQueue(
            self._services,
            begin=self._beginnings.begin_quietly,
            leaves=self._left.leaves,
            find=runtime.find,
            in_background=runtime.in_background,
        )
        self._turns = Turns(
            self._services,
            usage=usage,
            queue=self._queue,
            beginnings=self._beginnings,
            get_handle=self.get_handle,
            stop=partial(self._stop, reason="another message came", kind="interrupt"),
        )
        self._caretakers = Caretakers(
            self._services,
            runtime,
            left=self._left,
            beginnings=self._beginnings,
            by_name=self._by_name,
            execute=self.execute,
            recover=self.recover,
            begin_queued=self._queue.begin_all,
            webhooks=webhooks,
            settings=settings,
        )
        self.janitor = self._caretakers.janitor
        self.memory_rounds = self._caretakers.memory_rounds
        self.schedules = Schedules(
            state, self._services.ids, know=self._know, changed=self._caretakers.schedule_runner.look
        )
        teller = self._caretakers.webhook_teller
        self.webhooks = Webhooks(state, self._services.ids, changed=teller.look_at_deliveries, tell=teller.tell_due)

    @property
    def agents(self) -> AgentRegistry:
        """The agents this process knows."""
        return self._services.agents

    async def __aenter__(self) -> Self:
        """Get ready for runs. An executor that is already open, as after `await`, stays open until its block is left.

        Raises:
            ExecutorClosedError: it was closed, and cannot be opened again.
        """
        if self._runtime.leaving:
            raise ExecutorClosedError
        if self._is_open:
            return self
        await self._runtime.start()
        self._is_open = True
        if self._janitor_seconds is not None:
            self._caretakers.begin(self._janitor_seconds)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # -- entries

    async def run(
        self,
        agent: Agent[Any, OutputT, Any],
        input: Input,
        session_id: SessionId | None = None,
        *,
        state: Any = None,
        user_id: str | None = None,
    ) -> OutputT:
        """Run a turn and return its output: `execute`, and then `output` of its handle.

        Cancelling this does not stop the turn. To stream, to answer people or to stop, use `execute`.

        Raises:
            RunNotCompletedError: the turn failed, was stopped or waits for an answer; the session is stored as it is.
        """
        return await (await self.execute(agent, input, session_id, state=state, user_id=user_id)).output()

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
        only_own: bool = False,
        if_running: IfRunning = "reject",
        budget: Budget | None = None,
        hooks: SomeHooks = None,
        model: str | LLMAdapter | None = None,
    ) -> RunHandle[OutputT]:
        """Start a turn: in a new session, or as the next turn of an existing session.

        With an `idempotency_key`, repeating the call returns the handle of the turn that the first call started. With
        `only_new`, an existing session is left alone, whoever created it and however recently. With `branch`, the
        session starts as a copy of another one. `user_id`, `tags` and `metadata` apply only to a new session; with
        `only_own`, a session that does not belong to `user_id` is left alone.

        By default (`if_running="reject"`), a running turn is not disturbed. With `"enqueue"`, the new turn waits in the
        store until all turns before it are over, including one that waits for an answer. It starts once, in whichever
        process, and its handle waits with it. With `"steer"`, the running turn takes the message in: its model is shown
        the message with the results of the step in hand. If the turn is over before that, the message is the next
        turn; either happens once, and the handle is that of the run that answers. With `"interrupt"`, the running turn
        is stopped, keeping what it did, and the new one starts after it.

        A `budget` applies in addition to the agent's, in whichever process the turn continues. It is for this turn
        only; the next turn does not have it.

        Raises:
            AgentAlreadyRunningError: the session has a running turn.
            QueueFullError: too many turns are waiting already.
            InvalidInputError: a message is not valid, or another argument is not what it should be.
            AgentMismatchError: the session, or the one it is to be a branch of, was started with another agent.
            NotARootSessionError: the session is driven by its parent.
            NotTheOwnerError: the session belongs to another user, and `only_own` was given.
            SessionAlreadyExistsError: the session was to be new, or a branch, but already exists.
            StateSchemaChangedError: its stored state no longer fits the agent.
            UnknownModelError, MissingExtraError: a model it would ask cannot be opened here.
            DefinitionError: the budget is not valid, or is in dollars although a model has no price, or a model's
                provider does not run the agent's `provider_tools`.
            ExecutorClosedError, OtherEventLoopError: this process starts no more turns, or not in this event loop.
        """
        self._know(agent)
        check_if_running(if_running, hooks, model, state=state, budget=budget)
        check_budget_of_call(agent, budget)
        wanted = WantedTurn(
            session_id=self._services.ids.new("session") if session_id is None else check_id(session_id),
            messages=messages_of(input, idempotency_key),
            new=new_session(branch, state, user_id, tags, metadata, required=only_new, only_own=only_own),
            expires_in_ms=optional_milliseconds(expires_in, "execute", "expires_in"),
            key=None if only_new else idempotency_key,
            budget=budget,
        )
        return await self._turns.begin(agent, wanted, if_running, hooks=hooks, model=model)

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
        """Continue what a session left open: answered calls, an interrupted turn, or an earlier checkpoint.

        `checkpoint_id="beginning"` goes back to before the first message.

        Companions that waited for an answer continue as well. If only companions continue, the handle is that of the
        session's last run.

        Raises:
            SessionNotFoundError, NotARootSessionError, AgentAlreadyRunningError, AgentMismatchError,
            NothingToResumeError, StillWaitingError, CheckpointNotFoundError, StateSchemaChangedError,
            InvalidInputError, UnknownModelError, MissingExtraError, ExecutorClosedError: it cannot be resumed; nothing
                was
            written.
        """
        self._know(agent)
        check_id(session_id)
        check_resume(mode, message, checkpoint_id)
        messages = () if message is None else messages_of(message)
        await check_owner(self._services, agent, session_id)
        companions = await self._beginnings.to_the_end(self._by_name.drive_answered(session_id))
        try:
            start = await plan_resume(
                self._services, agent, session_id, mode, messages=messages, checkpoint_id=checkpoint_id
            )
        except (NothingToResumeError, StillWaitingError, AgentAlreadyRunningError):
            # A caller that passed a message, or wants to go back, has to learn that this was not done.
            handle = await self.get_handle(agent, session_id) if companions and mode == "continue" else None
            if handle is None:
                raise
            return handle
        if isinstance(start, RunRecord):
            return await self._beginnings.take_over(agent, start, hooks=hooks, model=model)
        return await self._beginnings.begin(agent, start, hooks=hooks, model=model, after_a_pause=True)

    async def retry(
        self,
        agent: Agent[Any, OutputT, Any],
        session_id: SessionId,
        *,
        budget: Budget | None = None,
        hooks: SomeHooks = None,
        model: str | LLMAdapter | None = None,
    ) -> RunHandle[OutputT]:
        """Continue from the last commit of a failed run, with fresh steps and a fresh budget: the agent's, and in
        addition `budget`, or else a budget like the one the turn was started with.

        Raises:
            SessionNotFoundError, NotARootSessionError, AgentAlreadyRunningError, AgentMismatchError,
            NothingToRetryError, StateSchemaChangedError, InvalidInputError, UnknownModelError, MissingExtraError,
            DefinitionError, ExecutorClosedError: it cannot be retried.
        """
        self._know(agent)
        check_budget_of_call(agent, budget)
        start = await plan_retry(self._services, agent, check_id(session_id), budget=budget)
        return await self._beginnings.begin(agent, start, hooks=hooks, model=model)

    async def rewind(self, session_id: SessionId, checkpoint_id: CheckpointId) -> SessionState:
        """Take a session back to a checkpoint, or to its `"beginning"`, and leave it there, interrupted.

        Messages and state are restored to that point. No agent is needed. Call `execute` or `resume` to continue from
        there whenever you like. A rewind that has begun is completed even if its caller is cancelled.

        Raises:
            SessionNotFoundError, CheckpointNotFoundError, AgentAlreadyRunningError, NotARootSessionError: it cannot be
            rewound.
        """
        check_id(checkpoint_id, "checkpoint id")
        start = await plan_rewind(self._services, check_id(session_id), checkpoint_id)
        return await self._beginnings.to_the_end(rewind_reliably(self._services, self._runtime, start))

    async def get_handle(
        self, agent: Agent[Any, OutputT, Any], session_id: SessionId, run_id: RunId | None = None
    ) -> RunHandle[OutputT] | None:
        """A handle on the session's current run, or on the run with this `run_id`, whichever process drives it, even if
        it is still waiting for its turn; None if there is no such run."""
        check_agent(agent)
        store = self._services.store
        check_id(session_id)
        if run_id is None:
            run = await store.get_current_run(session_id)
        else:
            # In this order, because the run may start between the two checks.
            waiting = await self._turns.waiting(agent, session_id, run_id)
            if waiting is not None:
                return waiting
            run = await store.get_run(run_id)
        if run is None or run.session_id != session_id:
            return None
        if self._runtime.find(run.run_id) is None:
            await repair_stream(self._services, run)
        return self._beginnings.handle_of(agent, run)

    async def can_resume(self, agent: AnyAgent, session_id: SessionId) -> HelixError | None:
        """None if `resume` would continue the session; otherwise the reason why not."""
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
        """Store an answer to a waiting call. This is a durable write and nothing else; the result says what is needed
        next.

        Raises:
            InvalidInputError: it is not an answer, or contradicts itself.
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
        """The calls that wait for an answer, across all sessions.

        Raises:
            InvalidInputError: it is not a filter, or one of its conditions is of the wrong type.
        """
        check_filter(where, PendingFilter, "root_session_id=…")
        return await self._services.store.list_pending(where, offset=offset, limit=limit)

    async def usage_by_day(self, where: UsageFilter | None = None) -> tuple[UsageOfDay, ...]:
        """The usage of all sessions, added up per day (in UTC), agent and source; the newest day first.

        Raises:
            InvalidInputError: it is not a filter, or one of its conditions is of the wrong type.
        """
        check_filter(where, UsageFilter, "session_id=…")
        return await self._usage.get_usage_by_day(where)

    async def interrupt(self, session_id: SessionId, reason: str | None = None) -> InterruptOutcome:
        """Stop the running run, keeping what it did. A session that waits is settled as interrupted.

        The stop reaches everything below the session.

        Raises:
            SessionNotFoundError, NotARootSessionError: there is nothing here to stop.
        """
        return await self._stop(session_id, reason, "interrupt")

    async def abort(self, session_id: SessionId, reason: str | None = None) -> InterruptOutcome:
        """Fail the running or waiting run for good. The stop reaches everything below the session.

        Raises:
            SessionNotFoundError, NotARootSessionError: there is nothing here to stop.
        """
        return await self._stop(session_id, reason, "abort")

    async def recover(self) -> Recovered:
        """Continue runs whose process died, each as the next attempt of the same run. Each run goes to exactly one
        process.

        A round that has started continues even if its caller is cancelled, because no other process would find a run
        that it has claimed.
        """
        self._runtime.check_loop()
        return await self._beginnings.to_the_end(recover(self._services, self._runtime, self._left))

    async def sweep(self) -> Swept:
        """Run one round of the janitor now, and tell webhooks what they are owed. Like a round of `recover`, it
        continues even if its caller is cancelled."""
        return await self._beginnings.to_the_end(self._sweep())

    async def idle(self) -> None:
        """Wait until this process drives no run, and starts none that waited here for another run to end."""
        await self._runtime.idle()
        while await self._queue.may_begin():
            await self._runtime.idle()

    async def close(self) -> None:
        """Start nothing new, give running steps their grace period, then release the rest."""
        if self._runtime.leaving:
            return
        try:
            with told_if_it_takes_long(self._grace):
                await self._runtime.leave(self._grace)
            await self._caretakers.webhook_teller.leave(self._grace)
        finally:
            # Even if the caller does not want to wait any longer.
            await self._let_go()

    async def _let_go(self) -> None:
        await self._runtime.let_go()
        await self._models.close()
        await self._caretakers.webhook_teller.close()
        await close_all_of(self._services.agents.everyone())
        if self._on_close is not None:
            await self._on_close()

    # -- inside

    def _attend_remotes(self) -> None:
        self._caretakers.remotes.attend()

    def _run_ended(self) -> None:
        self._caretakers.webhook_teller.look()

    async def _sweep(self) -> Swept:
        # After the janitor, whose work ends runs, and apart from it: its own rounds wait for no webhook or embedder.
        try:
            swept = await self.janitor.sweep()
        finally:
            told = await self.webhooks.tell()
            await self.memory_rounds.sweep()
        return replace(swept, told=told)

    def _has_begun(self, session_id: SessionId, after_a_pause: bool) -> None:
        self._queue.goes_on(session_id, after_a_pause=after_a_pause)

    def _wrap(self, ops: Ops) -> Ops:
        """The effects as the loop of a run here gets them; override this to watch them."""
        return ops

    async def _stop(self, session_id: SessionId, reason: str | None, kind: StopKind) -> InterruptOutcome:
        session = await self._services.store.load_state(check_id(session_id))
        if session.parent_session_id is not None:
            raise NotARootSessionError(session_id, session.root_session_id)
        outcome = await stop_session(self._services, session_id, kind, reason)
        self._run_ended()
        return outcome

    def _know(self, agent: AnyAgent) -> None:
        """Make sure that recovery in this process finds the run's agent by name."""
        check_agent(agent)
        if self._runtime.leaving or not self._is_open:
            raise ExecutorClosedError
        self._runtime.check_loop()
        if self._services.agents.find(agent.name) is not agent:
            self._services.agents.check_handoffs(agent)
            self._services.agents.replace(agent)
            self._caretakers.waker.look()


_: type[AgentExecutor] = ExecutorCore
