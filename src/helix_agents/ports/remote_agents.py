"""Agents in another service: what the engine needs from the transport that reaches them."""

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
    """A session at the other service. The user, and the run's place in the trace of the conversation here, are sent
    only by a transport that is configured to do so. The place in the trace is known from the start. `place` is what the
    transport noted when it started the session, for protocols in which the other service chooses the names.
    """

    session_id: SessionId
    agent: str
    user_id: str | None = None
    trace: str | None = None
    place: str | None = None


class RemoteStatus(Record):
    """The state of the session there."""

    run_id: RunId | None = None
    run_status: RunStatus | None = None
    pending: tuple[PendingCall, ...] = ()
    output: JSON = None
    error: str | None = None
    failure_reason: str | None = None
    interrupt_reason: str | None = None


class RemoteStart(Record):
    """The outcome of a start: what the transport needs to find the session again, if that is more than its id; and
    where the session rests, if the service has answered at once and keeps nothing that could be asked later."""

    place: str | None = None
    rest: RemoteStatus | None = None


class RemoteAnswerRefusedError(Exception):
    """The answer does not fit the call that waits there; the message says why."""


class RemoteAgentTransport(Protocol):
    """Talks to one agent service. It keeps no state: every call names its session, and every call may be repeated.

    Every method raises `RemoteUnavailableError` if asking again later may help, `RemoteRefusedError` if it will not,
    and `RemoteProtocolError` if the reply cannot be understood.
    """

    @property
    def url(self) -> str:
        """The service's address, for people to read."""
        ...

    @property
    def routes_answers(self) -> bool:
        """Whether answers to calls that wait there can be given through this transport."""
        ...

    @property
    def keeps_deadlines(self) -> bool:
        """Whether calls that wait there time out there. If not, one that times out here is answered there with that."""
        ...

    async def start(
        self, session: RemoteSession, message: UserMessage, *, depth: int, again: bool = False
    ) -> RemoteStart:
        """Start the session with its first message; a session that was started before continues as it is.

        `depth` is the number of agents above this one, so that services that delegate to each other come to an end.
        `again` says that an earlier start may have reached the service.
        """
        ...

    async def status(self, session: RemoteSession) -> RemoteStatus | None:
        """The state of the session; None if the service does not know it."""
        ...

    def stream(self, session: RemoteSession, *, after: int) -> AsyncGenerator[StreamChunk, None]:
        """The chunks after a sequence: what is there, then what comes, until the run there ends or waits.

        The end of the iteration is the end of the run; a connection that is lost before that raises.
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
        """Let the session continue with the answers it has."""
        ...

    async def interrupt(self, session: RemoteSession, reason: str | None) -> RemoteStop:
        """Ask the run there to stop, keeping what it did. Any reply means that the request is durable there."""
        ...

    async def abort(self, session: RemoteSession, reason: str | None) -> RemoteStop:
        """Ask the run there to fail for good."""
        ...

    async def snapshot(self, session: RemoteSession) -> dict[str, JSON]:
        """The session's custom state."""
        ...

    async def usage(self, session: RemoteSession) -> UsageRollup:
        """What the session and everything below it have used."""
        ...

    async def delete(self, session: RemoteSession) -> None:
        """Delete the session and everything below it; idempotent."""
        ...
