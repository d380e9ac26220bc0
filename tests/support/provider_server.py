"""A model provider on this machine: it answers over real HTTP as scripted, and records the requests."""

import asyncio
import json
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

PATIENCE = 20.0


@dataclass(kw_only=True)
class Received:
    """One request that arrived."""

    path: str
    headers: dict[str, str]
    body: Any


@dataclass(kw_only=True)
class Stream:
    """What a provider streams. After the last frame it ends, breaks off, or stays open until the client leaves."""

    frames: Sequence[str | bytes]
    then: Literal["end", "cut", "hold"] = "end"
    client_left: threading.Event = field(default_factory=threading.Event)


@dataclass(kw_only=True)
class Refusal:
    """An error before any stream."""

    status: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)


Answer = Stream | Refusal


class ProviderServer:
    """Listens on a free port of 127.0.0.1, in its own thread, for the duration of a `with` block."""

    def __init__(self) -> None:
        self.requests: list[Received] = []
        self._answers: deque[Answer] = deque()
        self._by: Callable[[Received], Answer] | None = None
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        app = Starlette(routes=[Route("/{path:path}", self._answer, methods=["POST"])])
        config = uvicorn.Config(app, log_level="critical", lifespan="off", ws="none", loop="asyncio", http="h11")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    @property
    def asked(self) -> Any:
        """The body of the latest request."""
        return self.requests[-1].body

    def will(self, *answers: Answer) -> None:
        """Answer the next requests with these, in order."""
        self._answers.extend(answers)

    def will_by(self, answer: Callable[[Received], Answer]) -> None:
        """Answer requests without a scripted answer by looking at them, for clients that send several at once."""
        self._by = answer

    def forget(self) -> None:
        """Start anew for the next test."""
        self._answers.clear()
        self._by = None
        self.requests.clear()

    def __enter__(self) -> Self:
        # The socket already listens, so a client may connect before the thread is up: it waits in the backlog.
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(PATIENCE)
        self._socket.close()

    async def _answer(self, request: Request) -> Response:
        body = json.loads(await request.body())
        received = Received(path=request.url.path, headers=dict(request.headers), body=body)
        self.requests.append(received)
        if self._answers:
            answer = self._answers.popleft()
        elif self._by is not None:
            answer = self._by(received)
        else:
            return JSONResponse({"error": {"message": "the test scripted no answer"}}, status_code=400)
        if isinstance(answer, Refusal):
            return JSONResponse(answer.body, status_code=answer.status, headers=answer.headers)
        return _Streamed(answer)


class _Streamed(Response):
    def __init__(self, stream: Stream) -> None:
        super().__init__(media_type="text/event-stream")
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for frame in self._stream.frames:
            body = frame.encode() if isinstance(frame, str) else frame
            await send({"type": "http.response.body", "body": body, "more_body": True})
        match self._stream.then:
            case "end":
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            case "cut":
                # Returning without a last chunk makes the server drop the connection.
                return
            case "hold":
                async with asyncio.timeout(PATIENCE):
                    while (await receive())["type"] != "http.disconnect":
                        pass
                self._stream.client_left.set()
