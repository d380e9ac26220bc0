"""One request on its way through the server: who makes it, what it asks for, and the sessions it may touch."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from helix_agents.agent.agent import AnyAgent
from helix_agents.domain.errors import SessionNotFoundError
from helix_agents.domain.ids import RunId, SessionId, check_id
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.paging import MAX_LIMIT, whole_list
from helix_agents.domain.pending import PendingCall, PendingFilter
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.sessions import SessionState, SessionSummary
from helix_agents.runtimes.executor.hosting import AgentExecutor, HostedRun, HostedSchedules
from helix_agents.server.auth import Principal
from helix_agents.server.bodies import read_body, read_json
from helix_agents.server.errors import RefusedError, invalid
from helix_agents.server.gate import Gate
from helix_agents.server.owed_ends import OwedEnds
from helix_agents.server.sse import EventSource, EventStreamResponse, disconnected
from helix_agents.server.wire import to_json

T = TypeVar("T")

# The largest number in a query, or cursor, that is accepted.
LARGEST = 10**17

# Stands for an encoded slash while a path is matched. It is half a character, which no decoded path contains.
SLASH = "\udc2f"


def routed(scope: Scope) -> Scope:
    """The request with the path that the routes are matched against.

    A slash inside an id, which clients write as %2F and which was decoded, is no separator there. A slash at the very
    end leads to the same place as none, because a redirect would have to encode the ids in the path again.
    """
    path = _with_slashes_kept(scope)
    if path.endswith("/") and path != "/":
        path = path[:-1]
    return scope if path == scope["path"] else {**scope, "path": path}


def _with_slashes_kept(scope: Scope) -> str:
    raw: bytes = scope.get("raw_path") or b""
    if b"%2f" not in raw.lower() or unquote(raw.decode("latin-1")) != scope["path"]:
        return scope["path"]
    return unquote(raw.decode("latin-1").replace("%2F", SLASH).replace("%2f", SLASH))


def whole_again(scope: Scope) -> None:
    """Remove the placeholders from a path once its route is found, because nothing else can handle half a character."""
    scope["path"] = scope["path"].replace(SLASH, "/")


def whole_number(text: str) -> int | None:
    """The number in a text, if it is one that a query or a cursor may have."""
    if not text.isascii() or not text.isdigit() or len(text) > len(str(LARGEST)) or int(text) > LARGEST:
        return None
    return int(text)


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A record, or plain data, as a response."""
    return Response(to_json(value), status_code=status, media_type="application/json", headers=headers)


@dataclass(frozen=True, kw_only=True)
class Call:
    """A request whose caller is known.

    `entry_agents` are the agents it may start a session with. With `open_to_all` there is no authentication, and
    sessions belong to everybody. `origins` are the sites whose pages may call.
    """

    request: Request
    principal: Principal
    executor: AgentExecutor
    gate: Gate
    owed: OwedEnds
    entry_agents: frozenset[str]
    open_to_all: bool = False
    origins: tuple[str, ...] = ()

    # -- what it says

    async def json(self) -> Any:
        return await read_json(self.request, self.gate.limits)

    async def body(self, kind: Any) -> Any:
        return read_body(await self.json(), kind)

    def query(self, name: str) -> str | None:
        return self.request.query_params.get(name)

    def number(self, name: str, default: int) -> int:
        """A whole number from the query, within the range of listings."""
        given = self.query(name)
        if given is None:
            return default
        number = whole_number(given)
        if number is None:
            raise invalid(f"{name} must be a whole number up to {LARGEST}, not {given[:80]!r}.")
        return number

    def path_id(self, of: str = "session") -> str:
        """The id of something that the path names."""
        return self.checked(self.request.path_params[f"{of}_id"].replace(SLASH, "/"), f"{of} id")

    def query_id(self) -> SessionId:
        given = self.query("sessionId")
        if given is None:
            raise invalid("The query needs a sessionId.")
        return self.checked(given)

    def query_run_id(self) -> RunId | None:
        given = self.query("runId")
        return None if given is None else self.checked(given, "run id")

    def checked(self, value: str, kind: str = "session id") -> str:
        """A valid id, within the length that this server accepts."""
        if len(value) > self.gate.limits.id_characters:
            raise invalid(f"A {kind} can have at most {self.gate.limits.id_characters} characters.")
        return check_id(value, kind)

    # -- what it may touch

    def owns(self, session: SessionState | SessionSummary) -> bool:
        return self.open_to_all or (session.user_id is not None and session.user_id == self.principal.user_id)

    def owner(self) -> str | None:
        """The owner of a session that the caller starts.

        Raises:
            RefusedError: it would have no owner, so the caller could not even read the answer.
        """
        if self.principal.user_id is None and not self.open_to_all:
            raise RefusedError(403, "forbidden", "A caller without a user id cannot have conversations or schedules.")
        return self.principal.user_id

    async def session(self, session_id: SessionId) -> SessionSummary:
        """The caller's session, without its state. Another user's session looks as if it did not exist."""
        session = await self.executor.sessions.find(session_id)
        if session is None or not self.owns(session):
            raise SessionNotFoundError(session_id)
        return session

    async def whole_session(self, session_id: SessionId) -> SessionState:
        """The caller's session with its state and pending calls."""
        session = await self.executor.sessions.get(session_id)
        if not self.owns(session):
            raise SessionNotFoundError(session_id)
        return session

    async def find_session(self, session_id: SessionId) -> SessionState | None:
        """The caller's session, or None if the id is free.

        Raises:
            RefusedError: the id belongs to another user.
        """
        try:
            session = await self.executor.sessions.get(session_id)
        except SessionNotFoundError:
            return None
        if not self.owns(session):
            raise RefusedError(403, "forbidden", "This session id belongs to another user; choose a different one.")
        return session

    def schedules(self) -> HostedSchedules:
        """The caller's schedules. Those of other users look as if they did not exist.

        Raises:
            RefusedError: the caller is no user, and so has none.
        """
        owner = self.owner()
        return self.executor.schedules if owner is None else self.executor.schedules.of_user(owner)

    async def current_run(self, session_id: SessionId) -> RunRecord | None:
        page = await self.executor.sessions.runs(session_id, limit=1)
        return page.items[0] if page.items else None

    async def run(self, session_id: SessionId, run_id: RunId) -> RunRecord | None:
        """A run of a session; None if there is none, or if it is still waiting for its turn."""
        runs = self.executor.sessions.runs
        offset = 0
        while True:
            page = await runs(session_id, offset=offset, limit=MAX_LIMIT if offset else 1)
            for run in page.items:
                if run.run_id == run_id:
                    return run
            offset += len(page.items)
            if not page.has_more:
                return None

    async def waiting(self, session_id: SessionId) -> tuple[PendingCall, ...]:
        """The calls that wait in a conversation, at any depth, the oldest first."""
        where = PendingFilter(root_session_id=session_id)
        rows = await whole_list(lambda start: self.executor.list_pending(where, offset=start, limit=MAX_LIMIT))
        return tuple(reversed(rows))

    def agent_of(self, session: SessionState | SessionSummary) -> AnyAgent:
        return self.executor.agents.get(session.agent_type)

    def checked_messages(self, messages: tuple[UserMessage, ...]) -> tuple[UserMessage, ...]:
        for message in messages:
            if message.id is not None:
                self.checked(message.id, "message id")
        return messages

    async def begin(
        self, starting: Callable[[], Awaitable[HostedRun]], *, within: SessionState | SessionSummary | None = None
    ) -> HostedRun:
        """Start a run of the caller, if the limits allow it; `within` is the caller's session in which it starts, if
        there is one already.

        Raises:
            RefusedError: they do not.
        """
        async with self.gate.room(self.principal, self.executor, None if within is None else within.session_id):
            run = await starting()
        self.owed.began(run.session_id, run.run_id)
        return run

    # -- waiting and streams

    async def outwait(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        run: HostedRun | None,
        *,
        seconds: float | None = None,
        even_alone: bool = False,
    ) -> T | None:
        """What the work comes to, waited for in a place among the open streams. None if it is given up, because the
        time is up, this instance has to leave or, unless it is waited for `even_alone`, the client has left.

        Raises:
            RefusedError: no place is left.
        """
        with self.gate.place(self.principal, run):
            doing = asyncio.create_task(work())
            gone = () if even_alone else (asyncio.create_task(disconnected(self.request.receive)),)
            try:
                first = (doing, *gone, self.gate.leaving.future())
                await asyncio.wait(first, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                return doing.result() if doing.done() else None
            finally:
                for task in (doing, *gone):
                    task.cancel()
                await asyncio.gather(doing, *gone, return_exceptions=True)

    def stream(
        self,
        source: EventSource,
        headers: dict[str, str] | None = None,
        when_cut: Callable[[], None] | None = None,
        run: HostedRun | None = None,
    ) -> Any:
        """Respond with a stream of this run; the caller has already checked that there is room for one."""
        gate = self.gate
        response = EventStreamResponse(
            source, limits=gate.limits, leaving=gate.leaving, headers=headers, when_cut=when_cut
        )
        return self.gate.counted(self.principal, response, run)
