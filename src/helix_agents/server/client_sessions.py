"""The stored conversations of an agent server, as a client reads them."""

from collections.abc import Sequence
from typing import Any, TypeVar, cast, overload
from urllib.parse import quote, urlencode

from msgspec import structs

from helix_agents.domain.errors import RemoteRefusedError, SessionNotFoundError
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.messages import StoredMessage, UserMessage
from helix_agents.domain.paging import DEFAULT_LIMIT, Page
from helix_agents.domain.pending import PendingCall
from helix_agents.domain.queued import (
    ChangeOutcome,
    DropOutcome,
    NotQueued,
    QueuedTurn,
    QueuedTurnBegun,
    QueuedTurnChanged,
    QueuedTurnDropped,
)
from helix_agents.domain.records import JSON, Record
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.sessions import SessionSummary
from helix_agents.runtimes.executor.inputs import Input, messages_of
from helix_agents.server.answers import (
    MessagePage,
    PendingPage,
    QueuedMessages,
    RunOutcome,
    RunPage,
    SessionDetail,
    SessionPage,
)
from helix_agents.server.client_run import session_path
from helix_agents.server.connection import Connection
from helix_agents.server.wire import to_wire

T = TypeVar("T")


class ClientSessions:
    """The caller's stored conversations."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def get(self, session_id: SessionId) -> SessionDetail:
        """One session with its state.

        Raises:
            SessionNotFoundError: it does not exist, or belongs to another user.
        """
        return await self._ask(SessionDetail, "GET", session_id)

    async def list(
        self, *, agent: str | None = None, tag: str | None = None, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[SessionSummary]:
        """The caller's sessions, newest first; for an operator, everybody's."""
        query = {name: value for name, value in (("agentType", agent), ("tag", tag)) if value is not None}
        path = f"/sessions?{urlencode({**query, 'offset': offset, 'limit': limit})}"
        return page_of(await self._connection.ask(SessionPage, "GET", path))

    async def messages(
        self, session_id: SessionId, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[StoredMessage]:
        """A page of the transcript, newest first."""
        page = await self._ask(MessagePage, "GET", session_id, "/messages", offset=offset, limit=limit)
        items = tuple(StoredMessage(**structs.asdict(each)) for each in page.items)
        return Page(items=items, total=page.total, offset=page.offset, limit=page.limit)

    async def runs(self, session_id: SessionId, *, offset: int = 0, limit: int = DEFAULT_LIMIT) -> Page[RunRecord]:
        """The session's turns, newest first."""
        return page_of(await self._ask(RunPage, "GET", session_id, "/runs", offset=offset, limit=limit))

    async def queued(self, session_id: SessionId) -> tuple[QueuedTurn, ...]:
        """The messages that wait in a session, in the order in which they are to be taken."""
        return (await self._ask(QueuedMessages, "GET", session_id, "/queue")).items

    async def change_queued(
        self,
        session_id: SessionId,
        run_id: RunId,
        *,
        message: Input | None = None,
        steers: bool | None = None,
        first: bool = False,
    ) -> ChangeOutcome:
        """Change a message that waits: what it says, whether the run in progress is to take it in, or that it comes
        first among its like.

        Raises:
            InvalidInputError: a message is not valid.
            RemoteRefusedError: the run in progress could not take it in.
        """
        body: dict[str, JSON] = {"first": first}
        body |= {} if message is None else {"message": spoken(messages_of(message))}
        body |= {} if steers is None else {"steers": steers}
        try:
            place = _in_queue(session_id, run_id)
            return QueuedTurnChanged(turn=await self._connection.ask(QueuedTurn, "POST", place, body))
        except RemoteRefusedError as refused:
            return await self._left_queue(session_id, run_id, refused)

    async def drop_queued(self, session_id: SessionId, run_id: RunId) -> DropOutcome:
        """Remove a message that waits."""
        try:
            await self._connection.ask(_Nothing, "DELETE", _in_queue(session_id, run_id))
        except RemoteRefusedError as refused:
            return await self._left_queue(session_id, run_id, refused)
        return QueuedTurnDropped(run_id=run_id)

    async def _left_queue(
        self, session_id: SessionId, run_id: RunId, refused: RemoteRefusedError
    ) -> QueuedTurnBegun | NotQueued:
        """What became of a message that does not wait any more."""
        if refused.refusal == "session_not_found":
            raise SessionNotFoundError(session_id) from None
        if refused.refusal != "run_not_found":
            raise refused
        query = urlencode({"sessionId": session_id, "runId": run_id})
        try:
            return QueuedTurnBegun(run_id=(await self._connection.ask(RunOutcome, "GET", f"/result?{query}")).run_id)
        except RemoteRefusedError as unknown:
            if unknown.status != 404:
                raise
            return NotQueued()

    async def delete(self, session_id: SessionId) -> None:
        """Delete the session and everything below it; idempotent."""
        try:
            await self._ask(_Nothing, "DELETE", session_id)
        except SessionNotFoundError:
            return

    async def _ask(self, kind: type[T], method: str, session_id: SessionId, rest: str = "", **query: int) -> T:
        path = session_path(session_id, f"{rest}?{urlencode(query)}" if query else rest)
        try:
            return await self._connection.ask(kind, method, path)
        except RemoteRefusedError as refused:
            if refused.refusal == "session_not_found":
                raise SessionNotFoundError(session_id) from None
            raise


def _in_queue(session_id: SessionId, run_id: RunId) -> str:
    return session_path(session_id, f"/queue/{quote(run_id, safe='')}")


def spoken(messages: Sequence[UserMessage]) -> JSON:
    """What the user says, in the form that the server takes."""
    written = [cast("dict[str, JSON]", to_wire(message)) for message in messages]
    return [{name: value for name, value in message.items() if name != "role"} for message in written]


class _Nothing(Record):
    """The answer of a route that answers with nothing."""


@overload
def page_of(page: SessionPage) -> Page[SessionSummary]: ...
@overload
def page_of(page: RunPage) -> Page[RunRecord]: ...
@overload
def page_of(page: PendingPage) -> Page[PendingCall]: ...
def page_of(page: Any) -> Page[Any]:
    """A page as the executor returns it."""
    return Page(items=page.items, total=page.total, offset=page.offset, limit=page.limit)
