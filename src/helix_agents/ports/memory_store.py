"""Where memories are kept, and found by their words and by their meaning."""

from collections.abc import Sequence
from typing import Protocol

from helix_agents.domain.memories import (
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
from helix_agents.domain.paging import DEFAULT_LIMIT, Page


class MemoryStore(Protocol):
    """Memories of entities. Everything but `list_entities` and `list_unembedded` sees one entity, and no other.

    `sources` narrows a question to memories from these; None is for all.
    """

    async def save_memory(self, request: SaveMemory) -> SavedMemory:
        """Keep a memory. One source says a thing once: of any number of callers with the same text one creates it, and
        all are told of it. What is answered is stored, and its words are found.

        Raises:
            InvalidIdError, InvalidInputError, UnstorableValueError: it cannot be kept.
        """
        ...

    async def find_memory(self, entity: EntityId, memory_id: MemoryId) -> MemoryRecord | None:
        """A memory of this entity."""
        ...

    async def update_memory(self, request: UpdateMemory) -> MemoryRecord:
        """Change a memory; with a new text its old words and meaning find it no more.

        Raises:
            MemoryNotFoundError: the entity has no such memory.
            MemoryChangedError: somebody changed it since `expected_version`.
            InvalidIdError, InvalidInputError, UnstorableValueError: it cannot be kept.
        """
        ...

    async def delete_memories(
        self,
        entity: EntityId,
        *,
        ids: Sequence[MemoryId] | None = None,
        sources: Sequence[str] | None = None,
    ) -> int:
        """Delete memories with their words and vectors: those with these ids, from these sources, or all; answers how
        many went."""
        ...

    async def list_memories(
        self,
        entity: EntityId,
        *,
        sources: Sequence[str] | None = None,
        offset: int = 0,
        limit: int = DEFAULT_LIMIT,
    ) -> Page[MemoryRecord]:
        """Memories of an entity, the newest first."""
        ...

    async def list_entities(self, *, offset: int = 0, limit: int = DEFAULT_LIMIT) -> Page[MemoryEntity]:
        """Whom there are memories of, by entity and source, in their order."""
        ...

    async def search_words(
        self, entity: EntityId, words: Sequence[str], *, sources: Sequence[str] | None = None, limit: int = 10
    ) -> tuple[MemoryRecord, ...]:
        """Memories that have any of these words, as `words_of` reads them, the best first."""
        ...

    async def search_meaning(
        self,
        entity: EntityId,
        vector: bytes,
        embedded_by: str,
        *,
        sources: Sequence[str] | None = None,
        limit: int = 10,
    ) -> tuple[NearMemory, ...]:
        """Memories that this embedder has read, the nearest first. Exact: no near one is left out."""
        ...

    async def put_embedding(self, embedding: MemoryEmbedding) -> bool:
        """Keep what an embedder made of a text; False where that text is not the memory's any more."""
        ...

    async def list_unembedded(
        self,
        embedder: str | None = None,
        *,
        after: tuple[EntityId, MemoryId] | None = None,
        before_ms: int | None = None,
        limit: int = 100,
    ) -> tuple[MemoryRecord, ...]:
        """Memories that no embedder has read, or not this one, by entity and id; only those last changed before a time,
        if one is given."""
        ...

    def now_ms(self) -> int:
        """The store's clock."""
        ...

    async def close(self) -> None:
        """Let go of files and connections; idempotent."""
        ...
