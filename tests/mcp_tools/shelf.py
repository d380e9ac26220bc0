"""An MCP server for tests: a shelf of books, whose folder says what it did and what it is to do.

`python shelf.py FOLDER` speaks over standard input and output, `python shelf.py FOLDER PORT` over HTTP.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import mcp_types as types
from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Image
from mcp.server.mcpserver.prompts.base import AssistantMessage, UserMessage
from pydantic import BaseModel, Field

FOLDER = Path(sys.argv[1])
LOOK_SECONDS = 0.01
GONE = "gone"

server = MCPServer("shelf", version="1")
PNG = "iVBOR4lQTkeJUE5H"
reads = types.ToolAnnotations(read_only_hint=True)


def note(name: str, text: str = "") -> None:
    with (FOLDER / name).open("a", encoding="utf-8") as file:
        file.write(text + "\n")


def is_said(name: str) -> bool:
    return (FOLDER / name).exists()


@server.tool(annotations=reads, description="Look at the shelf." if is_said("renamed") else "Search the shelf.")
async def search(query: str, limit: int = 2) -> list[str]:
    return [f"{query} {number}" for number in range(1, limit + 1)]


@server.tool()
async def order(ctx: Context, title: str) -> str:
    """Order a book."""
    meta = ctx.request_context.meta or {}
    note("orders", json.dumps({"title": title, "key": meta.get("helix-agents/idempotency-key")}))
    return f"ordered {title}"


@server.tool(annotations=types.ToolAnnotations(destructive_hint=True))
async def burn(title: str) -> str:
    """Burn a book."""
    note("burnt", title)
    return f"burnt {title}"


async def held(name: str) -> str:
    note(f"{name}.begun", str(os.getpid()))
    try:
        while not is_said(f"{name}.go"):  # noqa: ASYNC110  # another process says so
            await asyncio.sleep(LOOK_SECONDS)
    except asyncio.CancelledError:
        note(f"{name}.cancelled")
        raise
    return f"{name} is back"


@server.tool()
async def lend(name: str) -> str:
    """Lend a book, and wait until it is back."""
    return await held(name)


@server.tool(annotations=reads)
async def watch(name: str) -> str:
    """Watch a book until it is back."""
    return await held(name)


@server.tool(annotations=reads)
async def count(ctx: Context, books: int) -> str:
    """Count books, and tell how far it is."""
    for number in range(books):
        await ctx.report_progress(number, books, f"book {number}")
    return f"{books} books"


@server.tool(annotations=reads)
async def missing(title: str) -> types.CallToolResult:
    """Look for a book that is not there."""
    text = types.TextContent(type="text", text=f"there is no {title}; try 'Tides'")
    return types.CallToolResult(content=[text], is_error=True)


@server.tool(annotations=reads)
async def show(what: str) -> Any:
    """Show something of any kind."""
    text = types.TextContent(type="text", text="a note")
    match what:
        case "nothing":
            return types.CallToolResult(content=[])
        case "picture":
            return Image(data=b"\x89PNG" * 3, format="png")
        case "sound":
            sound = types.AudioContent(type="audio", data="c2Vh", mime_type="audio/wav")
            return types.CallToolResult(content=[text, sound])
        case "page":
            page = types.BlobResourceContents(uri="book://tides/1.png", blob=PNG, mime_type="image/png")
            raw = types.BlobResourceContents(uri="book://tides/raw", blob="c2Vh")
            blobs: list[types.ContentBlock] = [
                types.EmbeddedResource(type="resource", resource=each) for each in (page, raw)
            ]
            return types.CallToolResult(content=blobs, structured_content={"pages": 3})
        case "drawn":
            same = types.TextContent(type="text", text='{"pages": 3}')
            drawn = types.ImageContent(type="image", data=PNG, mime_type="image/png")
            return types.CallToolResult(content=[same, drawn], structured_content={"pages": 3})
        case "smudge":
            smudge = types.ImageContent(type="image", data="x", mime_type="image/png")
            return types.CallToolResult(content=[smudge])
        case "torn":
            torn = types.TextContent(type="text", text="torn")
            drawn = types.ImageContent(type="image", data=PNG, mime_type="image/png")
            return types.CallToolResult(content=[torn, drawn], is_error=True)
        case "link":
            link = types.ResourceLink(type="resource_link", name="Tides", uri="book://tides", description="of the sea")
            return types.CallToolResult(content=[link])
        case "chapter":
            chapter = types.TextResourceContents(uri="book://tides/1", text="The sea breathes.")
            return types.CallToolResult(content=[types.EmbeddedResource(type="resource", resource=chapter)])
        case "both":
            return types.CallToolResult(content=[text], structured_content={"pages": 3})
        case "data":
            same = types.TextContent(type="text", text='{"pages": 3}')
            return types.CallToolResult(content=[same], structured_content={"pages": 3})
        case "much":
            return types.CallToolResult(content=[types.TextContent(type="text", text="x" * 2_000_000)])
        case _:
            return types.CallToolResult(content=[text, text])


@server.tool()
async def move(title: str, to: Annotated[str, Field(json_schema_extra={"x-mcp-header": "To"})]) -> str:
    """Move a book to another room; a proxy reads from a header where."""
    return f"{title} is in the {to}"


@server.tool(annotations=reads)
async def whose(ctx: Context) -> str:
    """Whose shelf it is, by the credentials of the call."""
    request: Any = ctx.request_context.request
    return request.headers.get("authorization", "").rpartition("-")[2]


@server.resource("book://tides", description="About the sea.", mime_type="text/plain")
def tides() -> str:
    return "The sea breathes."


@server.resource("book://cover", mime_type="image/png")
def cover() -> bytes:
    return b"\x89PNG"


@server.resource("book://pages/{number}")
def page(number: str) -> str:
    return f"page {number}"


@server.prompt()
def review(title: str) -> list[Any]:
    """Ask for a review."""
    return [UserMessage(f"Review {title}."), UserMessage("Be brief.")]


@server.prompt(name="show")
def shown(what: str) -> list[Any]:
    """Show something to a model."""
    paper = types.BlobResourceContents(uri="book://paper", blob="JVBERg==", mime_type="application/pdf")
    chapter = types.TextResourceContents(uri="book://tides/1", text="The sea breathes.")
    return [
        UserMessage(types.ImageContent(type="image", data="iVBORw==", mime_type="image/png")),
        *(UserMessage(types.EmbeddedResource(type="resource", resource=each)) for each in (paper, chapter)),
    ]


@server.prompt()
def talk() -> list[Any]:
    """A conversation that is half over."""
    return [UserMessage("Hello."), AssistantMessage("Good day.")]


class Answer(BaseModel):
    """What a person would be asked for."""

    yes: bool


@server.tool()
async def ask(ctx: Context) -> str:
    """Ask a person in the middle of the call."""
    answer = await ctx.elicit("Sure?", schema=Answer)
    return answer.action


@server.tool(annotations=reads)
async def environment() -> dict[str, Any]:
    """What it was started with."""
    return {"names": sorted(os.environ), "pid": os.getpid(), "secret": os.environ.get("SHELF_SECRET")}


for name in (FOLDER / GONE).read_text().split() if is_said(GONE) else ():
    server.remove_tool(name)


def guarded(app: Any) -> Any:
    """What a proxy before a server, or a server of another age, may answer."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["method"] == "DELETE":
            note("goodbye")
            if is_said("silent"):
                await asyncio.Event().wait()
        if scope["type"] != "http" or scope["method"] != "POST":
            await app(scope, receive, send)
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        note("tokens", headers.get("authorization", ""))
        note("sessions", json.dumps([headers.get("mcp-session-id"), headers.get("authorization")]))
        said = None
        if is_said("token") and headers.get("authorization") != f"Bearer {(FOLDER / 'token').read_text()}":
            said = 401, "text/plain", b"no"
        elif is_said("legacy") and headers.get("mcp-method") == "server/discover":
            said = 404, "text/plain", b"what?"
        elif headers.get("mcp-method", "tools/call") == "tools/call" and is_said("says"):
            status, kind, body = (FOLDER / "says").read_text().split(" ", 2)
            said = int(status), kind, body.encode()
        if said is None:
            await app(scope, receive, send)
            return
        status, kind, body = said
        told = [(b"content-type", kind.encode())]
        if is_said("location"):
            told.append((b"location", (FOLDER / "location").read_bytes()))
        await send({"type": "http.response.start", "status": status, "headers": told})
        await send({"type": "http.response.body", "body": body})

    return answer


if __name__ == "__main__":
    note("started", str(os.getpid()))
    if len(sys.argv) > 2:
        import uvicorn

        app = guarded(server.streamable_http_app(json_response=is_said("json")))
        uvicorn.run(app, port=int(sys.argv[2]), log_level="warning", lifespan="on")
    else:
        print("the shelf is open", file=sys.stderr, flush=True)
        server.run()
