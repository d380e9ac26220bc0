"""Standard input, line by line, read by a detached thread: the server can end without standard input being closed."""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import asynccontextmanager, suppress

BLOCK_BYTES = 1 << 16
LINES_AHEAD = 64


@asynccontextmanager
async def standard_input() -> AsyncGenerator[AsyncIterator[str]]:
    """The lines of standard input. Anything else that reads it in this block, or is started in it, finds its end."""
    # Never closed: the thread may still be waiting for another line at the end.
    wire = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    try:
        yield _lines(wire)
    finally:
        os.dup2(wire, 0)


async def _lines(wire: int) -> AsyncIterator[str]:
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str | None] = asyncio.Queue()
    room = threading.Semaphore(LINES_AHEAD)

    def read() -> None:
        # The loop is closed when no one is interested any more.
        with suppress(RuntimeError):
            for line in _read(wire):
                room.acquire()
                loop.call_soon_threadsafe(lines.put_nowait, line.decode("utf-8", "replace"))
            loop.call_soon_threadsafe(lines.put_nowait, None)

    threading.Thread(target=read, name="helix mcp", daemon=True).start()
    while (line := await lines.get()) is not None:
        room.release()
        yield line


def _read(wire: int) -> Generator[bytes]:
    rest = b""
    with suppress(OSError):
        while data := os.read(wire, BLOCK_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            yield from lines
    if rest:
        yield rest
