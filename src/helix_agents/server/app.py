"""The agent server: an ASGI application that puts any executor behind HTTP."""

import asyncio
import inspect
import logging
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Generic, cast

from typing_extensions import TypeVar

from helix_agents import __version__
from helix_agents.domain.errors import (
    DefinitionError,
    ExecutorClosedError,
    HelixError,
    MissingExtraError,
    StoreClosedError,
)

try:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.middleware.cors import CORSMiddleware
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Match, Route
    from starlette.types import Receive, Scope, Send
except ImportError as missing:
    raise MissingExtraError("The agent server", "server") from missing

from helix_agents.domain.ids import check_id
from helix_agents.engine.log import log_event, log_exception
from helix_agents.runtimes.executor.hosting import AgentExecutor
from helix_agents.server.answers import Health
from helix_agents.server.auth import ANYBODY, Authenticate, Principal
from helix_agents.server.calls import Call, json_response, routed, whole_again
from helix_agents.server.console import routes as console_routes
from helix_agents.server.errors import OURS, ErrorShape, RefusedError, draining, refusal_of, refused
from helix_agents.server.gate import Gate
from helix_agents.server.limits import ServerLimits
from helix_agents.server.openapi import document
from helix_agents.server.operations import OPERATIONS, STREAM, Operation
from helix_agents.server.owed_ends import OwedEnds
from helix_agents.server.shutdown import hearing_signals
from helix_agents.server.silent_clients import drop_if_silent
from helix_agents.server.unread_bodies import let_in

NOT_BEGUN = (
    "the server's lifespan has not started, so its executor is not open; mounted into an application, it needs "
    "FastAPI(lifespan=server.lifespan), or `async with server.lifespan(app):` in the application's own lifespan."
)
READY_SECONDS = 2.0
READY_PROBE = "helix.readyz"
TAKE_UP_SECONDS = 1.0
# While every run that is read here is also driven here, no reader waits for a recovery.
NOBODY_WAITS_SECONDS = 5.0
# Slow recoveries are made less often, so that they take at most one part in this many of the time. If another engine
# has the runs, each one is a request to it.
TAKE_UP_SHARE = 20


ExecutorT_co = TypeVar("ExecutorT_co", bound=AgentExecutor, default=AgentExecutor, covariant=True)


class AgentServer(Generic[ExecutorT_co]):
    """Hosts an executor: alone (`uvicorn module:server`, `helix serve`) or mounted into another application.

    If you mount it into another application, pass that application `lifespan=server.lifespan`, because mounted
    applications are not started by themselves.

    Args:
        executor: An open executor, or the result of `Executor.open(…)`, which the server then opens when it starts and
            closes when it stops.
        authenticate: A function that returns the user of a request, or None to refuse it.
        allow_unauthenticated: Must be True for a server without `authenticate`, which is open to everybody.
        agents: The names of the agents that callers may talk to. Default: the agents that the executor knows when the
            server starts, without the agents that these delegate to.
        limits: The limits of the server.
        cors_origins: Sites whose pages may call the server, as browsers name them (`https://example.com`).
        console: Serve a page for operators at `/console`. It shows and does what its reader's credentials allow.
        sweep_on_start: Recover the runs of dead processes when the server starts, and quickly while it has readers.
        close_executor: Also close an executor that was passed open when the server stops.

    Raises:
        DefinitionError: there is no authentication, or a name or a site is invalid.
    """

    def __init__(
        self,
        executor: ExecutorT_co | AbstractAsyncContextManager[ExecutorT_co],
        *,
        authenticate: Authenticate | None = None,
        allow_unauthenticated: bool = False,
        agents: Iterable[str] | None = None,
        limits: ServerLimits | None = None,
        cors_origins: Sequence[str] = (),
        console: bool = False,
        sweep_on_start: bool = True,
        close_executor: bool = False,
    ) -> None:
        if authenticate is None and not allow_unauthenticated:
            raise DefinitionError(
                "AgentServer",
                "callers would not be authenticated; give authenticate=…, or allow_unauthenticated=True "
                "if everybody may read, answer and stop every conversation.",
            )
        if authenticate is not None and allow_unauthenticated:
            raise DefinitionError(
                "AgentServer",
                "callers are authenticated or not; give authenticate=… or allow_unauthenticated=True, not both.",
            )
        if authenticate is not None and not callable(authenticate):
            raise DefinitionError(
                "AgentServer",
                f"authenticate={authenticate!r} is not a function; bearer_tokens({{…}}) makes one from tokens.",
            )
        if authenticate is None:
            log_event("server.unauthenticated", logging.WARNING, warning="every caller may do everything")
        self._authenticate = authenticate
        self._gate = Gate(limits or ServerLimits())
        self._owed = OwedEnds()
        self._agents = None if agents is None else _names(agents)
        self._sweep_on_start = sweep_on_start
        self._close_executor = close_executor
        self._opening: AbstractAsyncContextManager[ExecutorT_co] | None = None
        self._executor: ExecutorT_co | None = None
        if isinstance(executor, AbstractAsyncContextManager) and not hasattr(executor, "execute"):
            self._opening = executor
        elif isinstance(executor, type) or not hasattr(executor, "execute"):
            raise DefinitionError(
                "AgentServer",
                f"{executor!r} is not an executor; pass Executor.open(url, agents=[…]), or an open executor.",
            )
        else:
            self._host(cast("AgentExecutor", executor))
        self._origins = tuple(_origins(cors_origins))
        middleware = [_cors(self._origins)] if self._origins else []
        self._app = Starlette(
            routes=[
                *(_route(operation, self._guarded(operation.handler, operation.errors)) for operation in OPERATIONS),
                Route("/healthz", self._healthz, methods=["GET"]),
                Route("/readyz", self._readyz, methods=["GET"]),
                Route("/openapi.json", self._guarded(_describe), methods=["GET"]),
                *(console_routes() if console else ()),
            ],
            middleware=middleware,
            exception_handlers={HTTPException: _unknown_route},
        )
        self._app.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1003})
        else:
            drop_if_silent(receive, self.limits.stalled_reader_seconds)
            await self._app(routed(scope), *let_in(scope, receive, send, self.limits))

    @property
    def limits(self) -> ServerLimits:
        return self._gate.limits

    @property
    def executor(self) -> ExecutorT_co:
        """The hosted executor, for use in your own routes.

        Raises:
            DefinitionError: it is not open, because the server's lifespan has not started.
        """
        if self._executor is None:
            raise DefinitionError("AgentServer", NOT_BEGUN)
        return self._executor

    @property
    def open_streams(self) -> int:
        """How many readers follow a stream on this instance."""
        return self._gate.open_streams

    @property
    def draining(self) -> bool:
        return self._gate.leaving.is_set()

    def drain(self) -> None:
        """Start nothing new, and send readers of open streams to other instances, with a cursor to continue from."""
        self._gate.leaving.set()

    @asynccontextmanager
    async def lifespan(self, _app: object = None) -> AsyncGenerator[None]:
        """The server's lifespan: opens the executor, recovers the runs of dead processes, and shuts down in order.

        It can be entered several times, one after the other, as in tests that start an application repeatedly.
        """
        if self._gate.closed:
            self._gate = Gate(self.limits)
        async with AsyncExitStack() as stack:
            if self._opening is not None:
                self._host(await stack.enter_async_context(self._opening))
                stack.push_async_callback(self._forget)
            elif self._close_executor and self._executor is not None:
                stack.push_async_callback(self._executor.close)
            stack.push_async_callback(self._gate.close)
            stack.enter_context(hearing_signals(self.drain))
            if self._sweep_on_start and self._executor is not None:
                self._gate.watch(_take_up(self._executor, self._gate))
            yield

    def _host(self, executor: AgentExecutor) -> None:
        self._executor = cast("ExecutorT_co", executor)
        if self._agents is None:
            self._agents = frozenset(agent.name for agent in executor.agents)

    async def _forget(self) -> None:
        self._executor = None

    async def _live(self, receive: Receive, send: Send) -> None:
        """The lifespan as ASGI messages."""
        await receive()
        phase = "startup"
        try:
            async with self.lifespan():
                await send({"type": "lifespan.startup.complete"})
                phase = "shutdown"
                await receive()
        except BaseException as problem:
            log_exception("server.lifespan_failed", problem)
            await send({"type": f"lifespan.{phase}.failed", "message": str(problem)})
            raise
        await send({"type": "lifespan.shutdown.complete"})

    # -- requests

    def _guarded(
        self, handler: Callable[[Call], Awaitable[Any]], errors: ErrorShape = OURS
    ) -> Callable[[Request], Awaitable[Any]]:
        """The handler behind authentication; every failure in it becomes a typed response."""
        refused = errors.refused

        async def endpoint(request: Request) -> Any:
            whole_again(request.scope)
            try:
                return await handler(await self._call(request))
            except RefusedError as refusal:
                return refused(refusal)
            except HelixError as problem:
                refusal = refusal_of(problem, self._gate.limits.retry_after_seconds)
                if refusal.status >= 500 and not self.draining:
                    log_exception("server.request_failed", problem, path=request.url.path, code=problem.code)
                return refused(refusal)
            except Exception as problem:
                log_exception("server.request_failed", problem, path=request.url.path)
                return refused(_own_error())

        return endpoint

    async def _call(self, request: Request) -> Call:
        principal = await self._principal(request)
        if self._executor is None and not self.draining:
            log_event("server.not_begun", logging.ERROR, problem=NOT_BEGUN, path=request.url.path)
            raise RefusedError(503, "server_not_begun", NOT_BEGUN, retryable=True)
        if self._executor is None:
            raise draining(self._gate.limits.retry_after_seconds)
        return Call(
            request=request,
            principal=principal,
            executor=self._executor,
            gate=self._gate,
            owed=self._owed,
            entry_agents=self._agents or frozenset(),
            open_to_all=self._authenticate is None,
            origins=self._origins,
        )

    async def _principal(self, request: Request) -> Principal:
        if self._authenticate is None:
            return ANYBODY
        try:
            found = self._authenticate(request)
            principal = await found if inspect.isawaitable(found) else found
        except RefusedError:
            raise
        except Exception as problem:
            if isinstance(problem, HTTPException) and problem.status_code in (401, 403):
                raise _as_refused(problem) from None
            log_exception("server.authentication_failed", problem, path=request.url.path)
            raise RefusedError(
                503,
                "authentication_unavailable",
                "The caller could not be authenticated, because authentication failed.",
                retryable=True,
            ) from None
        if not isinstance(principal, Principal):
            if principal is not None:
                kind = type(cast("object", principal)).__name__
                _log_wrong_answer(request, f"authenticate returned a {kind}, but must return a Principal or None")
            raise RefusedError(
                401,
                "unauthenticated",
                "This request has no valid credentials.",
                headers={"www-authenticate": "Bearer"},
            )
        user_id: Any = principal.user_id
        if user_id is not None and not isinstance(user_id, str):
            # A number from a database, most likely. The caller cannot fix that.
            _log_wrong_answer(
                request, f"the user id {user_id!r} is of type {type(user_id).__name__}, but must be a string"
            )
            raise _own_error()
        if user_id is not None:
            check_id(user_id, "user id")
        return principal

    async def _healthz(self, _request: Request) -> Response:
        return json_response(Health(status="ok"))

    async def _readyz(self, _request: Request) -> Response:
        if self.draining:
            return json_response(Health(status="draining"), 503)
        if self._executor is None:
            return json_response(Health(status="unavailable"), 503)
        try:
            async with asyncio.timeout(READY_SECONDS):
                # By key, because anyone may ask as often as they like, and a listing is not cheap on every store.
                await self._executor.sessions.find(READY_PROBE)
        except (HelixError, TimeoutError):
            return json_response(Health(status="unavailable"), 503)
        return json_response(Health(status="ok"))


def _as_refused(problem: HTTPException) -> RefusedError:
    """A refusal raised in the manner of the applications that the server is mounted into."""
    code = "unauthenticated" if problem.status_code == 401 else "forbidden"
    return RefusedError(problem.status_code, code, str(problem.detail), headers=problem.headers)


def _log_wrong_answer(request: Request, why: str) -> None:
    log_event("server.authentication_failed", logging.ERROR, problem=why, path=request.url.path)


def _own_error() -> RefusedError:
    return RefusedError(500, "internal_error", "Internal error; see the log of the server.")


def _names(agents: Iterable[str]) -> frozenset[str]:
    """The names of agents, checked because a single name or the agents themselves are easily passed instead."""
    if isinstance(agents, str):
        raise DefinitionError(
            "AgentServer", f"agents={agents!r} is a single name, not a list; write agents=[{agents!r}]."
        )
    names = list[Any](agents)
    for name in names:
        if not isinstance(name, str):
            raise DefinitionError("AgentServer", f"agents must be names; {name!r} is not a string.")
    return frozenset(names)


def _origins(given: Sequence[str]) -> list[str]:
    """The sites whose pages may call, as browsers name them; a name in any other form would match none."""
    if isinstance(given, str):
        raise DefinitionError(
            "AgentServer", f"cors_origins={given!r} is a single site, not a list; write cors_origins=[{given!r}]."
        )
    for origin in given:
        if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+|null", origin):
            raise DefinitionError(
                "AgentServer",
                f"{origin!r} is not an origin; write scheme://host, optionally with a port, without a path.",
            )
    return list(given)


def _route(operation: Operation, endpoint: Callable[[Request], Awaitable[Any]]) -> Route:
    route = Route(operation.path, endpoint, methods=[operation.method])
    if (operation.answer == STREAM or operation.may_stream) and route.methods is not None:
        # A HEAD request would stay open for as long as the stream, and block the connection's next request.
        route.methods.discard("HEAD")
    return route


def _cors(origins: Sequence[str]) -> Middleware:
    return Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=["GET", "POST", "PUT", "DELETE"],
        # The origin decides which pages may call. Headers in which client libraries describe themselves, a dozen in
        # OpenAI's case, are not a matter of trust.
        allow_headers=["*"],
        expose_headers=["retry-after", "mcp-session-id"],
    )


async def _describe(_call: Call) -> Response:
    """The OpenAPI document of this server."""
    return json_response(document(__version__))


async def _take_up(executor: AgentExecutor, gate: Gate) -> None:
    """Recover the runs of dead processes, at once and then quickly while there are readers.

    Without readers, the executor's janitor is enough. It is too slow for readers that come from departing instances and
    wait for the rest of a run.
    """
    try:
        await executor.sweep()
    except (ExecutorClosedError, StoreClosedError):
        # The server is already shutting down.
        return
    except Exception as problem:
        log_exception("janitor.failed", problem)
    wait, looked = TAKE_UP_SECONDS, time.monotonic()
    while True:
        await asyncio.sleep(wait)
        begun = time.monotonic()
        if not (gate.follows_others or (gate.open_streams and begun - looked >= NOBODY_WAITS_SECONDS)):
            continue
        looked = begun
        try:
            found = await executor.recover()
        except HelixError:
            continue
        except Exception as problem:
            log_exception("janitor.failed", problem)
            continue
        took = 0.0 if found.run_ids else time.monotonic() - begun
        wait = min(max(TAKE_UP_SECONDS, took * TAKE_UP_SHARE), TAKE_UP_SECONDS * TAKE_UP_SHARE)


def _methods_at(request: Request) -> set[str]:
    """The methods that some route accepts at a path."""
    here = (each for each in request.app.routes if each.matches(request.scope)[0] is not Match.NONE)
    return {method for route in here for method in route.methods}


async def _unknown_route(request: Request, problem: Exception) -> Response:
    status = problem.status_code if isinstance(problem, HTTPException) else 500
    headers = dict(problem.headers or {}) if isinstance(problem, HTTPException) else {}
    if status == 405:
        headers = {"allow": ", ".join(sorted(_methods_at(request)))}
    code = {404: "not_found", 405: "method_not_allowed"}.get(status, "http_error")
    return refused(
        RefusedError(
            status, code, "This server has no such route; GET /openapi.json lists all routes.", headers=headers
        )
    )
