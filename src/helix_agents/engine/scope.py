"""What one attempt of a run holds in memory: the session as last committed, and the means to change it."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.context import RunTrace
from helix_agents.agent.hooks import SomeHooks, ordered
from helix_agents.agent.state_draft import StateDraft
from helix_agents.domain.chunks import ChunkHeader, Custom, StreamChunk, SubagentEnd, ToolEnd, ToolError
from helix_agents.domain.errors import ChunkTooLargeError
from helix_agents.domain.ids import RunId, StepId, StreamId, ToolCallId
from helix_agents.domain.messages import AssistantMessage, Message, UserMessage
from helix_agents.domain.records import JSON, encode
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.sessions import ChildWait, SessionState
from helix_agents.domain.traces import trace_of
from helix_agents.domain.usage import UsageEntry
from helix_agents.domain.writes import StepWrites, WriteOp, apply_writes, write_into
from helix_agents.engine.carried import Carried
from helix_agents.engine.children.errands import errand_of_run
from helix_agents.engine.desk import Desk, Failure, Note
from helix_agents.engine.log import log_event
from helix_agents.engine.services import Services
from helix_agents.engine.steps.call_ids import CallIds
from helix_agents.engine.steps.corrections import Corrections
from helix_agents.engine.steps.shown import Shown, has_to_be_picked
from helix_agents.engine.steps.stop_watch import StopSignal
from helix_agents.engine.workspace_in_hand import WorkspaceInHand
from helix_agents.ports.llm import LLMAdapter
from helix_agents.ports.streams import StreamWriter

ChunkT = TypeVar("ChunkT", bound=ChunkHeader)

DEPTH = "helix.depth"
"""Metadata key of a session that another service delegated to us: how many agents are above it over there."""


EndOfCall: TypeAlias = ToolEnd | ToolError | SubagentEnd


class OfRun(NamedTuple):
    """What a run has whichever agent works in it: hooks of the agents above, and what the caller gave for it alone."""

    above: SomeHooks = None
    hooks: SomeHooks = None
    model: LLMAdapter | None = None


class OpenStep(NamedTuple):
    """The step that a run is in, and how many rounds of work it has had since the model's reply."""

    step: int
    round: int


def step_id_of(run_id: RunId, step: int) -> StepId:
    """The name of a step that a run starts."""
    return f"{run_id}.{step}"


class RunScope:
    """One attempt of one run, in one process.

    `session`, `transcript` and `custom_state` follow the store: they change after a commit, and only then, except that
    the transcript already includes the notices that are carried.

    `carried` is what the next commit takes along. `parsed` has the validated arguments of planned calls, so that
    running them need not parse again. `companion_waits` has what calls of companions wait for.

    A scope `is_shared` if other processes run effects of the same attempt; what rests at the desk was then already
    streamed. `stream_ended` says that the run's last commit also ended its stream.

    `shown` is what the model sees of the transcript if that is not all of it: summaries replace older parts, what was
    told about skills moves to the instructions, and what another user was told is left out.

    `budgets` come from the agent and from the caller of the turn. If the run `shares_budget`, its sub-agents spend from
    one of them as well, or from one of an agent that may take over.
    """

    def __init__(
        self,
        services: Services,
        agent: AnyAgent,
        *,
        session: SessionState,
        run: RunRecord,
        transcript: list[Message],
        writer: StreamWriter,
        desk: Desk,
        stop: StopSignal,
        given: OfRun,
        deps: Any = None,
        parent: "RunScope | None" = None,
        delegated_by: ToolCallId | None = None,
    ) -> None:
        self.services = services
        self.given = given
        self.session = session
        self.custom_state: dict[str, JSON] = dict(session.custom_state)
        self._grown: set[str] = set()
        self.run = run
        self.transcript = transcript
        self.carried = Carried(transcript)
        self.writer = writer
        self.desk = desk
        self.stop = stop
        self.deps = deps
        self.parent = parent
        self.delegated_by = delegated_by
        self.spends_from_above: bool = parent is not None and (parent.shares_budget or parent.spends_from_above)
        self.depth: int = _depth_above(session) if parent is None else parent.depth + 1
        is_child = session.parent_session_id is not None
        self.call_ids = CallIds(transcript, suffix=session.session_id[-6:] if is_child else None)
        self.corrections = Corrections(transcript)
        self.work_as(agent)
        self.failure: Failure | None = None
        self.workspace = WorkspaceInHand(session.workspace_ref)
        self.parsed: dict[ToolCallId, Mapping[str, Any]] = {}
        self.is_shared = False
        self.stream_ended = False
        self._ends_told: set[bytes] = set()
        self.companion_waits: dict[ToolCallId, ChildWait] = {}
        self.companion_starts = asyncio.Lock()
        self._emitted: deque[Custom] = deque()
        self._emitting: asyncio.Task[None] | None = None

    def work_as(self, agent: AnyAgent) -> None:
        """Let this agent do the work from here on: the run's first one, or one that takes over between two steps."""
        given, services, session = self.given, self.services, self.session
        self.agent = agent
        self.model: LLMAdapter = given.model or services.adapter_of(agent.model)
        self.hooks = ordered(parent=given.above, executor=services.hooks, agent=agent.hooks, call=given.hooks)
        self.budgets = tuple(each for each in (agent.budget, session.budget) if each is not None)
        # What is used now counts for the agents that may take over as well.
        heirs = services.agents.circle_of(agent).values() if agent.handoffs else ()
        self._budgets_ahead = tuple(each.budget for each in heirs if each.budget is not None)
        self.shares_budget = any(budget.scope == "tree" for budget in (*self.budgets, *self._budgets_ahead))
        self.counts_spending = bool(self.budgets) or bool(self._budgets_ahead) or self.spends_from_above
        picks = agent.compaction is not None or agent.skill_provider is not None
        picks = picks or has_to_be_picked(self.transcript, session.user_id)
        self.shown = Shown(self.transcript, session.user_id) if picks else None
        self._place = about_run(session, self.run, agent.name, 0)

    @property
    def stream_id(self) -> StreamId:
        """The stream that readers follow; a child writes to its root's stream."""
        if self.parent is not None:
            return self.parent.stream_id
        return self.session.stream_id or self.session.session_id

    @property
    def entered_meanwhile(self) -> tuple[UserMessage, ...]:
        """User messages that arrived while calls of this step were open; they follow the results."""
        suspended = self.session.suspension_context
        return suspended.entry_messages if suspended is not None else ()

    @property
    def user_went_on(self) -> bool:
        """Whether the user sent a new message while calls of this step, or of a step above it, were open."""
        if self.entered_meanwhile:
            return True
        return self.parent is not None and self.parent.user_went_on

    @property
    def is_given_up(self) -> bool:
        """Whether that new message started a turn of its own, in which case the open calls are not waited for. A
        message that came with an answer still waits for the other calls, and so do the children."""
        suspended = self.session.suspension_context
        if suspended is not None and suspended.entry_messages and suspended.step == 0:
            return True
        return self.parent is not None and self.parent.is_given_up

    @property
    def keeps_tools_apart(self) -> bool:
        """Whether each tool runs in a task of its own.

        A durable engine cannot tell a tool that cancels its own task from a run that is being released. In one process,
        a run pays for the extra task only after its driver was lost once.
        """
        repeats = self.run.attempt > 1 or self.desk.is_durable
        return repeats or (self.parent is not None and self.parent.keeps_tools_apart)

    @property
    def counts_dollars(self) -> bool:
        """Whether this run, one above it, or an agent that may take over has a budget in dollars."""
        above = self.parent is not None and self.spends_from_above and self.parent.counts_dollars
        budgets = (*self.budgets, *self._budgets_ahead)
        return above or any(budget.cost_usd is not None for budget in budgets)

    @property
    def open_step(self) -> OpenStep:
        """The step and round that follow the run's last commit."""
        held = self.session.suspension_context
        return OpenStep(self.session.step_count + 1, 0) if held is None else OpenStep(held.step, held.round + 1)

    async def note(self, step: int, name: str, note: Note) -> None:
        """Keep something for the next commit, in whichever process; it replaces a note of the same name."""
        self.take_note(name, note)
        await self.desk.put_note(self.step_id(step), name, note)

    def take_note(self, name: str, note: Note) -> None:
        """Apply a note to this scope."""
        self.carried.take(name, note)
        self.failure = note.failure or self.failure
        self.workspace.take(note)
        if note.waits_for is not None:
            self.companion_waits[name] = note.waits_for

    def step_id(self, step: int) -> StepId:
        """The step's name in the store; a suspended step keeps the name that its first run gave it."""
        suspended = self.session.suspension_context
        if suspended is not None and suspended.step == step:
            return suspended.step_id
        return step_id_of(self.run.run_id, step)

    def idempotency_key(self, step: int, tool_call_id: ToolCallId) -> str:
        """The same key for every attempt to run this call. Call ids may repeat after a rewind, step ids do not."""
        return f"{self.step_id(step)}:{tool_call_id}"

    def last_reply(self) -> AssistantMessage | None:
        """The model's last committed reply."""
        return next((each for each in reversed(self.transcript) if isinstance(each, AssistantMessage)), None)

    def take_state(self, custom_state: dict[str, JSON]) -> None:
        """Replace the state by what is stored now: it was changed from outside the run."""
        self.custom_state = dict(custom_state)
        self._grown.clear()

    def step_done(self, writes: Iterable[WriteOp]) -> None:
        """Apply the state writes of the last commit, and drop everything else that the commit took."""
        write_into(self.custom_state, writes, self._grown)
        self.carried.clear()
        self.parsed.clear()
        self.workspace.files_changed = False
        self._ends_told.clear()
        self.desk.clear()

    def draft(self, *writes: StepWrites) -> StateDraft[Any]:
        """A draft of the committed state with the given earlier writes of this step applied."""
        base = self.custom_state
        for each in (*self.carried.writes, *writes):
            base = apply_writes(base, each.ops)
        return self.agent.draft(base)

    def about(self, step: int) -> dict[str, Any]:
        """What user code is told about where it runs."""
        return {**self._place, "step": step}

    # -- the stream

    def chunk(self, kind: Callable[..., ChunkT], step: int, **fields: Any) -> ChunkT:
        """A chunk of this run, timestamped now."""
        session = self.session
        return kind(
            session_id=session.session_id,
            run_id=self.run.run_id,
            agent_type=self.agent.name,
            step=step,
            timestamp=self.services.clock.now_ms(),
            parent_tool_call_id=self.delegated_by,
            **fields,
        )

    async def show(self, chunk: StreamChunk) -> None:
        """Write a chunk that is on record elsewhere as well; if it is too large, readers find it only there."""
        try:
            await self.writer.write(chunk)
        except ChunkTooLargeError:
            return

    def emit(self, chunk: Custom) -> None:
        """Put an event of user code into the stream; the caller does not wait."""
        self._emitted.append(chunk)
        if self._emitting is None or self._emitting.done():
            self._emitting = asyncio.create_task(self._write_emitted())

    async def emitted(self) -> None:
        """Wait until all events of user code are in the stream, so that later chunks come after them."""
        if self._emitting is not None:
            await self._emitting

    async def said(self) -> None:
        """Make sure that everything is in the stream before another process continues from here."""
        if self.is_shared:
            await self.emitted()
            await self.writer.flush()

    def take_ends_told(self, chunks: Iterable[StreamChunk]) -> None:
        """Record what readers were already told, by an effect that is repeated here or by one that ran elsewhere."""
        self._ends_told.update(_end_told_by(chunk) for chunk in chunks if isinstance(chunk, EndOfCall))

    def was_told(self, end: EndOfCall) -> bool:
        """Whether readers already know of this end of a call, with the same result. A delegation ends only once."""
        return bool(self._ends_told) and _end_told_by(end) in self._ends_told

    async def discard_step(self, step: int) -> None:
        """Take back from readers what a failed model call streamed."""
        streams = self.services.streams
        if self.parent is not None:
            # Other runs write to the same stream: only this run's chunks are removed.
            await self.writer.flush()
            await streams.cleanup_to_step(self.stream_id, self.run.run_id, step - 1)
            return
        await self.writer.close()
        self.writer = await streams.create_writer(
            self.stream_id,
            self.run.run_id,
            self.agent.name,
            turn=self.run.turn,
            attempt=self.run.attempt,
            step=step,
        )

    # -- usage

    def usage_entry(self, step: int, **fields: Any) -> UsageEntry:
        """Something that this step used; the commit numbers it."""
        session = self.session
        return UsageEntry(
            session_id=session.session_id,
            root_session_id=session.root_session_id,
            run_id=self.run.run_id,
            attempt=self.run.attempt,
            step=step,
            agent_type=self.agent.name,
            user_id=session.user_id,
            **fields,
        )

    async def _write_emitted(self) -> None:
        while self._emitted:
            event = self._emitted.popleft()
            try:
                await self.writer.write(event)
            except ChunkTooLargeError as problem:
                # The code that emitted the event has moved on and cannot be told.
                log_event("stream.event_dropped", session_id=self.session.session_id, reason=str(problem))


def about_run(session: SessionState, run: RunRecord, agent: str, step: int) -> dict[str, Any]:
    """What user code is told about where it runs."""
    return {
        "session_id": session.session_id,
        "run_id": run.run_id,
        "step": step,
        "attempt": run.attempt,
        "agent": agent,
        "user_id": session.user_id,
        "tags": session.tags,
        "metadata": session.metadata,
        "parent_session_id": session.parent_session_id,
        "trace": _trace_of(session, run),
    }


def _trace_of(session: SessionState, run: RunRecord) -> RunTrace:
    """Where a run belongs in its trace; nothing of it changes during the run."""
    context = session.tracing_context
    return RunTrace(
        trace_id=trace_of(session),
        root_session_id=session.root_session_id,
        turn=run.turn,
        started_at=run.started_at,
        parent_span_id=None if context is None else context.parent_span_id,
        previous_run_id=run.previous_run_id,
        errand=errand_of_run(session, run),
        queued_at=session.queued_at,
    )


def _end_told_by(chunk: EndOfCall) -> bytes:
    if isinstance(chunk, SubagentEnd):
        # Call ids may repeat after a rewind; the ids of child sessions do not.
        return encode([type(chunk).__name__, chunk.child_session_id])
    told = chunk.error if isinstance(chunk, ToolError) else chunk.result
    return encode([type(chunk).__name__, chunk.tool_call_id, told])


def _depth_above(session: SessionState) -> int:
    """The depth that a calling service reported, so that services that delegate to each other come to an end. A caller
    that misstates it can only shorten its own reach."""
    told = session.metadata.get(DEPTH, "0")
    return int(told) if told.isascii() and told.isdigit() and len(told) < 4 else 0
