"""Our own server around the application: it keeps answering while running steps get their grace period."""

import asyncio
import signal
import socket
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from helix_agents.agent.agent import AnyAgent
from helix_agents.runtimes.executor.hosting import AgentExecutor
from helix_agents.runtimes.in_process.executor import Executor
from helix_agents.server.app import AgentServer
from helix_agents.server.auth import Principal, bearer_tokens
from helix_agents.server.local_names import LocalNames, is_local


class DrainingServer(uvicorn.Server):
    """Ends in two steps.

    At the first signal the application drains: new starts are told to come back later, streams end with a cursor, and
    running steps get their grace period. Only then is the socket closed. A second signal closes it at once.
    """

    def __init__(self, config: uvicorn.Config, app: AgentServer, executor: AgentExecutor) -> None:
        super().__init__(config)
        self._agent_server = app
        self._executor = executor
        self._leaving: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._agent_server.draining:
            super().handle_exit(sig, frame)
            return
        self._agent_server.drain()
        asyncio.get_running_loop().call_soon_threadsafe(self._begin_to_leave)

    def _begin_to_leave(self) -> None:
        self._leaving = asyncio.get_running_loop().create_task(self._leave())

    async def _leave(self) -> None:
        try:
            await self._executor.close()
        finally:
            self.should_exit = True


async def run(
    open_executor: Any,
    make_app: Callable[[AgentExecutor], AgentServer],
    *,
    sock: socket.socket,
    outermost: Callable[[AgentServer], ASGIApp] = lambda app: app,
    on_ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve on a socket that is already listening, until a signal ends it. `outermost` wraps the application."""
    # Accepted connections inherit this. The event loop sets it only for sockets created with an explicit protocol, and
    # without it the body of an answer waits until the client has confirmed the head.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    async with open_executor as executor:
        app = make_app(executor)
        config = uvicorn.Config(
            outermost(app),
            log_level="warning",
            ws="none",
            lifespan="on",
            timeout_graceful_shutdown=5,
            server_header=False,
        )
        server = DrainingServer(config, app, executor)
        announcing = asyncio.create_task(_announce(server, lambda: on_ready(_url(sock))))
        try:
            await server.serve(sockets=[sock])
        finally:
            announcing.cancel()


def _url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if sock.family == socket.AF_INET6 else f"http://{host}:{port}"


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


async def _announce(server: uvicorn.Server, say: Callable[[], None]) -> None:
    while not server.started:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    say()


def serve(
    agents: Iterable[AnyAgent],
    store_url: str,
    *,
    sock: socket.socket,
    token: str | None,
    user: str,
    origins: Sequence[str],
    console: bool,
    on_ready: Callable[[str], None],
    **settings: Any,
) -> None:
    """Serve these agents on this store until the process is asked to end; other settings go to the executor.

    `on_ready` receives the URL as soon as requests would be answered there.
    """
    authenticate = None if not token else bearer_tokens({token: Principal(user_id=user, operator=True)})

    def make_app(executor: AgentExecutor) -> AgentServer:
        return AgentServer(
            executor,
            authenticate=authenticate,
            allow_unauthenticated=authenticate is None,
            cors_origins=origins,
            console=console,
        )

    def outermost(app: AgentServer) -> ASGIApp:
        is_ours_alone = authenticate is None and is_local(sock.getsockname()[0])
        return LocalNames(app, origins) if is_ours_alone else app

    opening = Executor.open(store_url, agents=list(agents), **settings)
    # A handler is installed from the first moment on, so that the executor leaves signals to the server.
    earlier = signal.signal(signal.SIGTERM, _end)
    try:
        with sock:
            asyncio.run(run(opening, make_app, sock=sock, outermost=outermost, on_ready=on_ready))
    finally:
        signal.signal(signal.SIGTERM, earlier)
