"""The stored conversations of an agent server, as a client reads them."""

from typing import Any, TypeVar
from urllib.parse import urlencode

from helix_agents.domain.errors import RemoteRefusedError, SessionNotFoundError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.messages import StoredMessage
from helix_agents.domain.paging import DEFAULT_LIMIT, Page
from helix_agents.domain.records import Record
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.sessions import SessionSummary
from helix_agents.server.answers import SessionDetail
from helix_agents.server.client_run import session_path
from helix_agents.server.patience import Patience
from helix_agents.server.remote_wire import read_whole
from helix_agents.server.server_caller import ServerCaller

T = TypeVar("T")


class _Listed(Record):
    """What every list of the server says besides its items."""

    total: int
    offset: int
    limit: int


class ClientSessions:
    """The caller's stored conversations."""

    def __init__(self, caller: ServerCaller, patience: float) -> None:
        self._caller = caller
        self._patience = patience

    async def get(self, session_id: SessionId) -> SessionDetail:
        """One session with its state.

        Raises:
            SessionNotFoundError: it does not exist, or belongs to another user.
        """
        told = await self._ask("GET", session_id)
        return self._caller.read(lambda: read_whole(told, SessionDetail))

    async def list(
        self, *, agent: str | None = None, tag: str | None = None, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[SessionSummary]:
        """The caller's sessions, newest first; for an operator, everybody's."""
        query = {name: value for name, value in (("agentType", agent), ("tag", tag)) if value is not None}
        path = f"/sessions?{urlencode({**query, 'offset': offset, 'limit': limit})}"
        told = await Patience(self._patience).ask(lambda: self._caller.ask("GET", path))
        return self._page(told, SessionSummary)

    async def messages(
        self, session_id: SessionId, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[StoredMessage]:
        """A page of the transcript, newest first."""
        return self._page(await self._ask("GET", session_id, "/messages", offset=offset, limit=limit), StoredMessage)

    async def runs(self, session_id: SessionId, *, offset: int = 0, limit: int = DEFAULT_LIMIT) -> Page[RunRecord]:
        """The session's turns, newest first."""
        return self._page(await self._ask("GET", session_id, "/runs", offset=offset, limit=limit), RunRecord)

    async def delete(self, session_id: SessionId) -> None:
        """Delete the session and everything below it; idempotent."""
        try:
            await self._ask("DELETE", session_id)
        except SessionNotFoundError:
            return

    async def _ask(self, method: str, session_id: SessionId, rest: str = "", **query: int) -> dict[str, Any]:
        path = session_path(session_id, f"{rest}?{urlencode(query)}" if query else rest)
        try:
            return await Patience(self._patience).ask(lambda: self._caller.ask(method, path))
        except RemoteRefusedError as refused:
            if refused.refusal == "session_not_found":
                raise SessionNotFoundError(session_id) from None
            raise

    def _page(self, told: dict[str, Any], kind: type[T]) -> Page[T]:
        listed = self._caller.read(lambda: read_whole(told, _Listed))
        items = self._caller.read(lambda: read_whole(told.get("items"), tuple[kind, ...]))
        return Page(items=items, total=listed.total, offset=listed.offset, limit=listed.limit)
