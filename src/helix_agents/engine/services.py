"""What the effect bodies work with: ports, the registered agents, and a few settings."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from helix_agents.agent.agent import AnyAgent, LoadedState
from helix_agents.agent.calling import RunInThread
from helix_agents.agent.choices import check_whole
from helix_agents.agent.hooks import SomeHooks
from helix_agents.agent.registry import AgentRegistry
from helix_agents.domain.errors import DefinitionError
from helix_agents.domain.ids import SessionId, StreamId, ToolCallId
from helix_agents.domain.records import JSON
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.streams import StreamClaim
from helix_agents.engine.effects import RunEnd
from helix_agents.engine.steps.stop_watch import StopSignal
from helix_agents.ports.clock import Clock, IdSource
from helix_agents.ports.entries import EntryStore
from helix_agents.ports.llm import LLMAdapter
from helix_agents.ports.memory_store import MemoryStore
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.ports.streams import StreamManager

if TYPE_CHECKING:
    from helix_agents.engine.scope import RunScope


class DriveChild(Protocol):
    """How a runtime drives a child's run for its parent's call, until it ends or waits."""

    def __call__(
        self, parent: "RunScope", run: RunRecord, tool_call_id: ToolCallId, stop: StopSignal, /
    ) -> Awaitable[RunEnd]: ...


Liveness: TypeAlias = Literal["alive", "missing", "dead"]
"""Whether a run has a driver: `alive`, yes; `missing`, none was told of it yet; `dead`, the driver is gone."""

OpenDeps: TypeAlias = Callable[[SessionId, str | None], AbstractAsyncContextManager[Any]]
"""Opens what tools need from the process, for one run of a session and its user."""

DAY_MS = 24 * 60 * 60 * 1000

# What a stored result needs besides its content: ids, names and flags.
_ENVELOPE_BYTES = 600


_LEAST = {
    "model_retries": 0,
    "effect_lease_ms": 1,
    "result_bytes": 1,
    "max_depth": 0,
    "max_children_per_step": 0,
    "max_children_per_root": 0,
}
_SECONDS = ("first_retry_seconds", "longest_retry_seconds", "cancel_grace_seconds")


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Settings of an executor that its runs follow: `Executor.open(url, options=EngineOptions(model_retries=5))`.

    Args:
        model_retries: How often an overloaded or unreachable model is asked again within one step.
        first_retry_seconds: How long to wait before the first retry; every further wait is twice as long.
        longest_retry_seconds: If a provider asks to wait longer than this, the run fails instead of waiting, and
            `retry()` continues it later.
        cancel_grace_seconds: How long a tool may still run after it was asked to stop, before it is cancelled.
        pending_deadline_ms: How long a call waits for an answer, unless its tool or agent says otherwise; None is
            forever.
        effect_lease_ms: After how long without a sign of life a `once` tool counts as lost with its process.
        result_bytes: The largest result of a tool.
        max_depth: How deep agents may delegate.
        max_children_per_step: How many sub-agents one reply may start.
        max_children_per_root: How many sub-agents a conversation may have.

    Raises:
        DefinitionError: a value is not a valid number for its setting.
    """

    model_retries: int = 3
    first_retry_seconds: float = 1.0
    longest_retry_seconds: float = 120.0
    cancel_grace_seconds: float = 5.0
    pending_deadline_ms: int | None = 7 * DAY_MS
    effect_lease_ms: int = 30_000
    result_bytes: int = 1_000_000
    max_depth: int = 8
    max_children_per_step: int = 64
    max_children_per_root: int = 1_000

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            check_whole("EngineOptions", name, getattr(self, name), least)
        if self.pending_deadline_ms is not None:
            check_whole(
                "EngineOptions", "pending_deadline_ms", self.pending_deadline_ms, 1, other="; None means forever"
            )
        for name in _SECONDS:
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise DefinitionError("EngineOptions", f"{name}={value!r} is not a number of seconds.")


@dataclass(frozen=True, kw_only=True)
class Services:
    """Everything the effect bodies need from outside, including the clock, ids and sleeping.

    `jitter` returns a factor of about 1, different each time, so that many runs do not retry at the same moment.
    `inspect` says whether a run has a driver, `is_here` whether that driver is this process. `name_workflow` gives the
    name under which a durable engine knows a turn of an agent in a session; in one process there is none.
    `attend_remotes` wakes the task that looks after children behind other services which wait or are still owed a stop.
    `has_webhooks` says that webhooks are told how runs end, and `run_ended` wakes the task that tells them.
    """

    store: SessionStateStore
    streams: StreamManager
    agents: AgentRegistry
    clock: Clock
    ids: IdSource
    adapter_of: Callable[[str | LLMAdapter], LLMAdapter]
    sleep: Callable[[float], Awaitable[None]]
    jitter: Callable[[], float]
    in_thread: RunInThread
    drive_child: DriveChild
    drive_detached: Callable[[RunRecord], object]
    inspect: Callable[[RunRecord], Awaitable[Liveness]]
    name_workflow: Callable[[str, SessionId, int], str | None]
    is_here: Callable[[RunRecord], bool] = lambda _: False
    entries: EntryStore | None = None
    memories: MemoryStore | None = None
    attend_remotes: Callable[[], object] = lambda: None
    has_webhooks: bool = False
    run_ended: Callable[[], object] = lambda: None
    hooks: SomeHooks = None
    options: EngineOptions = field(default_factory=EngineOptions)

    @cached_property
    def chunks_ride_in_commits(self) -> bool:
        """Whether stream and state share a backend, so that a step's chunks can be stored in its transaction."""
        return self.streams.shares_transactions_with(self.store)

    def present_state(self, agent: AnyAgent, custom_state: Mapping[str, JSON], from_version: int) -> LoadedState:
        """Stored state, migrated to the agent's current version and small enough for its store.

        Raises:
            StateSchemaChangedError: the stored state cannot be brought into that form.
        """
        return agent.load_state(custom_state, from_version, most_bytes=self.store.limits.state_bytes)

    def claim_stream(self, stream_id: StreamId, agent_type: str) -> StreamClaim | None:
        """What the start of a run carries to become its stream's writer; None if the stream is in another backend."""
        return self.streams.claim(stream_id, agent_type) if self.chunks_ride_in_commits else None

    def tells(self, before: RunRecord | None = None) -> bool:
        """Whether webhooks are told how a run ends that starts here, or after or below a run that they are told about.
        So a conversation stays one that is told about, whichever process continues it."""
        return self.has_webhooks or (before is not None and before.told is not None)

    @cached_property
    def result_bytes(self) -> int:
        """The largest result of a call that can be stored."""
        limits = self.store.limits
        stored = (limit for limit in (limits.message_bytes, limits.staged_write_bytes) if limit is not None)
        return min([self.options.result_bytes, *(limit - _ENVELOPE_BYTES for limit in stored)])
