"""A stream writer that is still being created: the run starts while the stream is asked for it."""

import asyncio
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

import msgspec

from helix_agents.domain.chunks import Delta, StreamChunk, SubagentEnd, with_text
from helix_agents.domain.errors import ChunkTooLargeError
from helix_agents.domain.streams import StreamAppend
from helix_agents.ports.streams import StreamWriter


class ComingWriter:
    """Accepts chunks at once and passes them on, in order, when the writer arrives.

    Becoming the writer is a write to the store; the model can be asked meanwhile. Nothing is stored before the writer
    has arrived, so a run that another one replaced learns of it at its first flush or commit at the latest.
    """

    def __init__(self, coming: Coroutine[Any, Any, StreamWriter]) -> None:
        self._early: list[tuple[StreamChunk, list[str]]] = []
        self._writer: StreamWriter | None = None
        self._arriving = asyncio.create_task(self._arrive(coming))
        self._arriving.add_done_callback(_hear)

    @property
    def writer(self) -> int:
        """The writer's number; 0 until it is known."""
        return self._writer.writer if self._writer is not None else 0

    @property
    def sequence(self) -> int:
        return self._writer.sequence if self._writer is not None else 0

    async def write(self, chunk: StreamChunk) -> None:
        if self._writer is None and not self._arriving.done():
            self._early.append((chunk, []))
        else:
            await (self._writer or await self.arrived()).write(chunk)

    def extend(self, chunk: Delta, text: str) -> bool:
        if self._writer is not None:
            return self._writer.extend(chunk, text)
        if not self._early or self._early[-1][0] is not chunk:
            return False
        self._early[-1][1].append(text)
        return True

    async def flush(self) -> int:
        return await (await self.arrived()).flush()

    def take(self) -> AbstractAsyncContextManager[StreamAppend | None]:
        return self._writer.take() if self._writer is not None else _Taking(self)

    async def close(self) -> None:
        await (await self.arrived()).close()

    async def arrived(self) -> StreamWriter:
        """The writer itself.

        Raises:
            SupersededError: a newer run or attempt owns the stream.
        """
        # Shielded: a caller that stops waiting must not cancel the writer for the others.
        return self._writer or await asyncio.shield(self._arriving)

    async def _arrive(self, coming: Coroutine[Any, Any, StreamWriter]) -> StreamWriter:
        writer = await coming
        while self._early:
            chunk, more = self._early.pop(0)
            await _write_early(writer, chunk)
            for text in more:
                if not writer.extend(cast("Delta", chunk), text):
                    chunk = with_text(cast("Delta", chunk), text)
                    await writer.write(chunk)
        self._writer = writer
        return writer


async def _write_early(writer: StreamWriter, chunk: StreamChunk) -> None:
    """Write a chunk whose author has already moved on. One that turns out too large is dropped, because the transcript
    has its content; the end of a sub-agent is sent without its result."""
    try:
        await writer.write(chunk)
    except ChunkTooLargeError:
        if isinstance(chunk, SubagentEnd):
            await writer.write(msgspec.structs.replace(chunk, result=None))


def _hear(arriving: asyncio.Task[StreamWriter]) -> None:
    """Mark the exception of a writer that never arrived as retrieved. Callers that need the writer get it from
    `arrived`; a run that was released before needs none."""
    if not arriving.cancelled():
        arriving.exception()


class _Taking:
    """Hands over what the writer has taken in, once the writer has arrived."""

    def __init__(self, coming: ComingWriter) -> None:
        self._coming = coming
        self._taking: AbstractAsyncContextManager[StreamAppend | None] | None = None

    async def __aenter__(self) -> StreamAppend | None:
        self._taking = (await self._coming.arrived()).take()
        return await self._taking.__aenter__()

    async def __aexit__(self, *problem: Any) -> bool | None:
        assert self._taking is not None
        return await self._taking.__aexit__(*problem)
