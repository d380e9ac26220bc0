"""Memories of entities, searched one by one: the contract in its shortest form."""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from helix_agents.backends.in_memory.handle import Handle, own, page_of
from helix_agents.backends.in_memory.tables import Tables
from helix_agents.backends.in_memory.transaction import Transaction
from helix_agents.domain.ids import check_id
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
    check_embedding,
    check_save,
    check_update,
    digest_of,
    fits,
    plan_save,
    plan_update,
)
from helix_agents.domain.memory_search import Looked, by_meaning, by_words, look_at
from helix_agents.domain.paging import DEFAULT_LIMIT, Page, check_page
from helix_agents.ports.memory_store import MemoryStore


class InMemoryMemoryStore(Handle):
    """What is known about entities, for as long as the process lives."""

    def now_ms(self) -> int:
        return self._clock.now_ms()

    async def save_memory(self, request: SaveMemory) -> SavedMemory:
        check_save(request)
        request = own(request)
        async with self._writing("save_memory") as tx:
            rows = tx.tables.memories.get(request.entity, {})
            digest = digest_of(request.text)
            same = (
                row.memory
                for row in rows.values()
                if row.memory.source == request.source and digest_of(row.memory.text) == digest
            )
            under_id = rows[request.id].memory if request.id in rows else None
            saved = plan_save(request, under_id=under_id, same_text=next(same, None), now=tx.now)
            if saved.outcome != "known":
                _put(tx, saved.memory)
        return own(saved)

    async def find_memory(self, entity: EntityId, memory_id: MemoryId) -> MemoryRecord | None:
        with self._reading() as tables:
            row = tables.memories.get(entity, {}).get(memory_id)
        return None if row is None else own(row.memory)

    async def update_memory(self, request: UpdateMemory) -> MemoryRecord:
        check_update(request)
        request = own(request)
        async with self._writing("update_memory") as tx:
            row = tx.tables.memories.get(request.entity, {}).get(request.id)
            stored = None if row is None else row.memory
            memory = plan_update(request, stored, tx.now)
            if memory is not stored:
                _put(tx, memory)
        return own(memory)

    async def delete_memories(
        self,
        entity: EntityId,
        *,
        ids: Sequence[MemoryId] | None = None,
        sources: Sequence[str] | None = None,
    ) -> int:
        async with self._writing("delete_memories") as tx:
            rows = tx.tables.memories.get(entity, {})
            wanted = rows.keys() if ids is None else rows.keys() & {*ids}
            goes = [key for key in wanted if sources is None or rows[key].memory.source in sources]
            for key in goes:
                tx.remove(rows, key)
            if not rows:
                tx.remove(tx.tables.memories, entity)
        return len(goes)

    async def list_memories(
        self,
        entity: EntityId,
        *,
        sources: Sequence[str] | None = None,
        offset: int = 0,
        limit: int = DEFAULT_LIMIT,
    ) -> Page[MemoryRecord]:
        check_page(offset, limit)
        with self._reading() as tables:
            found = [row.memory for row in _rows(tables, entity, sources)]
        found.sort(key=lambda each: (each.created_at, each.id), reverse=True)
        return page_of(found, offset, limit, own)

    async def list_entities(self, *, offset: int = 0, limit: int = DEFAULT_LIMIT) -> Page[MemoryEntity]:
        check_page(offset, limit)
        with self._reading() as tables:
            counted = Counter(
                (entity, row.memory.source) for entity, rows in tables.memories.items() for row in rows.values()
            )
        found = [
            MemoryEntity(entity=entity, source=source, memories=n) for (entity, source), n in sorted(counted.items())
        ]
        return page_of(found, offset, limit, own)

    async def search_words(
        self, entity: EntityId, words: Sequence[str], *, sources: Sequence[str] | None = None, limit: int = 10
    ) -> tuple[MemoryRecord, ...]:
        with self._reading() as tables:
            rows = _rows(tables, entity, sources)
        return tuple(own(memory) for memory in by_words(rows, words, limit))

    async def search_meaning(
        self,
        entity: EntityId,
        vector: bytes,
        embedded_by: str,
        *,
        sources: Sequence[str] | None = None,
        limit: int = 10,
    ) -> tuple[NearMemory, ...]:
        with self._reading() as tables:
            rows = _rows(tables, entity, sources)
        return tuple(own(near) for near in by_meaning(rows, vector, embedded_by, limit))

    async def put_embedding(self, embedding: MemoryEmbedding) -> bool:
        check_embedding(embedding)
        async with self._writing("put_embedding") as tx:
            row = tx.tables.memories.get(embedding.entity, {}).get(embedding.id)
            if row is None or not fits(embedding, row.memory):
                return False
            memory = msgspec.structs.replace(row.memory, embedded_by=embedding.embedded_by)
            rows = tx.within(tx.tables.memories, embedding.entity)
            tx.put(rows, embedding.id, row._replace(memory=memory, vector=embedding.vector))
        return True

    async def list_unembedded(
        self,
        embedder: str | None = None,
        *,
        after: tuple[EntityId, MemoryId] | None = None,
        before_ms: int | None = None,
        limit: int = 100,
    ) -> tuple[MemoryRecord, ...]:
        with self._reading() as tables:
            everything: Iterable[MemoryRecord] = (
                row.memory for rows in tables.memories.values() for row in rows.values()
            )
            found = [
                each
                for each in everything
                if (each.embedded_by is None or (embedder is not None and each.embedded_by != embedder))
                and (after is None or (each.entity, each.id) > after)
                and (before_ms is None or each.updated_at < before_ms)
            ]
        found.sort(key=lambda each: (each.entity, each.id))
        return tuple(map(own, found[:limit]))


def _rows(tables: Tables, entity: EntityId, sources: Sequence[str] | None) -> list[Looked]:
    check_id(entity, "entity")
    rows = tables.memories.get(entity, {}).values()
    return [row for row in rows if sources is None or row.memory.source in sources]


def _put(tx: Transaction, memory: MemoryRecord) -> None:
    rows = tx.within(tx.tables.memories, memory.entity)
    before = rows.get(memory.id)
    keeps = before is not None and memory.embedded_by is not None
    tx.put(rows, memory.id, look_at(memory, before.vector if before is not None and keeps else None))


_: type[MemoryStore] = InMemoryMemoryStore
