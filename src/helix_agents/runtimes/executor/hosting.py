"""What a host, such as the agent server, needs of an executor; every runtime has it, and so may one of your own."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.registry import AgentRegistry
from helix_agents.domain.checkpoints import Checkpoint
from helix_agents.domain.chunks import StreamChunk
from helix_agents.domain.ids import CheckpointId, RunId, SessionId, ToolCallId
from helix_agents.domain.messages import StoredMessage
from helix_agents.domain.paging import DEFAULT_LIMIT, Page
from helix_agents.domain.pending import Answer, AnswerOutcome, PendingCall, PendingFilter
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.sessions import InterruptOutcome, SessionFilter, SessionState, SessionSummary
from helix_agents.domain.sub_sessions import SubSessionRef
from helix_agents.domain.usage import UsageRollup
from helix_agents.engine.requests.snapshot import SessionSnapshot
from helix_agents.engine.requests.start_plans import ResumeMode
from helix_agents.ports.locks import LockManager
from helix_agents.runtimes.executor.inputs import Input
from helix_agents.runtimes.executor.recovery import Recovered


class HostedRun(Protocol):
    """A handle on one run. One that says `is_driven_here` spares a host the looks for what became of its process."""

    @property
    def session_id(self) -> SessionId: ...

    @property
    def run_id(self) -> RunId: ...

    def stream(self, *, from_sequence: int | None = None) -> AsyncGenerator[StreamChunk, None]: ...

    async def result(self) -> Any: ...

    async def usage(self) -> UsageRollup: ...


class HostedSessions(Protocol):
    """What is stored."""

    def now_ms(self) -> int: ...

    async def get(self, session_id: SessionId) -> SessionState: ...

    async def find(self, session_id: SessionId) -> SessionSummary | None: ...

    async def list(
        self, where: SessionFilter | None = None, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[SessionSummary]: ...

    async def messages(
        self, session_id: SessionId, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[StoredMessage]: ...

    async def runs(self, session_id: SessionId, *, offset: int = 0, limit: int = DEFAULT_LIMIT) -> Page[RunRecord]: ...

    async def delegations(self, session_id: SessionId) -> tuple[SubSessionRef, ...]: ...

    async def count_running(self, user_id: str | None) -> int: ...

    async def checkpoints(
        self, session_id: SessionId, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[Checkpoint]: ...

    async def snapshot(self, session_id: SessionId) -> SessionSnapshot: ...

    async def delete(self, session_id: SessionId, *, unless_running: bool = False) -> None: ...


class AgentExecutor(Protocol):
    """An executor as it is hosted, whatever runtime is behind it.

    `locks` are shared by all processes on the store; without them limits that hold for all of them are kept roughly.
    """

    @property
    def agents(self) -> AgentRegistry: ...

    @property
    def sessions(self) -> HostedSessions: ...

    @property
    def locks(self) -> LockManager | None: ...

    async def execute(
        self,
        agent: AnyAgent,
        input: Input,
        session_id: SessionId | None = None,
        *,
        state: Any = None,
        user_id: str | None = None,
        tags: Sequence[str] = (),
        metadata: dict[str, str] | None = None,
        idempotency_key: str | None = None,
        only_new: bool = False,
    ) -> HostedRun: ...

    async def resume(
        self,
        agent: AnyAgent,
        session_id: SessionId,
        *,
        mode: ResumeMode = "continue",
        message: Input | None = None,
        checkpoint_id: CheckpointId | None = None,
    ) -> HostedRun: ...

    async def retry(self, agent: AnyAgent, session_id: SessionId) -> HostedRun: ...

    async def get_handle(self, agent: AnyAgent, session_id: SessionId) -> HostedRun | None: ...

    async def submit_tool_result(
        self, session_id: SessionId, tool_call_id: ToolCallId, answer: Answer, *, approval_id: str | None = None
    ) -> AnswerOutcome: ...

    async def list_pending(
        self, where: PendingFilter | None = None, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[PendingCall]: ...

    async def interrupt(self, session_id: SessionId, reason: str | None = None) -> InterruptOutcome: ...

    async def abort(self, session_id: SessionId, reason: str | None = None) -> InterruptOutcome: ...

    async def sweep(self) -> Any: ...

    async def recover(self) -> Recovered: ...

    async def close(self) -> None: ...
