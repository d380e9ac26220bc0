"""The stored conversations of an agent server, as a client reads them."""

from typing import Any, TypeVar, overload
from urllib.parse import urlencode

from msgspec import structs

from helix_agents.domain.errors import RemoteRefusedError, SessionNotFoundError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.messages import StoredMessage
from helix_agents.domain.paging import DEFAULT_LIMIT, Page
from helix_agents.domain.pending import PendingCall
from helix_agents.domain.records import Record
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.sessions import SessionSummary
from helix_agents.server.answers import MessagePage, PendingPage, RunPage, SessionDetail, SessionPage
from helix_agents.server.client_run import session_path
from helix_agents.server.connection import Connection

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
