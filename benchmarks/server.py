"""What the agent server adds to HTTP: chunks per second and the first chunk, beside a bare endpoint of the same bytes.

Run: uv run python benchmarks/server.py [--quick]
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Mount, Route

from helix_agents import Agent, AgentServer, Executor, ScriptedModel, ToolContext, tool
from helix_agents.llm.scripted import Step, call
from helix_agents.ports.llm import ModelEvent, ModelRequest
from helix_agents.server.limits import ServerLimits
from helix_agents.server.sse import frame
from helix_agents.server.wire import to_json

SESSION, HELD = "told", "held"
READERS = (1, 100)
OURS, BARE = f"/agents/sse?sessionId={SESSION}", "/bare"


def serve(port_to: Connection, store: str, chunks: int) -> None:
    """A process with both endpoints: a stored stream with this many chunks, and the same frames from a list."""
    holding = asyncio.Event()

    async def pace(event: ModelEvent) -> None:
        if holding.is_set():
            await asyncio.Event().wait()

    @tool
    async def tell(ctx: ToolContext[Any, Any]) -> str:
        """Say something in so many chunks; pieces of a text would become one."""
        for _ in range(chunks):
            ctx.emit("piece", "eight ch")
        return "told"

    def script(request: ModelRequest) -> Step:
        return call("tell") if request.step == 1 else "Done."

    agent = Agent(name="teller", model=ScriptedModel(script, pace=pace), tools=[tell])
    limits = ServerLimits(open_streams=5_000)
    server = AgentServer(
        Executor.open(store, agents=[agent], janitor_seconds=None, grace=0.1), allow_unauthenticated=True, limits=limits
    )
    frames: list[bytes] = []

    @asynccontextmanager
    async def life(_: object) -> AsyncIterator[None]:
        async with server.lifespan():
            helix: Any = server._executor
            run = await helix.execute(agent, "go", SESSION)
            await run.result()
            frames.extend([frame(to_json(c), id=c.sequence) async for c in run.stream(from_sequence=0)])
            holding.set()
            await helix.execute(agent, "go", HELD)
            yield

    async def bare(_: Request) -> StreamingResponse:
        async def all_frames() -> AsyncIterator[bytes]:
            for each in frames:
                yield each

        return StreamingResponse(all_frames(), media_type="text/event-stream")

    async def memory(_: Request) -> PlainTextResponse:
        return PlainTextResponse(await asyncio.to_thread(Path(f"/proc/{os.getpid()}/statm").read_text))

    app = Starlette(routes=[Route("/bare", bare), Route("/memory", memory), Mount("/agents", server)], lifespan=life)
    config = uvicorn.Config(app, port=0, log_level="critical", timeout_graceful_shutdown=1)
    serving = uvicorn.Server(config)

    async def main() -> None:
        task = asyncio.create_task(serving.serve())
        while not serving.started:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        port_to.send(serving.servers[0].sockets[0].getsockname()[1])
        await task

    asyncio.run(main())


async def read(port: int, path: str) -> tuple[float, float, int]:
    """Seconds to the first frame and to the end, and how many chunks arrived."""
    begun = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    first = 0.0
    count = 0
    while data := await reader.read(1 << 16):
        count += data.count(b"id: ")
        if not first and b"data: " in data:
            first = time.perf_counter() - begun
    writer.close()
    return first, time.perf_counter() - begun, count


async def deliver(port: int, path: str, readers: int) -> tuple[float, float]:
    """Median seconds to the first frame, and seconds until all readers had everything."""
    begun = time.perf_counter()
    done = await asyncio.gather(*(read(port, path) for _ in range(readers)))
    counts = {count for _, _, count in done}
    assert min(counts) > 0
    return statistics.median(first for first, _, _ in done), time.perf_counter() - begun


async def compare(port: int, readers: int, rounds: int, chunks: int) -> dict[str, float]:
    """Measure both endpoints alternately, so that other load on the machine affects both."""
    ours: list[tuple[float, float]] = []
    bare: list[tuple[float, float]] = []
    for _ in range(rounds):
        bare.append(await deliver(port, BARE, readers))
        ours.append(await deliver(port, OURS, readers))
    ours_first, ours_all = (statistics.median(each) for each in zip(*ours, strict=True))
    bare_first, bare_all = (statistics.median(each) for each in zip(*bare, strict=True))
    return {
        "chunks_per_second": round(readers * chunks / ours_all),
        "bare_chunks_per_second": round(readers * chunks / bare_all),
        "ratio": round(ours_all / bare_all, 2),
        "first_ms": round(ours_first * 1000, 2),
        "bare_first_ms": round(bare_first * 1000, 2),
        "first_ratio": round(ours_first / bare_first, 2),
    }


async def resident(port: int) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /memory HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return int(answer.rpartition(b"\r\n\r\n")[2].split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def idle_streams(port: int, count: int) -> float:
    """Kilobytes of server memory per reader of an idle stream."""
    before = await resident(port)
    opened = []
    for _ in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET /agents/sse?sessionId={HELD} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        await reader.readuntil(b"data: ")
        opened.append(writer)
    after = await resident(port)
    for writer in opened:
        writer.close()
    return round((after - before) / count / 1024, 1)


async def measure(port: int, *, quick: bool, chunks: int) -> dict[str, Any]:
    """All figures of one run."""
    rounds = 41 if quick else 101
    await compare(port, 1, 1, chunks)
    # First, before the process has kept memory that it needed for something else.
    idle = await idle_streams(port, 200 if quick else 900)
    figures: dict[str, Any] = {str(n): await compare(port, n, rounds if n == 1 else 3, chunks) for n in READERS}
    return {**figures, "idle_stream_kb": idle}


def main() -> None:
    """Measure, print a table, and the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="about ten seconds")
    quick = parser.parse_args().quick
    chunks = 500 if quick else 2_000
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        here, there = context.Pipe()
        process = context.Process(target=serve, args=(there, f"sqlite:///{folder}/helix.db", chunks), daemon=True)
        process.start()
        figures = asyncio.run(measure(here.recv(), quick=quick, chunks=chunks))
        process.terminate()
        process.join()
    rows = {
        "chunks a second": "chunks_per_second",
        "chunks a second, bare endpoint": "bare_chunks_per_second",
        "time for all, ratio to bare (aim <= 1.5)": "ratio",
        "first chunk, ms": "first_ms",
        "first chunk, bare, ms": "bare_first_ms",
        "first chunk, ratio to bare (aim <= 1.5)": "first_ratio",
    }
    print(f"{'readers':44}" + "".join(f"{n:>12}" for n in READERS))
    for label, key in rows.items():
        print(f"{label:44}" + "".join(f"{figures[str(n)][key]:>12,}" for n in READERS))
    print(f"{'memory of an idle open stream, KB':44}{figures['idle_stream_kb']:>12}")
    ratios = {f"ratio_{n}": figures[str(n)]["ratio"] for n in READERS}
    print(json.dumps({"sse": {**ratios, **figures}}))


if __name__ == "__main__":
    main()
