"""What one attempt of a run holds in memory: the session as last committed, and the means to change it."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.context import (
    Approval,
    EntryLink,
    RunContext,
    RunInfo,
    RunLink,
    RunTrace,
    ToolContext,
    UsageReport,
)
from helix_agents.agent.hook_events import HookEvent
from helix_agents.agent.hooks import HookFailure, SomeHooks, ordered
from helix_agents.agent.state_draft import StateDraft
from helix_agents.agent.surroundings import Surroundings
from helix_agents.domain.budgets import Spending
from helix_agents.domain.chunks import ChunkHeader, Custom, StreamChunk, SubagentEnd, ToolEnd, ToolError
from helix_agents.domain.entries import Change
from helix_agents.domain.errors import ChunkTooLargeError
from helix_agents.domain.ids import RunId, StepId, StreamId, ToolCallId
from helix_agents.domain.memories import MemoryId
from helix_agents.domain.messages import AssistantMessage, Message, UserMessage
from helix_agents.domain.records import JSON, encode
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.sessions import ChildWait, SessionState
from helix_agents.domain.sub_sessions import SubSessionRefUpdate
from helix_agents.domain.traces import trace_of
from helix_agents.domain.usage import UsageEntry
from helix_agents.domain.writes import NO_WRITES, StepWrites, WriteOp, apply_writes, write_into
from helix_agents.engine.children.errands import errand_of_run
from helix_agents.engine.desk import CHANGING, SPENDING, WORKSPACE, Desk, Failure, Note, RestingReply
from helix_agents.engine.log import log_event, log_exception
from helix_agents.engine.services import Services
from helix_agents.engine.steps.call_ids import CallIds
from helix_agents.engine.steps.corrections import Corrections
from helix_agents.engine.steps.shown import Shown, has_to_be_picked
from helix_agents.engine.steps.stop_watch import StopSignal
from helix_agents.engine.workspace_in_hand import WorkspaceInHand
from helix_agents.ports.llm import LLMAdapter
from helix_agents.ports.streams import StreamWriter
from helix_agents.ports.workspaces import WorkspaceFiles

ChunkT = TypeVar("ChunkT", bound=ChunkHeader)

DEPTH = "helix.depth"
"""Metadata key of a session that another service delegated to us: how many agents are above it over there."""


EndOfCall: TypeAlias = ToolEnd | ToolError | SubagentEnd


class OfRun(NamedTuple):
    """What a run has whichever agent works in it: hooks of the agents above, and what the caller gave for it alone."""

    above: SomeHooks = None
    hooks: SomeHooks = None
    model: LLMAdapter | None = None


class OfHooks(NamedTuple):
    """What the hooks of one event leave for the commit."""

    writes: StepWrites = NO_WRITES
    usage: tuple[UsageEntry, ...] = ()


class OpenStep(NamedTuple):
    """The step that a run is in, and how many rounds of work it has had since the model's reply."""

    step: int
    round: int


class Notes:
    """What user code counted while it ran in a round of a step, and what state capabilities left for the commit."""

    def __init__(self, round: int = 0) -> None:
        self.round = round
        self.reports: list[UsageReport] = []
        self.entries: list[Change] = []
        self.audit: list[dict[str, JSON]] = []


def step_id_of(run_id: RunId, step: int) -> StepId:
    """The name of a step that a run starts."""
    return f"{run_id}.{step}"


class RunScope:
    """One attempt of one run, in one process.

    `session`, `transcript` and `custom_state` follow the store: they change after a commit, and only then, except that
    the transcript already includes `notices`.

    The next commit takes all of these: `notices`, hidden messages that the model already sees; `carried`, writes of
    hooks that ran between two commits; `stale_effects`, ledger entries that no run will return to, and
    `forgotten_children`, which were let go of for the same reason. `told_with_reply`
    are the notices that are stored with the reply they preceded; the other notices have a note each.

    `unknown` has the notes of calls whose outcome a person must be asked about from this round on. `parsed` has the
    validated arguments of planned calls, so that running them need not parse again.

    A scope `is_shared` if other processes run effects of the same attempt; what rests at the desk was then already
    streamed. `stream_ended` says that the run's last commit also ended its stream.

    `shown` is what the model sees of the transcript if that is not all of it: summaries replace older parts, what was
    told about skills moves to the instructions, and what another user was told is left out.

    `budgets` come from the agent and from the caller of the turn. If the run `shares_budget`, its sub-agents spend from
    one of them as well.
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
        self.remembered: tuple[MemoryId, ...] | None = None
        self.workspace = WorkspaceInHand(session.workspace_ref)
        self.migration: StepWrites = NO_WRITES
        self._notes: dict[str, Note] = {}
        self.parsed: dict[ToolCallId, Mapping[str, Any]] = {}
        self.notices: list[UserMessage] = []
        self.told_with_reply: list[UserMessage] = []
        self.late_answers: tuple[ToolCallId, ...] = ()
        self.stale_effects: tuple[ToolCallId, ...] = ()
        self.forgotten_children: tuple[SubSessionRefUpdate, ...] = ()
        self.is_shared = False
        self.stream_ended = False
        self._ends_told: set[bytes] = set()
        self.unknown: dict[ToolCallId, Note] = {}
        self.companion_waits: dict[ToolCallId, ChildWait] = {}
        self.companion_starts = asyncio.Lock()
        self.settled_companions: tuple[SubSessionRefUpdate, ...] = ()
        self.news_told = False
        self.news_changes: tuple[Change, ...] = ()
        self._step_entries: list[Change] = []
        self._emitted: deque[Custom] = deque()
        self._emitting: asyncio.Task[None] | None = None

    def work_as(self, agent: AnyAgent) -> None:
        """Let this agent do the work from here on: the run's first one, or one that takes over between two steps."""
        given, services, session = self.given, self.services, self.session
        self.agent = agent
        self.model: LLMAdapter = given.model or services.adapter_of(agent.model)
        self.hooks = ordered(parent=given.above, executor=services.hooks, agent=agent.hooks, call=given.hooks)
        self.budgets = tuple(each for each in (agent.budget, session.budget) if each is not None)
        self.shares_budget = any(budget.scope == "tree" for budget in self.budgets)
        # What is used now counts for the agents that may take over as well.
        heirs = services.agents.circle_of(agent).values() if agent.handoffs else ()
        self._budgets_ahead = tuple(each.budget for each in heirs if each.budget is not None)
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
    def carried(self) -> list[StepWrites]:
        """Writes that wait for the next commit: the migration of the state to a changed type, and what hooks wrote."""
        if not self._notes and not self.migration:
            return []
        noted = (self.migration, *(note.writes for note in self._notes.values()))
        return [writes for writes in noted if writes]

    @property
    def noted_usage(self) -> tuple[UsageEntry, ...]:
        """What hooks that ran between two commits counted."""
        return tuple(entry for note in self._notes.values() for entry in note.usage)

    @property
    def spending_below(self) -> dict[RunId, Spending]:
        """What sub-agents of this step have reported using so far."""
        noted = ((name, note.spending) for name, note in self._notes.items())
        return {name.removeprefix(SPENDING): spending for name, spending in noted if spending is not None}

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
        self._notes[name] = note
        self.tell(note.notices)
        self.late_answers = note.late_answers or self.late_answers
        self.stale_effects = note.stale_effects or self.stale_effects
        self.forgotten_children = note.forgotten or self.forgotten_children
        self.failure = note.failure or self.failure
        if note.remembered is not None:
            self.remembered = note.remembered
        self.workspace.take(note)
        if note.unknown:
            self.unknown[name] = note
        if note.waits_for is not None:
            self.companion_waits[name] = note.waits_for

    def take_entries(self, changes: Iterable[Change]) -> None:
        """Take in what calls of this step changed earlier or in another process."""
        self._step_entries.extend(changes)

    def tell(self, notices: Iterable[UserMessage]) -> None:
        """Show the model hidden messages that the next commit adds to the transcript."""
        for notice in notices:
            self.notices.append(notice)
            self.transcript.append(notice)

    def take_reply(self, reply: RestingReply) -> None:
        """Take in what the model was told before a reply that another process or a dead attempt asked for. No effect in
        the scope that asked, because it has this already."""
        if self.news_told:
            return
        self.tell(reply.notices)
        self.settled_companions = reply.companions
        self.news_told, self.news_changes = True, reply.entries
        self.take_entries(reply.entries)

    def has_note(self, name: str) -> bool:
        """Whether this scope has a note of this name."""
        return name in self._notes

    def tell_with_reply(self, notice: UserMessage) -> None:
        """Show the model a hidden message that is recorded with its reply, whichever try of the step gives it."""
        self.told_with_reply.append(notice)
        self.tell((notice,))

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
        self.migration = NO_WRITES
        self._notes.clear()
        self.parsed.clear()
        self.notices.clear()
        self.told_with_reply.clear()
        self.late_answers = ()
        self.stale_effects = ()
        self.forgotten_children = ()
        self.remembered = None
        self.workspace.files_changed = False
        self.settled_companions = ()
        self.news_told = False
        self.news_changes = ()
        self._step_entries.clear()
        self._ends_told.clear()
        self.unknown.clear()
        self.desk.clear()

    # -- what user code sees

    def info(self, step: int) -> RunInfo:
        """Where something happens, without the state."""
        return RunInfo(**self._about(step))

    def draft(self, *writes: StepWrites) -> StateDraft[Any]:
        """A draft of the committed state with the given earlier writes of this step applied."""
        base = self.custom_state
        for each in (*self.carried, *writes):
            base = apply_writes(base, each.ops)
        return self.agent.draft(base)

    def context(self, step: int, draft: StateDraft[Any], notes: Notes) -> RunContext[Any, Any]:
        """The context of instructions, predicates and hooks."""
        return RunContext(
            **self._about(step), link=self._link(step, draft, notes), deps=self.deps, transcript=self.transcript
        )

    def tool_context(
        self,
        step: int,
        tool_call_id: ToolCallId,
        draft: StateDraft[Any],
        notes: Notes,
        approval: Approval | None = None,
    ) -> ToolContext[Any, Any]:
        """The context of a tool."""
        return ToolContext(
            **self._about(step),
            link=self._link(step, draft, notes),
            deps=self.deps,
            transcript=self.transcript,
            tool_call_id=tool_call_id,
            idempotency_key=self.idempotency_key(step, tool_call_id),
            approval=approval,
        )

    def around(self, step: int, event: HookEvent) -> Surroundings:
        """The hooks around a piece of work; the caller begins them when the work starts."""
        return self.hooks.around(self.info(step), event, self._report)

    async def fire(self, context: RunInfo, event: HookEvent) -> None:
        """Run the hooks of an event; one that raises is logged and the run continues.

        Raises:
            FailRun: a hook wants the run to fail.
        """
        if self.hooks.wants(event.hook):
            await self.hooks.fire(context, event, self._report)

    async def fire_with_draft(self, step: int, event: HookEvent, *before: StepWrites) -> OfHooks:
        """Run hooks that may change the state; returns what they changed and counted.

        Raises:
            FailRun: a hook wants the run to fail.
        """
        if not self.hooks.wants(event.hook):
            return OfHooks()
        draft, notes = self.draft(*before), Notes()
        await self.fire(self.context(step, draft, notes), event)
        return OfHooks(draft.writes(), self.counted(step, notes))

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

    def counted(self, step: int, notes: Notes) -> tuple[UsageEntry, ...]:
        """What user code counted, as entries."""
        return tuple(
            self.usage_entry(
                step,
                source_type="custom",
                source_name=report.name,
                amount=report.amount,
                tokens=report.tokens,
                success=report.success,
                metadata=report.metadata,
            )
            for report in notes.reports
        )

    def _about(self, step: int) -> dict[str, Any]:
        return {**self._place, "step": step}

    def _link(self, step: int, draft: StateDraft[Any], notes: Notes) -> RunLink[Any]:
        return RunLink(
            draft=draft,
            emit=lambda name, data: self.emit(self.chunk(Custom, step, name=name, data=data)),
            record_usage=notes.reports.append,
            is_cancelled=self.stop.requested.is_set,
            entries=self._entry_link(notes),
            memories=self.services.memories,
            open_files=partial(self._open_files, step, notes.round),
        )

    async def _open_files(self, step: int, round: int, *, changes: bool) -> WorkspaceFiles:
        """The session's workspace. A note that it was opened, and that its files may change, is written first, so that
        it is known even if the process dies right after."""
        hand = self.workspace
        files = await hand.open(self.agent, self.session)
        if hand.ref != self.session.workspace_ref and not self.has_note(WORKSPACE):
            await self.note(step, WORKSPACE, Note(round=round, workspace=hand.ref))
        if changes and not hand.files_changed:
            await self.note(step, CHANGING, Note(round=round, changes_files=True))
        return files

    def _entry_link(self, notes: Notes) -> EntryLink:
        def change(each: Change) -> None:
            notes.entries.append(each)
            self._step_entries.append(each)

        return EntryLink(
            store=self.services.entries,
            change=change,
            audit=notes.audit.append,
            step_changes=lambda: tuple(self._step_entries),
            session_exists=lambda: self.services.store.session_exists(self.session.session_id),
        )

    def _report(self, failure: HookFailure) -> None:
        log_exception(
            "hook.failed",
            failure.error,
            hook=failure.hook,
            function=failure.function,
            session_id=self.session.session_id,
            run_id=self.run.run_id,
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
