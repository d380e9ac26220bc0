"""What a tool, a hook or an instruction function knows about its run, and what it can report back."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, Self

import msgspec
from msgspec.structs import replace
from typing_extensions import TypeVar

from helix_agents.agent.schemas import jsonable
from helix_agents.agent.state_draft import StateDraft
from helix_agents.agent.state_type import NoState, StateT
from helix_agents.domain.door import check_name
from helix_agents.domain.entries import Change
from helix_agents.domain.ids import RunId, SessionId, ToolCallId
from helix_agents.domain.messages import AssistantMessage, Message, ToolMessage
from helix_agents.domain.records import JSON, Record, check_record
from helix_agents.domain.usage import TokenCount
from helix_agents.ports.entries import EntryStore
from helix_agents.ports.memory_store import MemoryStore
from helix_agents.ports.workspaces import WorkspaceFiles

DepsT = TypeVar("DepsT", default=Any)
HeldT = TypeVar("HeldT", default=NoState)
GivenT = TypeVar("GivenT", default=Any)


class UsageReport(Record):
    """A usage count reported by user code."""

    name: str
    amount: float = 1
    tokens: TokenCount | None = None
    success: bool = True
    metadata: dict[str, JSON] = {}


class UserEvent(Record):
    """An event that user code sends to the readers of the stream."""

    name: str
    data: JSON = None


def _ignore(*_: object) -> None:
    """There is no listener."""


def _never() -> bool:
    return False


def _nothing() -> tuple[Change, ...]:
    return ()


async def _gone() -> bool:
    return False


async def _no_files(*, changes: bool) -> WorkspaceFiles:
    raise RuntimeError("this agent has no workspace; give it one with Agent(workspace=Workspace(…))")


class OpenFiles(Protocol):
    """Opens the session's workspace, or finds it already open; `changes` says that its files may be changed."""

    def __call__(self, *, changes: bool) -> Awaitable[WorkspaceFiles]: ...


class EntryLink(msgspec.Struct, frozen=True, kw_only=True):
    """Where state capabilities keep their data, and how their changes become part of the step's commit.

    `change` adds changes in the session's own scope to the commit, and `audit` adds lines about what was done.
    `step_changes` returns the changes that other calls of the step have made so far. `session_exists` tells whether the
    session still exists.
    """

    store: EntryStore | None = None
    change: Callable[[Change], object] = _ignore
    audit: Callable[[dict[str, JSON]], object] = _ignore
    step_changes: Callable[[], tuple[Change, ...]] = _nothing
    session_exists: Callable[[], Awaitable[bool]] = _gone


@dataclass(frozen=True, kw_only=True)
class Approval:
    """A person's approval of this very call, what they were shown, and whether they changed the input."""

    approval_id: str
    preview: JSON = None
    edited: bool = False


class RunLink(msgspec.Struct, Generic[StateT], frozen=True, kw_only=True):
    """The engine's side of a context: where its reports go. Of no use to user code."""

    draft: StateDraft[StateT]
    emit: Callable[[str, JSON], object] = _ignore
    record_usage: Callable[[UsageReport], object] = _ignore
    is_cancelled: Callable[[], bool] = _never
    entries: EntryLink = msgspec.field(default_factory=EntryLink)
    memories: MemoryStore | None = None
    open_files: OpenFiles = _no_files

    def from_another_thread(self, loop: asyncio.AbstractEventLoop) -> Self:
        """The same link for a function that runs on a thread: its reports are delivered on the event loop, in order."""
        return replace(
            self,
            emit=partial(loop.call_soon_threadsafe, self.emit),
            record_usage=partial(loop.call_soon_threadsafe, self.record_usage),
        )


class RunTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A run's place among others, for tools that draw the whole conversation.

    All sessions of one tree share a `trace_id`, however many processes and services they pass through. `parent_span_id`
    is set if another service started the conversation: the conversation hangs below that span. `started_at` is in
    milliseconds and the same for each attempt; for a turn that first waited in the queue, `queued_at` is when it was
    requested. A run that works for a call of another agent carries that call's `errand`.
    """

    trace_id: str
    root_session_id: SessionId
    turn: int
    started_at: int
    parent_span_id: str | None = None
    previous_run_id: RunId | None = None
    errand: str | None = None
    queued_at: int | None = None


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Where something happens: the session, run, step and attempt.

    After a crash a step may be done again; `run_id`, `step` and `attempt` let you recognise it. `trace` is None only
    outside any run.
    """

    session_id: SessionId
    run_id: RunId
    step: int
    attempt: int = 1
    agent: str
    user_id: str | None = None
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, str] = {}
    parent_session_id: SessionId | None = None
    trace: RunTrace | None = None


class RunContext(RunInfo, Generic[StateT, DepsT], frozen=True, kw_only=True):
    """The run as instructions, approval predicates and hooks see it.

    `deps` is what the executor's provider opened for this run in this process. `transcript` is the conversation as it
    was when the step started.
    """

    link: RunLink[StateT]
    deps: DepsT
    transcript: Sequence[Message] = ()

    @property
    def state(self) -> StateT:
        """The session's state. Tools and hooks may change it in place; the change is part of the step's commit.

        All tools of one step start with the state before the step. If several append to the same list, all items are
        kept. Of other changes to the same field, only the last is kept, unless the field says how its changes are
        merged; see `Merge`.
        """
        return self.link.draft.value

    @property
    def cancelled(self) -> bool:
        """Whether the run was asked to stop. Whatever is still running after a grace period is cancelled."""
        return self.link.is_cancelled()

    def emit(self, name: str, data: Any = None) -> None:
        """Put your own event into the stream; readers see it at once.

        Raises:
            UnstorableValueError: the name is not text, or the data has no JSON form.
        """
        event = UserEvent(name=name, data=jsonable(data))
        check_record(event)
        self.link.emit(event.name, event.data)

    def record_usage(
        self,
        name: str,
        amount: float = 1,
        *,
        tokens: TokenCount | None = None,
        success: bool = True,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Count your own usage. It is stored with the step and added up under its name.

        Raises:
            UnstorableValueError: a value has the wrong type, or has no JSON form.
        """
        report = UsageReport(
            name=name, amount=amount, tokens=tokens, success=success, metadata=jsonable(metadata or {})
        )
        check_record(report)
        check_name(name, "name of what was used")
        self.link.record_usage(report)

    def for_thread(self, loop: asyncio.AbstractEventLoop) -> Self:
        """The same context for a function that runs on a thread beside the event loop."""
        return replace(self, link=self.link.from_another_thread(loop))


class ToolContext(RunContext[StateT, DepsT], frozen=True, kw_only=True):
    """The run as a tool sees it. The engine fills in a parameter of this type, at any position.

    `idempotency_key` is the same for every attempt to run this call: pass it to the service you call, so that the
    service recognises a repetition. `approval` is set if a person approved the call.
    """

    tool_call_id: ToolCallId
    idempotency_key: str
    approval: Approval | None = None

    @staticmethod
    def standalone(
        state: HeldT | None = None,
        deps: GivenT | None = None,
        *,
        emit: Callable[[str, JSON], object] = _ignore,
        record_usage: Callable[[UsageReport], object] = _ignore,
        transcript: Sequence[Message] = (),
    ) -> "ToolContext[HeldT, GivenT]":
        """A context outside any run, for calling a tool as a plain function in a test; `state` is changed in place."""
        held: Any = NoState() if state is None else state
        context: ToolContext[Any, Any] = ToolContext(
            session_id="session-1",
            run_id="run-1",
            step=1,
            agent="agent",
            tool_call_id="call-1",
            idempotency_key="run-1:call-1",
            deps=deps,
            transcript=transcript,
            link=RunLink(draft=StateDraft.holding(held), emit=emit, record_usage=record_usage),
        )
        return context

    async def workspace(self) -> WorkspaceFiles:
        """The session's workspace, for your own async tool that works on the same files as the model.

        Raises:
            RuntimeError: the agent has no workspace.
            WorkspaceFailedError: the workspace is not available.
        """
        return await self.link.open_files(changes=True)


@dataclass(frozen=True, kw_only=True)
class CompletedStep(Generic[StateT]):
    """A complete step, which `stop_when` judges before it is committed. After a crash the same step may be judged
    again.

    `number` counts from 1 within the turn.
    """

    number: int
    max_steps: int
    reply: AssistantMessage
    results: tuple[ToolMessage, ...] = ()
    usage: TokenCount
    draft: StateDraft[StateT]

    @property
    def state(self) -> StateT:
        """The state as the step leaves it. Read only: changes to it are not kept."""
        return self.draft.value

    def called(self, tool_name: str) -> bool:
        """Whether the model called this tool in this step."""
        return any(call.name == tool_name for call in self.reply.tool_calls)
