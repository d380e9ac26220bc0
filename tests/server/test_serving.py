"""The server of `helix serve`, in this process: what an application hands over is on its way at once."""

import asyncio
import signal
import socket
from typing import Any

import httpx2

from helix_agents import Executor
from helix_agents.cli.listening import listen
from helix_agents.runtimes.executor.hosting import AgentExecutor
from helix_agents.server.app import AgentServer
from helix_agents.server.serving import run


class Watched(AgentServer):
    """Looks at the connection of each request."""

    def __init__(self, executor: AgentExecutor) -> None:
        super().__init__(executor, allow_unauthenticated=True)
        self.waits: list[bool] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            connection = receive.__self__.transport.get_extra_info("socket")
            self.waits.append(not connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        await super().__call__(scope, receive, send)


async def test_no_part_of_an_answer_waits_until_the_client_has_confirmed_the_part_before_it() -> None:
    """Otherwise the body of an answer, and each piece of a stream, came 40 ms late."""
    made: list[Watched] = []
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def make_app(executor: AgentExecutor) -> Watched:
        made.append(Watched(executor))
        return made[0]

    # As `helix serve` has it: the executor leaves the signal to who handles it.
    earlier = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        async with asyncio.timeout(30):
            door = listen("helix serve", "127.0.0.1", 0)
            serving = asyncio.create_task(run(Executor.open("memory://"), make_app, sock=door, on_ready=url.set_result))
            async with httpx2.AsyncClient(base_url=await url) as client:
                assert (await client.get("/healthz")).status_code == 200
            signal.raise_signal(signal.SIGTERM)
            await serving
    finally:
        signal.signal(signal.SIGTERM, earlier)
    assert made[0].waits == [False]
