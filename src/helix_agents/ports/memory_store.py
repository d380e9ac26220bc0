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
    """Memories of entities. Every method except `list_entities` and `list_unembedded` sees one entity, and no other.

    `sources` limits a query to memories from these sources; None means all.
    """

    async def save_memory(self, request: SaveMemory) -> SavedMemory:
        """Keep a memory. Within one source a text is stored once: of any number of callers with the same text, one
        creates the memory, and all get it. When this returns, the memory is stored, and a search by its words finds it.

        Raises:
            InvalidIdError, InvalidInputError, UnstorableValueError: it cannot be kept.
        """
        ...

    async def find_memory(self, entity: EntityId, memory_id: MemoryId) -> MemoryRecord | None:
        """A memory of this entity."""
        ...

    async def update_memory(self, request: UpdateMemory) -> MemoryRecord:
        """Change a memory. With a new text, its old words and meaning no longer find it.

        Raises:
            MemoryNotFoundError: the entity has no such memory.
            MemoryChangedError: it was changed since `expected_version`.
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
        """Delete memories with their words and vectors: those with these ids, from these sources, or all; returns how
        many were deleted."""
        ...

    async def list_memories(
        self,
        entity: EntityId,
        *,
        sources: Sequence[str] | None = None,
        offset: int = 0,
        limit: int = DEFAULT_LIMIT,
    ) -> Page[MemoryRecord]:
        """Memories of an entity, newest first."""
        ...

    async def list_entities(self, *, offset: int = 0, limit: int = DEFAULT_LIMIT) -> Page[MemoryEntity]:
        """The entities and sources that have memories, in order."""
        ...

    async def search_words(
        self, entity: EntityId, words: Sequence[str], *, sources: Sequence[str] | None = None, limit: int = 10
    ) -> tuple[MemoryRecord, ...]:
        """Memories that contain any of these words, as `words_of` reads them, best match first."""
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
        """Memories that this embedder has embedded, nearest first. Exact: no near memory is left out."""
        ...

    async def put_embedding(self, embedding: MemoryEmbedding) -> bool:
        """Store the vector that an embedder made of a text; False if that is no longer the memory's text."""
        ...

    async def list_unembedded(
        self,
        embedder: str | None = None,
        *,
        after: tuple[EntityId, MemoryId] | None = None,
        before_ms: int | None = None,
        limit: int = 100,
    ) -> tuple[MemoryRecord, ...]:
        """Memories that no embedder has embedded, or that this one has not, by entity and id; if a time is given, only
        those last changed before it."""
        ...

    def now_ms(self) -> int:
        """The store's clock."""
        ...

    async def close(self) -> None:
        """Release files and connections; idempotent."""
        ...
