"""The server inside other applications, and under other servers' rules."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from helix_agents import AgentServer, Executor, Principal
from helix_agents.domain.errors import DefinitionError, StoreUnavailableError
from helix_agents.server.auth import bearer_tokens
from tests.server.agents import agents
from tests.server.live import ANN, TOKENS, LiveServer, bearer
from tests.server.page import Page
from tests.server.test_executor_routes import chunks, settled, start


def test_it_is_mounted_into_fastapi() -> None:
    server = AgentServer(Executor.open("memory://", agents=agents), authenticate=bearer_tokens(TOKENS))
    app = FastAPI(lifespan=server.lifespan)
    app.mount("/agents", server)

    @app.get("/hello")
    async def hello() -> dict[str, str]:
        return {"hello": "world"}

    with LiveServer(app) as live:
        live.app = server
        client = httpx2.Client(base_url=f"{live.url}/agents", headers=bearer(ANN), timeout=30)
        with client:
            assert httpx2.get(f"{live.url}/hello").json() == {"hello": "world"}
            page = Page(client, "folder/chat one").say("publish").decide("publish", True).post()
            assert page.text.endswith("published r-1.")
            assert client.get("/chat/folder%2Fchat%20one/stream").status_code == 204
            assert start(client, "s", "hello").status_code == 200
            settled(client, "s")
            assert chunks(client, "s")[-1]["event"] == "end"
            assert client.get("/nowhere").json()["code"] == "not_found"


def test_an_application_that_forgot_its_lifespan_is_told_to_come_back() -> None:
    server = AgentServer(Executor.open("memory://", agents=agents), allow_unauthenticated=True)
    app = FastAPI()
    app.mount("/agents", server)
    with LiveServer(app) as live:
        refused = httpx2.get(f"{live.url}/agents/sessions")
        assert (refused.status_code, refused.json()["code"]) == (503, "server_not_begun")
        assert "FastAPI(lifespan=server.lifespan)" in refused.json()["detail"]
        assert httpx2.get(f"{live.url}/agents/readyz").status_code == 503


def test_an_application_may_begin_again_and_again() -> None:
    server = AgentServer(Executor.open("memory://", agents=agents), allow_unauthenticated=True)
    app = FastAPI(lifespan=server.lifespan)
    app.mount("/agents", server)
    for _ in range(2):
        with LiveServer(app) as live, httpx2.Client(base_url=f"{live.url}/agents", timeout=30) as client:
            assert start(client, "s", "hello").status_code == 200
            settled(client, "s")
            assert chunks(client, "s")[-1]["event"] == "end"


def test_routes_beside_the_server_use_its_executor() -> None:
    server = AgentServer(Executor.open("memory://", agents=agents), allow_unauthenticated=True)

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncGenerator[None]:
        async with server.lifespan(app):
            yield

    app = FastAPI(lifespan=life)

    @app.post("/orders")
    async def order() -> str:
        return (await server.executor.execute(agents[0], "hello")).session_id

    app.mount("/agents", server)
    with pytest.raises(DefinitionError, match="lifespan"):
        _ = server.executor
    with LiveServer(app) as live:
        session_id = httpx2.post(f"{live.url}/orders").json()
        with httpx2.Client(base_url=f"{live.url}/agents", timeout=30) as client:
            settled(client, session_id)


def test_an_executor_that_is_open_already_is_hosted_and_left_open() -> None:
    seen: list[bool] = []

    @asynccontextmanager
    async def life(_app: object):
        async with Executor.open("memory://", agents=agents) as helix:
            app.mount("/agents", AgentServer(helix, allow_unauthenticated=True))
            yield
            seen.append((await helix.sessions.list()).total == 1)

    app = FastAPI(lifespan=life)
    with LiveServer(app) as live, httpx2.Client(base_url=f"{live.url}/agents", timeout=30) as client:
        assert start(client, "s", "hello").status_code == 200
        settled(client, "s")
    assert seen == [True]


async def test_a_store_that_does_not_open_is_a_failed_start() -> None:
    server = AgentServer(Executor.open("sqlite:////nowhere/at/all.db", agents=agents), allow_unauthenticated=True)
    sent: list[dict] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> dict:
        return {"type": "lifespan.startup"}

    with pytest.raises(StoreUnavailableError):
        await server({"type": "lifespan"}, receive, send)
    assert sent[0]["type"] == "lifespan.startup.failed"
    assert "all.db" in sent[0]["message"]


async def test_websockets_are_closed() -> None:
    server = AgentServer(Executor.open("memory://"), authenticate=bearer_tokens({"t": Principal(user_id="u")}))
    sent: list[dict] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> dict:
        raise AssertionError("nothing to receive")

    await server({"type": "websocket"}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1003}]


@pytest.mark.parametrize("named", [["director"], ["nobody"]])
def test_callers_talk_to_the_agents_that_are_named(named: list[str]) -> None:
    server = AgentServer(Executor.open("memory://", agents=agents), allow_unauthenticated=True, agents=named)
    with LiveServer(server) as live, live.client(None) as client:
        assert start(client, "s", "hello").status_code == (200 if named == ["director"] else 404)


async def test_a_store_that_does_not_close_is_a_failed_end() -> None:
    @asynccontextmanager
    async def opened() -> AsyncGenerator[Executor]:
        async with Executor.open("memory://", agents=agents) as helix:
            yield helix
        raise StoreUnavailableError("the store", "gone")

    server = AgentServer(opened(), allow_unauthenticated=True)
    sent: list[str] = []

    async def send(message: Any) -> None:
        sent.append(message["type"])

    async def receive() -> dict:
        return {"type": "lifespan.shutdown" if sent else "lifespan.startup"}

    with pytest.raises(StoreUnavailableError):
        await server({"type": "lifespan"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.failed"]
