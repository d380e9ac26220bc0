"""A child's chunks in its root's stream: the same writer, so that one fence guards them all and their order is kept."""

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from helix_agents.domain.chunks import Delta, StreamChunk
from helix_agents.domain.streams import StreamAppend

if TYPE_CHECKING:
    from helix_agents.engine.scope import RunScope


class DelegatedWriter:
    """Writes through whatever writer the parent has at the moment; closing it leaves the parent's open."""

    def __init__(self, parent: "RunScope") -> None:
        self._parent = parent

    @property
    def writer(self) -> int:
        return self._parent.writer.writer

    @property
    def sequence(self) -> int:
        return self._parent.writer.sequence

    async def write(self, chunk: StreamChunk) -> None:
        await self._parent.writer.write(chunk)

    def extend(self, chunk: Delta, text: str) -> bool:
        return self._parent.writer.extend(chunk, text)

    async def flush(self) -> int:
        return await self._parent.writer.flush()

    def take(self) -> AbstractAsyncContextManager[StreamAppend | None]:
        return self._parent.writer.take()

    async def close(self) -> None:
        """Nothing to do: the stream belongs to the root."""
