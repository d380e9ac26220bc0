"""Servers that really listen: in a thread of the test, or as processes of their own."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import httpx2
import uvicorn

from helix_agents import AgentServer, Executor, Principal
from helix_agents.server.auth import bearer_tokens
from helix_agents.server.limits import ServerLimits
from helix_agents.server.openapi import document
from tests.server.agents import agents

PATIENCE = 30.0

ANN, BEN, OPS = "token-of-ann", "token-of-ben", "token-of-ops"
TOKENS = {
    ANN: Principal(user_id="ann"),
    BEN: Principal(user_id="ben"),
    OPS: Principal(user_id="ops", operator=True),
}


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def wait_until(what: Callable[[], Any]) -> Any:
    """Look until something holds; bounded."""
    limit = time.monotonic() + PATIENCE
    while not (found := what()):
        assert time.monotonic() < limit, f"{what} never held"
        time.sleep(0.005)
    return found


def agent_server(
    url: str = "memory://",
    *,
    limits: ServerLimits | None = None,
    executor: dict[str, Any] | None = None,
    **settings: Any,
) -> AgentServer:
    """The agents of these tests on a store, behind tokens unless said otherwise."""
    settings.setdefault("authenticate", bearer_tokens(TOKENS))
    given: dict[str, Any] = {"agents": agents, **(executor or {})}
    return AgentServer(Executor.open(url, **given), limits=limits, **settings)


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile("/".join("[^/]+" if part.startswith("{") else re.escape(part) for part in path.split("/")))


_ROUTES = [
    (method.upper(), _pattern(path), frozenset(way["responses"]))
    for path, ways in document("0")["paths"].items()
    for method, way in ways.items()
]


def announced(response: httpx2.Response) -> None:
    """Whatever a server answers in any test, the OpenAPI document has to announce."""
    method, path = response.request.method, response.request.url.raw_path.decode().partition("?")[0]
    for known, pattern, statuses in _ROUTES:
        if known == method and pattern.fullmatch(path):
            assert str(response.status_code) in statuses, (method, path, response.status_code)
            return


class LiveServer:
    """An application on a free port of 127.0.0.1, in a thread, from `with` to its end."""

    def __init__(self, app: Any, *, port: int = 0, send_buffer: int | None = None) -> None:
        self.app = app
        self._socket = socket.create_server(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if send_buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        config = uvicorn.Config(
            app, log_level="critical", ws="none", lifespan="on", timeout_graceful_shutdown=5, loop="asyncio", http="h11"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    @property
    def port(self) -> int:
        return self._socket.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._server.server_state.connections)

    def client(self, token: str | None = ANN, **settings: Any) -> httpx2.Client:
        headers = {} if token is None else bearer(token)
        hooks = {"response": [announced]} if isinstance(self.app, AgentServer) else {}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=PATIENCE, event_hooks=hooks, **settings)

    def __enter__(self) -> Self:
        self._thread.start()
        wait_until(lambda: self._server.started or not self._thread.is_alive())
        return self

    def __exit__(self, *_: object) -> None:
        drain = getattr(self.app, "drain", None)
        if drain is not None:
            drain()
        self._server.should_exit = True
        self._thread.join(PATIENCE)
        self._socket.close()


class Address:
    """Where clients connect, whichever server is behind it. While there is none, they wait for the next."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._there = threading.Event()
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def leads_to(self, url: str) -> None:
        self._port = int(url.rpartition(":")[2])
        self._there.set()

    def leads_nowhere(self) -> None:
        """From now on, whoever connects waits; who is connected stays so."""
        self._there.clear()

    def __enter__(self) -> Self:
        threading.Thread(target=self._open_up, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        # Closing alone does not wake the thread that accepts.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _open_up(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            if not self._there.wait(PATIENCE):
                return
            with socket.create_connection(("127.0.0.1", self._port)) as server:
                answering = threading.Thread(target=_pass_on, args=(server, client), daemon=True)
                answering.start()
                _pass_on(client, server)
                answering.join(PATIENCE)


def _pass_on(sender: socket.socket, receiver: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := sender.recv(65_536):
            receiver.sendall(data)
    with contextlib.suppress(OSError):
        receiver.shutdown(socket.SHUT_RDWR)


class Instance:
    """`helix serve` in a process of its own."""

    def __init__(
        self,
        store: str,
        *,
        agents: str = "tests.server.agents:agents",
        environment: dict[str, str] | None = None,
        arguments: tuple[str, ...] = (),
    ) -> None:
        command = [str(Path(sys.executable).parent / "helix"), "serve", agents]
        self.process = subprocess.Popen(
            [*command, "--store", store, "--port", "0", "--token", ANN, "--user", "ann", *arguments],
            stdout=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
            cwd=Path(__file__).parents[2],
            text=True,
        )

    @cached_property
    def url(self) -> str:
        """Where it listens; asking waits until it does."""
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert said.startswith("Serving on "), said
        return said.split()[-1]

    def client(self) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, headers=bearer(ANN), timeout=PATIENCE)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def end(self) -> int:
        """Wait for it to end by itself."""
        return self.process.wait(PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(PATIENCE)
        if self.process.stdout is not None:
            self.process.stdout.close()
