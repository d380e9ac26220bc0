"""What the effect bodies work with: ports, the agents they know, and a few settings."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from helix_agents.agent.agent import Agent
from helix_agents.agent.calling import RunInThread
from helix_agents.agent.hooks import SomeHooks
from helix_agents.agent.registry import AgentRegistry
from helix_agents.ports.clock import Clock, IdSource
from helix_agents.ports.llm import LLMAdapter
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.ports.streams import StreamManager

DAY_MS = 24 * 60 * 60 * 1000

# What a stored result needs beside its content: ids, names and flags.
_ENVELOPE_BYTES = 600


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Settings of an executor that its runs follow."""

    model_retries: int = 3
    first_retry_seconds: float = 1.0
    cancel_grace_seconds: float = 5.0
    pending_deadline_ms: int | None = 7 * DAY_MS
    effect_lease_ms: int = 30_000
    result_bytes: int = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Services:
    """The world as the bodies see it. Everything that waits, draws or tells the time comes in from outside.

    `jitter` gives a factor of about 1, different each time, so that many runs do not ask again at the same moment.
    """

    store: SessionStateStore
    streams: StreamManager
    agents: AgentRegistry
    clock: Clock
    ids: IdSource
    model_of: Callable[[Agent[Any, Any, Any]], LLMAdapter]
    sleep: Callable[[float], Awaitable[None]]
    jitter: Callable[[], float]
    in_thread: RunInThread
    hooks: SomeHooks = None
    options: EngineOptions = field(default_factory=EngineOptions)

    @property
    def result_bytes(self) -> int:
        """The largest result of a call that can be stored."""
        limits = self.store.limits
        stored = (limit for limit in (limits.message_bytes, limits.staged_write_bytes) if limit is not None)
        return min([self.options.result_bytes, *(limit - _ENVELOPE_BYTES for limit in stored)])
