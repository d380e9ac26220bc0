"""Agents behind another service: what is asked of whoever carries the questions there."""

from collections.abc import AsyncGenerator
from typing import Literal, Protocol, TypeAlias

from helix_agents.domain.chunks import StreamChunk
from helix_agents.domain.ids import RunId, SessionId, ToolCallId
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.pending import Answer, PendingCall
from helix_agents.domain.records import JSON, Record
from helix_agents.domain.runs import RunStatus
from helix_agents.domain.usage import UsageRollup

AnswerRouted: TypeAlias = Literal["accepted", "already_completed", "unknown"]
Resumed: TypeAlias = Literal["going", "waiting", "over"]
RemoteStop: TypeAlias = Literal["stopping", "nothing_running", "unknown"]


class RemoteSession(Record):
    """A session at the other service. The user is told there only by a transport that is set up to, and so is where its
    runs hang in the trace of the conversation here, which is known at the beginning.
    """

    session_id: SessionId
    agent: str
    user_id: str | None = None
    trace: str | None = None


class RemoteStatus(Record):
    """How the session stands there."""

    run_id: RunId | None = None
    run_status: RunStatus | None = None
    pending: tuple[PendingCall, ...] = ()
    output: JSON = None
    error: str | None = None
    failure_reason: str | None = None
    interrupt_reason: str | None = None


class RemoteAnswerRefusedError(Exception):
    """The answer does not fit the call that waits there; the sentence says why."""


class RemoteAgentTransport(Protocol):
    """Speaks to one agent service. It keeps nothing: every call names its session, and every call may be repeated.

    Every method raises `RemoteUnavailableError` when asking again later may help, `RemoteRefusedError` when it will
    not, and `RemoteProtocolError` when the answer is none.
    """

    @property
    def url(self) -> str:
        """Which service; for people."""
        ...

    @property
    def routes_answers(self) -> bool:
        """Whether answers to calls that wait there can be given through this transport."""
        ...

    async def start(self, session: RemoteSession, message: UserMessage, *, depth: int) -> None:
        """Begin the session with its first message; one that was begun before goes on as it is.

        `depth` says how many agents stand above this one, so that services that delegate to each other come to an end.
        """
        ...

    async def status(self, session: RemoteSession) -> RemoteStatus | None:
        """How the session stands; None when the service does not know it."""
        ...

    def stream(self, session: RemoteSession, *, after: int) -> AsyncGenerator[StreamChunk, None]:
        """The chunks after a sequence: what is there, then what comes, until the run there ends or waits.

        The end of the iteration is the end of the run; a connection that is lost before raises.
        """
        ...

    async def submit(
        self, session: RemoteSession, tool_call_id: ToolCallId, answer: Answer, *, approval_id: str | None
    ) -> AnswerRouted:
        """Give the answer to a call that waits there.

        Raises:
            RemoteAnswerRefusedError: it does not fit the call.
        """
        ...

    async def resume(self, session: RemoteSession) -> Resumed:
        """Let the session go on with the answers it has."""
        ...

    async def interrupt(self, session: RemoteSession, reason: str | None) -> RemoteStop:
        """Ask the run there to stop, keeping what it did. Any answer means that the request is durable there."""
        ...

    async def abort(self, session: RemoteSession, reason: str | None) -> RemoteStop:
        """Ask the run there to fail for good."""
        ...

    async def snapshot(self, session: RemoteSession) -> dict[str, JSON]:
        """The session's custom state."""
        ...

    async def usage(self, session: RemoteSession) -> UsageRollup:
        """What the session and everything below it used."""
        ...

    async def delete(self, session: RemoteSession) -> None:
        """Remove the session and everything below it; idempotent."""
        ...
