"""When a saved memory is embedded: before the save returns, or in the background."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

from helix_agents.agent.choices import check_whole
from helix_agents.engine.log import log_event, log_exception

Embedding: TypeAlias = Callable[[], Awaitable[Any]]
"""Embeds one memory that is already saved."""


class EmbeddingExecutor(Protocol):
    """Runs embeddings. One that it never gets to is not lost: the memory is saved, and marked as pending."""

    async def submit(self, embedding: Embedding) -> None:
        """Have a memory embedded, now or later."""
        ...

    async def shutdown(self) -> None:
        """Wait until everything submitted is done. Later submissions start it again."""
        ...


class InlineEmbeddingExecutor(EmbeddingExecutor):
    """Embeds a memory before its save returns."""

    async def submit(self, embedding: Embedding) -> None:
        await embedding()

    async def shutdown(self) -> None:
        """Nothing is ever under way."""


class BackgroundEmbeddingExecutor(EmbeddingExecutor):
    """Embeds memories in the background, at most `max_concurrency` at a time and in order.

    Args:
        max_concurrency: How many are embedded at once.
        shutdown_seconds: How long `shutdown` waits for those under way; the rest stay pending in the store.
    """

    def __init__(self, max_concurrency: int = 4, *, shutdown_seconds: float = 30.0) -> None:
        check_whole("BackgroundEmbeddingExecutor", "max_concurrency", max_concurrency, 1)
        self._most = max_concurrency
        self._patience = shutdown_seconds
        self._waiting: deque[Embedding] = deque()
        self._workers: set[asyncio.Task[None]] = set()

    async def submit(self, embedding: Embedding) -> None:
        """Embed it when its turn comes; returns at once."""
        self._waiting.append(embedding)
        if len(self._workers) < self._most:
            worker = asyncio.create_task(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    async def shutdown(self) -> None:
        try:
            async with asyncio.timeout(self._patience):
                # Workers may be joined by others meanwhile.
                while self._workers:
                    await asyncio.wait(self._workers)
        except TimeoutError:
            log_event("memory.embeddings_left", left=len(self._workers) + len(self._waiting))
            self._waiting.clear()
            late = {*self._workers}
            for worker in late:
                worker.cancel()
            await asyncio.wait(late, timeout=1)

    async def _work(self) -> None:
        while self._waiting:
            embedding = self._waiting.popleft()
            try:
                await embedding()
            except Exception as problem:
                log_exception("memory.not_embedded", problem)
