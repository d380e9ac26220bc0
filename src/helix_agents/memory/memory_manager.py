"""Memories for programs: save, search, list, change and delete them, and embed those that are still pending."""

import asyncio
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from helix_agents.agent.failures import Contained
from helix_agents.domain.errors import (
    DefinitionError,
    InvalidInputError,
    InvalidPageError,
    ModelError,
    UnsupportedBackendError,
)
from helix_agents.domain.ids import SessionId, check_id
from helix_agents.domain.memories import (
    MOST_DIMENSIONS,
    EntityId,
    MemoryEmbedding,
    MemoryEntity,
    MemoryId,
    MemoryRecord,
    NearMemory,
    SavedMemory,
    SaveMemory,
    UpdateMemory,
)
from helix_agents.domain.memory_search import MemoryHit, put_together, unit_vector
from helix_agents.domain.memory_words import words_of
from helix_agents.domain.paging import DEFAULT_LIMIT, MAX_LIMIT, Page
from helix_agents.engine.log import log_exception
from helix_agents.memory.executors import EmbeddingExecutor, InlineEmbeddingExecutor
from helix_agents.memory.refused import RefusedTexts
from helix_agents.ports.backend import open_backend
from helix_agents.ports.clock import IdSource
from helix_agents.ports.embeddings import EmbeddingAdapter, EmbeddingPurpose, open_embedder
from helix_agents.ports.memory_store import MemoryStore
from helix_agents.system import RandomIds

LEAST_SIMILARITY = 0.25
PATIENCE: Mapping[EmbeddingPurpose, float] = {"query": 15.0, "document": 60.0}
"""How many seconds to wait for an embedder. A caller waits for the search, and words find memories as well."""
# How many times more results than wanted are taken from each ranking: what is low in one may be high in the other.
_LOOKED_AT = 3
_AT_ONCE = 50
# How many characters and words of a query are used.
_READ = 4_000
_MOST_WORDS = 100
_IDS: IdSource = RandomIds()


@dataclass(frozen=True, kw_only=True)
class ProcessedMemories:
    """How many memories were embedded, and how many could not be and stay pending; `after` is where it stopped, None if
    it reached the end."""

    embedded: int = 0
    left: int = 0
    after: tuple[EntityId, MemoryId] | None = None


def _may_pass(problem: Exception) -> bool:
    """Whether the same request may succeed later."""
    return isinstance(problem, TimeoutError) or bool(getattr(problem, "retryable", False))


def check_embedder(subject: str, embedder: object) -> None:
    """Reject anything that is neither an embedder nor the name of one.

    Raises:
        DefinitionError: says what to give.
    """
    if isinstance(embedder, str):
        prefix, colon, model = embedder.partition(":")
        if not (prefix and colon and model):
            problem = f'embedder={embedder!r} names no provider; write "openai:text-embedding-3-small".'
            raise DefinitionError(subject, problem)
        return
    # Without a name it is not known which vectors can be compared.
    is_one = callable(getattr(embedder, "embed", None)) and isinstance(getattr(embedder, "name", None), str)
    if embedder is not None and not is_one:
        raise DefinitionError(subject, f"embedder={embedder!r} is neither a name nor an embedder that has one.")


class MemoryManager:
    """Memories on a store: `async with MemoryManager.open("sqlite:///helix.db") as memories:`.

    Each call concerns one entity, such as a user, and sees no other entity's memories. Any number of processes may work
    at the same time; nothing that was saved is lost.

    Args:
        store: Where memories are kept: `executor.memories`, or `backend.memories`.
        embedder: What reads their meaning: a name such as `"openai:text-embedding-3-small"`, or an adapter. Without
            one, memories are found by their words.
        embedding_executor: When memories are embedded. By default before a save returns.
    """

    def __init__(
        self,
        store: MemoryStore | None,
        *,
        embedder: str | EmbeddingAdapter | None = None,
        embedding_executor: EmbeddingExecutor | None = None,
    ) -> None:
        if store is None:
            cure = "open the executor by a URL, or give it memories=…"
            raise DefinitionError("MemoryManager", f"this executor cannot store memories; {cure}.")
        if not callable(getattr(store, "save_memory", None)):
            raise DefinitionError("MemoryManager", f"{store!r} is not a memory store; give it executor.memories.")
        self.store = store
        check_embedder("MemoryManager", embedder)
        self.embedder = open_embedder(embedder) if isinstance(embedder, str) else embedder
        self._owns_embedder = isinstance(embedder, str)
        self._executor = embedding_executor or InlineEmbeddingExecutor()

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        url: str,
        *,
        namespace: str = "",
        embedder: str | EmbeddingAdapter | None = None,
        embedding_executor: EmbeddingExecutor | None = None,
    ) -> "AsyncGenerator[MemoryManager]":
        """The memories on the backend that a URL names, closed with the block.

        Raises:
            UnsupportedBackendError: that backend cannot store memories.
        """
        async with await open_backend(url, namespace=namespace) as backend:
            if backend.memories is None:
                raise UnsupportedBackendError(url.partition("://")[0], "memories")
            manager = cls(backend.memories, embedder=embedder, embedding_executor=embedding_executor)
            try:
                yield manager
            finally:
                await manager.shutdown()

    async def save(
        self,
        entity: EntityId,
        text: str,
        *,
        source: str = "program",
        metadata: Mapping[str, Any] | None = None,
        session_id: SessionId | None = None,
        memory_id: MemoryId | None = None,
    ) -> SavedMemory:
        """Keep a memory. The same text from the same source is kept once. If the `memory_id` already exists, the new
        memory replaces that one. The memory is stored when this returns, whatever the embedder does.

        Raises:
            InvalidIdError, InvalidInputError, UnstorableValueError: it cannot be kept; the message says why.
        """
        request = SaveMemory(
            id=memory_id if memory_id is not None else _IDS.new("mem"),
            entity=entity,
            source=source,
            text=text,
            metadata=dict(metadata or {}),
            session_id=session_id,
        )
        saved = await self.store.save_memory(request)
        return msgspec.structs.replace(saved, memory=await self._embedded(saved.memory))

    async def search(
        self,
        entity: EntityId,
        question: str,
        *,
        sources: Sequence[str] | None = None,
        limit: int = 10,
        min_similarity: float = LEAST_SIMILARITY,
    ) -> tuple[MemoryHit, ...]:
        """The memories that match a query best, by words in common and by meaning. Memories that are not embedded yet
        are found by their words, and so are all memories if the embedder does not answer.

        Raises:
            InvalidIdError, InvalidInputError, InvalidPageError: the search is not possible like this.
        """
        check_id(entity, "entity")
        if not isinstance(question, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInputError("question", f"it is of type {type(question).__name__}; it has to be text")
        if not 1 <= limit <= MAX_LIMIT:
            raise InvalidPageError(0, limit, MAX_LIMIT)
        if not question.strip():
            return ()
        # A long pasted text says in its first lines what it is about, and in its last ones what the user wants.
        asked = question if len(question) <= _READ else f"{question[: _READ // 2]} {question[-_READ // 2 :]}"
        worded, near = await asyncio.gather(
            self.store.search_words(entity, words_of(asked)[-_MOST_WORDS:], sources=sources, limit=limit * _LOOKED_AT),
            self._near(entity, asked, sources, limit * _LOOKED_AT),
        )
        return put_together(worded, near, limit, min_similarity)

    async def find(self, entity: EntityId, memory_id: MemoryId) -> MemoryRecord | None:
        """A memory of this entity."""
        return await self.store.find_memory(entity, memory_id)

    async def list_memories(
        self,
        entity: EntityId,
        *,
        sources: Sequence[str] | None = None,
        offset: int = 0,
        limit: int = DEFAULT_LIMIT,
    ) -> Page[MemoryRecord]:
        """Memories of an entity, newest first."""
        return await self.store.list_memories(entity, sources=sources, offset=offset, limit=limit)

    async def update(
        self,
        entity: EntityId,
        memory_id: MemoryId,
        *,
        text: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        expected_version: int | None = None,
    ) -> MemoryRecord:
        """Change a memory; with `expected_version`, only if it was not changed since that version was read.

        Raises:
            MemoryNotFoundError: the entity has no such memory.
            MemoryChangedError: another change came first.
            InvalidInputError, UnstorableValueError: it cannot be kept; the message says why.
        """
        request = UpdateMemory(
            entity=entity,
            id=memory_id,
            text=text,
            metadata=None if metadata is None else dict(metadata),
            expected_version=expected_version,
        )
        return await self._embedded(await self.store.update_memory(request))

    async def delete(self, entity: EntityId, *memory_ids: MemoryId) -> int:
        """Delete memories of an entity by id, with their words and vectors; returns how many there were."""
        return await self.store.delete_memories(entity, ids=memory_ids)

    async def delete_all(self, entity: EntityId, *, sources: Sequence[str] | None = None) -> int:
        """Delete everything remembered about an entity, or what came from some sources; returns how many were
        deleted."""
        return await self.store.delete_memories(entity, sources=sources)

    async def list_entities(self, *, offset: int = 0, limit: int = DEFAULT_LIMIT) -> Page[MemoryEntity]:
        """The entities and sources that have memories, and how many."""
        return await self.store.list_entities(offset=offset, limit=limit)

    async def process_unembedded_memories(
        self,
        *,
        older_than_ms: int = 0,
        only_pending: bool = False,
        after: tuple[EntityId, MemoryId] | None = None,
        at_most: int | None = None,
        refused: RefusedTexts | None = None,
    ) -> ProcessedMemories:
        """Embed the memories that this embedder has not embedded yet: because their process died, because the embedder
        was down, or, unless `only_pending`, because another embedder did it. Many processes may do this at once. With
        `at_most`, about that many are processed, starting after `after`. Texts in `refused` are left out, and texts
        that the embedder refuses are added to it.

        Raises:
            DefinitionError: there is no embedder.
        """
        if self.embedder is None:
            raise DefinitionError("MemoryManager", "it has no embedder; give it embedder=….")
        before = self.store.now_ms() - older_than_ms if older_than_ms else None
        other = None if only_pending else self.embedder.name
        embedded = left = 0
        while batch := await self.store.list_unembedded(other, after=after, before_ms=before, limit=_AT_ONCE):
            after = batch[-1].entity, batch[-1].id
            now = self.store.now_ms()
            asked = batch if refused is None else [each for each in batch if not refused.has(each, now)]
            done = await self._embed_batch(asked, refused) if asked else 0
            embedded += done or 0
            left += len(batch) - (done or 0)
            if done is None or (at_most is not None and embedded + left >= at_most):
                # A later call finds the rest.
                break
        else:
            after = None
        return ProcessedMemories(embedded=embedded, left=left, after=after)

    async def shutdown(self) -> None:
        """Finish what is under way, and release an embedder that was opened here by its name."""
        await self._executor.shutdown()
        close = getattr(self.embedder, "close", None) if self._owns_embedder else None
        if close is not None:
            await close()

    async def _embedded(self, memory: MemoryRecord) -> MemoryRecord:
        """Have a memory embedded that is not; returns the memory in its resulting state."""
        embedder = self.embedder
        if embedder is None or memory.embedded_by == embedder.name:
            return memory
        done: list[str] = []

        async def embed() -> None:
            if await self._embed_batch((memory,)):
                done.append(embedder.name)

        await self._executor.submit(embed)
        return msgspec.structs.replace(memory, embedded_by=done[0]) if done else memory

    async def _embed_batch(self, memories: Sequence[MemoryRecord], refused: RefusedTexts | None = None) -> int | None:
        """Embed memories; if a batch is refused, each by itself. Returns how many were embedded; None if the embedder
        does not answer at all."""
        problem = await self._try(memories)
        if problem is None:
            return len(memories)
        if len(memories) == 1 and refused is None:
            return 0
        if _may_pass(problem) or not await self._answers():
            return None
        embedded = 0
        for each in memories:
            if len(memories) > 1:
                problem = await self._try((each,))
            if problem is None:
                embedded += 1
            elif refused is not None and not _may_pass(problem):
                refused.add(each, self.store.now_ms())
        return embedded

    async def _try(self, memories: Sequence[MemoryRecord]) -> Exception | None:
        """Embed memories with one request; returns what went wrong, None if nothing did."""
        try:
            vectors = await self._embed([each.text for each in memories], "document")
        except Exception as problem:
            log_exception("memory.not_embedded", problem, memories=len(memories))
            return problem
        assert self.embedder is not None
        for memory, vector in zip(memories, vectors, strict=True):
            await self.store.put_embedding(
                MemoryEmbedding(
                    entity=memory.entity,
                    id=memory.id,
                    text=memory.text,
                    embedded_by=self.embedder.name,
                    vector=vector,
                )
            )
        return None

    async def _answers(self) -> bool:
        """Whether the embedder reads anything. If so, it refused one text, which is no reason to skip the others."""
        try:
            await self._embed(["memory"], "document")
        except Exception:
            return False
        return True

    async def _near(
        self, entity: EntityId, question: str, sources: Sequence[str] | None, limit: int
    ) -> tuple[NearMemory, ...]:
        if self.embedder is None:
            return ()
        try:
            [vector] = await self._embed([question], "query")
        except Exception as problem:
            # The search by words does not need the embedder.
            log_exception("memory.embedder_failed", problem, embedder=self.embedder.name)
            return ()
        return await self.store.search_meaning(entity, vector, self.embedder.name, sources=sources, limit=limit)

    async def _embed(self, texts: Sequence[str], purpose: EmbeddingPurpose) -> list[bytes]:
        assert self.embedder is not None
        with Contained(f"Embedder {self.embedder.name!r}"):
            async with asyncio.timeout(PATIENCE[purpose]):
                vectors = await self.embedder.embed(texts, purpose=purpose)
        if len(vectors) != len(texts) or not all(1 <= len(each) <= MOST_DIMENSIONS for each in vectors):
            lengths = sorted({len(each) for each in vectors})
            raise ModelError(self.embedder.name, f"for {len(texts)} texts it gave {len(vectors)} vectors of {lengths}")
        if not all(math.isfinite(value) for each in vectors for value in each):
            raise ModelError(self.embedder.name, "it gave a vector with a value that is not a number")
        return [unit_vector(each) for each in vectors]
