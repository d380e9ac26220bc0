"""The official MCP client, unmodified, and what tests ask of it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import mcp_types as types
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.server.live import ANN, PATIENCE, bearer

OLDER, NEWER = "legacy", "2026-07-28"
"""A client that introduces itself once, and one whose requests stand alone."""
BOTH = (OLDER, NEWER)

Fill = Callable[[types.ElicitRequestFormParams], types.ElicitResult]


@asynccontextmanager
async def opened(
    url: str, mode: str = OLDER, *, token: str = ANN, path: str = "/mcp", fill: Any = None
) -> AsyncIterator[Client]:
    """A client; with `fill`, it has somebody who fills in forms."""

    async def ask(context: Any, params: Any) -> types.ElicitResult:
        found = fill(params)
        return await found if asyncio.iscoroutine(found) else found

    async with (
        httpx2.AsyncClient(headers=bearer(token), timeout=PATIENCE) as http,
        Client(
            streamable_http_client(f"{url}{path}", http_client=http),
            mode=mode,
            elicitation_callback=None if fill is None else ask,
        ) as client,
    ):
        yield client


def accept(**content: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content=content)


def texts(result: types.CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, types.TextContent))


class Raw:
    """Messages as bytes on the wire, for what no well-behaved client does."""

    def __init__(self, http: httpx2.Client, *, forms: bool = False, path: str = "/mcp") -> None:
        self.http = http
        self.path = path
        self.headers = {"accept": "application/json, text/event-stream"}
        params: dict[str, Any] = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"elicitation": {}} if forms else {},
            "clientInfo": {"name": "raw", "version": "1"},
        }
        answer = self.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        self.headers["mcp-session-id"] = answer.headers["mcp-session-id"]

    def post(self, message: Any, **headers: str) -> httpx2.Response:
        return self.http.post(self.path, json=message, headers={**self.headers, **headers})

    def call(self, name: str, arguments: dict[str, Any], rpc_id: int = 1, **meta: Any) -> dict[str, Any]:
        params = {"name": name, "arguments": arguments, "_meta": meta}
        return {"jsonrpc": "2.0", "id": rpc_id, "method": "tools/call", "params": params}

    def stream(self, message: Any) -> Any:
        return self.http.stream("POST", self.path, json=message, headers=self.headers)

    def come_back(self, last: str) -> httpx2.Response:
        return self.http.get(self.path, headers={**self.headers, "last-event-id": last})


def events(lines: Any) -> Any:
    """The events of a stream: their ids and their messages, None where there is none."""
    event_id = None
    for line in lines:
        if line.startswith("id: "):
            event_id = line.removeprefix("id: ")
        elif line.startswith("data:"):
            data = line.removeprefix("data:").strip()
            yield event_id, json.loads(data) if data else None


def last_message(response: httpx2.Response) -> dict[str, Any]:
    """The last message of a response, whether it is a stream or not."""
    if response.headers["content-type"].startswith("application/json"):
        return response.json()
    return [message for _, message in events(response.text.splitlines())][-1]


def result_of(response: httpx2.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    return last_message(response)["result"]
