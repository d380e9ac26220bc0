"""When what was saved is embedded: before the save is answered, or beside it."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

from helix_agents.agent.choices import check_whole
from helix_agents.engine.log import log_event, log_exception

Embedding: TypeAlias = Callable[[], Awaitable[Any]]
"""Embeds one memory that is saved already."""


class EmbeddingExecutor(Protocol):
    """Carries out embeddings. What it never came to is not lost: its memory is saved, and says that it is pending."""

    async def submit(self, embedding: Embedding) -> None:
        """Have a memory embedded, now or later."""
        ...

    async def shutdown(self) -> None:
        """Wait until everything that was submitted is done; later ones begin anew."""
        ...


class InlineEmbeddingExecutor(EmbeddingExecutor):
    """Embeds a memory before its save is answered."""

    async def submit(self, embedding: Embedding) -> None:
        await embedding()

    async def shutdown(self) -> None:
        """There is never anything under way."""


class BackgroundEmbeddingExecutor(EmbeddingExecutor):
    """Embeds memories beside whoever saved them, at most `max_concurrency` at a time and in their order.

    Args:
        max_concurrency: How many are embedded at once.
        shutdown_seconds: How long `shutdown` waits for those under way; the rest stays pending in the store.
    """

    def __init__(self, max_concurrency: int = 4, *, shutdown_seconds: float = 30.0) -> None:
        check_whole("BackgroundEmbeddingExecutor", "max_concurrency", max_concurrency, 1)
        self._most = max_concurrency
        self._patience = shutdown_seconds
        self._waiting: deque[Embedding] = deque()
        self._workers: set[asyncio.Task[None]] = set()

    async def submit(self, embedding: Embedding) -> None:
        """Have it embedded when it is its turn; returns at once."""
        self._waiting.append(embedding)
        if len(self._workers) < self._most:
            worker = asyncio.create_task(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    async def shutdown(self) -> None:
        try:
            async with asyncio.timeout(self._patience):
                # Whoever is at work may be joined by others meanwhile.
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
