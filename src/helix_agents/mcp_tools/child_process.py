"""A server that is a program: started here, its error output in our log, and never left behind."""

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from mcp.client.stdio import StdioServerParameters, stdio_client

from helix_agents.engine.log import log_event

# A thread tells the event loop soon after a program has ended; a loop that is closed before that complains.
_SECONDS_TO_NOTE_AN_END = 0.02
_LONGEST_LINE = 2_000


@asynccontextmanager
async def child_process(
    server: str, command: Sequence[str], env: Mapping[str, str], cwd: str | None, complaints: deque[str]
) -> AsyncGenerator[Any]:
    """The streams to and from a program that is started for them, and ended with everything that it started.

    It inherits nothing of our environment except what a program needs to be found and run, and gets what is given. What
    it writes to its standard error is logged, and the last lines are kept in `complaints`.

    Raises:
        OSError: it cannot be started.
    """
    program, *arguments = command
    parameters = StdioServerParameters(command=program, args=arguments, env=dict(env), cwd=cwd)
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        heard = _Complaints(server, complaints)
        listening, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: heard, pipe)
        try:
            async with AsyncExitStack() as stack:
                # Our end is closed once the program has its own: when the program ends, so does its output.
                with os.fdopen(writing, "w", encoding="utf-8") as theirs:
                    streams = await stack.enter_async_context(stdio_client(parameters, errlog=theirs))
                yield streams
        finally:
            listening.close()
            await asyncio.sleep(_SECONDS_TO_NOTE_AN_END)


class _Complaints(asyncio.Protocol):
    """What a program writes to its standard error, line by line."""

    def __init__(self, server: str, last: deque[str]) -> None:
        self._server = server
        self._last = last
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:_LONGEST_LINE]
        for line in lines:
            self._tell(line)

    def eof_received(self) -> None:
        self._tell(self._rest)

    def _tell(self, line: bytes) -> None:
        text = line[:_LONGEST_LINE].decode(errors="backslashreplace").rstrip()
        if text:
            self._last.append(text)
            log_event("mcp.stderr", logging.INFO, server=self._server, line=text)
