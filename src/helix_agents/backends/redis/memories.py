"""Memories on Redis or Valkey, which have no search of their own: an entity's memories are searched here, one by one.

An entity's memories are cached as long as its revision holds, so a repeated search costs one small query. After a
change, all memories of the entity are read again, vectors included.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from helix_agents.backends.redis import index
from helix_agents.backends.redis.index import names_of
from helix_agents.backends.redis.keyspace import Keyspace, ServerClock, Work
from helix_agents.backends.redis.memory_rows import (
    Counts,
    MemoryKeys,
    digest_field,
    load_counts,
    pairs,
    put_row,
    save_counts,
    tag_of,
)
from helix_agents.backends.redis.projection import keyspace_on
from helix_agents.backends.redis.server import RedisServer
from helix_agents.backends.redis.transaction import AT_ONCE, Transaction
from helix_agents.domain.errors import StoreClosedError
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
    fits,
    plan_save,
    plan_update,
)
from helix_agents.domain.memory_search import Looked, by_meaning, by_words, look_at
from helix_agents.domain.paging import DEFAULT_LIMIT, Page, check_page
from helix_agents.domain.records import decode
from helix_agents.ports.clock import Clock
from helix_agents.ports.memory_store import MemoryStore

T = TypeVar("T")

MOST_REMEMBERED = 20_000
"""How many memories of recently searched entities are cached; with vectors of 1,536 numbers some 120 MB at most."""


class RedisMemoryStore:
    """The memories of one namespace, each entity in a slot of its own."""

    def __init__(self, server: RedisServer, *, namespace: str = "", clock: Clock | None = None) -> None:
        self._keyspace = keyspace_on(server.use(), namespace)
        self._clock = clock or ServerClock(server)
        self._closed = False
        self._known: OrderedDict[EntityId, tuple[bytes, list[Looked]]] = OrderedDict()

    def now_ms(self) -> int:
        return self._clock.now_ms()

    async def save_memory(self, request: SaveMemory) -> SavedMemory:
        check_save(request)

        async def work(tx: Transaction) -> SavedMemory:
            keys = MemoryKeys(tx.slot)
            counts = await load_counts(tx, keys)
            field = digest_field(request.source, request.text)
            under_id, same_id = await tx.read(("HGET", keys.rows, request.id), ("HGET", keys.digests, field))
            same = (await tx.read(("HGET", keys.rows, same_id)))[0] if same_id is not None else None
            saved = plan_save(request, under_id=_memory(under_id), same_text=_memory(same), now=tx.now)
            if saved.outcome == "created":
                put_row(tx, keys, saved.memory)
                tx.do("HSETNX", keys.digests, field, saved.memory.id)
                counts.value.count(saved.memory, 1)
                save_counts(tx, keys, counts, request.entity)
            elif saved.outcome == "replaced":
                await self._put(tx, keys, _sure(_memory(under_id)), saved.memory)
            return saved

        return await self._write("save_memory", request.entity, work)

    async def find_memory(self, entity: EntityId, memory_id: MemoryId) -> MemoryRecord | None:
        keys = self._keys(entity)
        (row,) = (await self._space.run("memory", (), (("HGET", keys.rows, memory_id),), 0)).replies
        return _memory(row)

    async def update_memory(self, request: UpdateMemory) -> MemoryRecord:
        check_update(request)

        async def work(tx: Transaction) -> MemoryRecord:
            keys = MemoryKeys(tx.slot)
            await load_counts(tx, keys)
            stored = _memory((await tx.read(("HGET", keys.rows, request.id)))[0])
            memory = plan_update(request, stored, tx.now)
            if stored is not None and memory is not stored:
                await self._put(tx, keys, stored, memory)
            return memory

        return await self._write("update_memory", request.entity, work)

    async def delete_memories(
        self,
        entity: EntityId,
        *,
        ids: Sequence[MemoryId] | None = None,
        sources: Sequence[str] | None = None,
    ) -> int:
        async def work(tx: Transaction) -> int:
            keys = MemoryKeys(tx.slot)
            counts = await load_counts(tx, keys)
            rows = (
                (await tx.read(("HVALS", keys.rows)))[0] if ids is None else await _read_fields(tx, keys.rows, [*ids])
            )
            found = [memory for memory in map(_memory, rows) if memory is not None]
            going = [memory for memory in found if sources is None or memory.source in sources]
            if not going:
                return 0
            names = [memory.id for memory in going]
            fields = [digest_field(memory.source, memory.text) for memory in going]
            holders = await _read_fields(tx, keys.digests, fields)
            # Another memory may have the same text and have been first.
            own = [
                field
                for field, name, holder in zip(fields, names, holders, strict=True)
                if holder is not None and holder.decode() == name
            ]
            for key, going_fields in ((keys.rows, names), (keys.vectors, names), (keys.digests, own)):
                if going_fields:
                    tx.do_with_all("HDEL", key, going_fields)
            for memory in going:
                counts.value.count(memory, -1)
            save_counts(tx, keys, counts, entity)
            return len(going)

        return await self._write("delete_memories", entity, work)

    async def list_memories(
        self,
        entity: EntityId,
        *,
        sources: Sequence[str] | None = None,
        offset: int = 0,
        limit: int = DEFAULT_LIMIT,
    ) -> Page[MemoryRecord]:
        check_page(offset, limit)
        found = [row.memory for row in await self._rows(entity, sources)]
        found.sort(key=lambda each: (each.created_at, each.id), reverse=True)
        return Page(items=tuple(found[offset : offset + limit]), total=len(found), offset=offset, limit=limit)

    async def list_entities(self, *, offset: int = 0, limit: int = DEFAULT_LIMIT) -> Page[MemoryEntity]:
        check_page(offset, limit)
        found = [
            MemoryEntity(entity=entity, source=source, memories=count)
            for entity, counts in sorted((await self._entities()).items())
            for source, count in sorted(counts.sources.items())
        ]
        return Page(items=tuple(found[offset : offset + limit]), total=len(found), offset=offset, limit=limit)

    async def search_words(
        self, entity: EntityId, words: Sequence[str], *, sources: Sequence[str] | None = None, limit: int = 10
    ) -> tuple[MemoryRecord, ...]:
        rows = await self._rows(entity, sources)
        return await asyncio.to_thread(by_words, rows, words, limit)

    async def search_meaning(
        self,
        entity: EntityId,
        vector: bytes,
        embedded_by: str,
        *,
        sources: Sequence[str] | None = None,
        limit: int = 10,
    ) -> tuple[NearMemory, ...]:
        rows = await self._rows(entity, sources)
        return await asyncio.to_thread(by_meaning, rows, vector, embedded_by, limit)

    async def put_embedding(self, embedding: MemoryEmbedding) -> bool:
        check_embedding(embedding)

        async def work(tx: Transaction) -> bool:
            keys = MemoryKeys(tx.slot)
            counts = await load_counts(tx, keys)
            stored = _memory((await tx.read(("HGET", keys.rows, embedding.id)))[0])
            if stored is None or not fits(embedding, stored):
                return False
            memory = msgspec.structs.replace(stored, embedded_by=embedding.embedded_by)
            put_row(tx, keys, memory)
            tx.do("HSET", keys.vectors, embedding.id, embedding.vector)
            counts.value.count(stored, -1)
            counts.value.count(memory, 1)
            save_counts(tx, keys, counts, embedding.entity)
            return True

        return await self._write("put_embedding", embedding.entity, work)

    async def list_unembedded(
        self,
        embedder: str | None = None,
        *,
        after: tuple[EntityId, MemoryId] | None = None,
        before_ms: int | None = None,
        limit: int = 100,
    ) -> tuple[MemoryRecord, ...]:
        found: list[MemoryRecord] = []
        # Without an embedder, only memories that nobody has embedded matter, and those are few.
        told = await self._entities(index.UNEMBEDDED if embedder is None else index.MEMORIES)
        for entity, counts in sorted(told.items()):
            wanted = "" in counts.embedders or (embedder is not None and counts.embedders.keys() - {embedder})
            if not wanted or (after is not None and entity < after[0]):
                continue
            keys = self._keys(entity)
            (rows,) = (await self._space.run("memories", (), (("HVALS", keys.rows),), 0)).replies
            left = (
                each
                for each in map(_sure, map(_memory, rows))
                if (each.embedded_by is None or (embedder is not None and each.embedded_by != embedder))
                and (after is None or (entity, each.id) > after)
                and (before_ms is None or each.updated_at < before_ms)
            )
            found.extend(sorted(left, key=lambda each: each.id))
            if len(found) >= limit:
                break
        return tuple(found[:limit])

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._known.clear()
            await self._keyspace.server.close()

    @property
    def _space(self) -> Keyspace:
        if self._closed:
            raise StoreClosedError(self._keyspace.server.name)
        return self._keyspace

    def _keys(self, entity: EntityId) -> MemoryKeys:
        return MemoryKeys(self._space.slot(tag_of(entity)))

    async def _write(self, what: str, entity: EntityId, work: Work[T]) -> T:
        check_id(entity, "entity")
        return await self._space.write(what, entity, work, clock=self._clock, tag=tag_of(entity))

    async def _put(self, tx: Transaction, keys: MemoryKeys, before: MemoryRecord, memory: MemoryRecord) -> None:
        """Replace a memory with its changed version."""
        put_row(tx, keys, memory)
        counts = await load_counts(tx, keys)
        counts.value.count(before, -1)
        counts.value.count(memory, 1)
        save_counts(tx, keys, counts, memory.entity)
        old, new = (digest_field(each.source, each.text) for each in (before, memory))
        if old != new:
            (holder,) = await tx.read(("HGET", keys.digests, old))
            if holder is not None and holder.decode() == memory.id:
                tx.do("HDEL", keys.digests, old)
            tx.do("HSETNX", keys.digests, new, memory.id)
        if memory.embedded_by is None:
            tx.do("HDEL", keys.vectors, memory.id)

    async def _entities(self, order: str = index.MEMORIES) -> dict[EntityId, Counts]:
        found = await self._space.find(order)
        return {names_of(name)[0]: decode(payload, Counts) for name, payload in found.entries}

    async def _rows(self, entity: EntityId, sources: Sequence[str] | None) -> list[Looked]:
        """The present memories of an entity; read again only if they have changed."""
        keys, known = self._keys(check_id(entity, "entity")), self._known.get(entity)
        if known is not None:
            ran = await self._space.run("memories", ((keys.head, "=", known[0]),), (), 0)
            if ran.differs is not None:
                known = None
        if known is None:
            reads = (("HVALS", keys.rows), ("HGETALL", keys.vectors))
            ran = await self._space.run("memories", ((keys.head, "?", b""),), reads, 0)
            # Decoding thousands of memories takes a while, during which the event loop stays free.
            known = ran.revisions[0], await asyncio.to_thread(_looked_at, *ran.replies)
            while self._known and sum(len(rows) for _, rows in self._known.values()) > MOST_REMEMBERED - len(known[1]):
                self._known.popitem(last=False)
        # Other tasks may have evicted it meanwhile.
        self._known[entity] = known
        self._known.move_to_end(entity)
        return [row for row in known[1] if sources is None or row.memory.source in sources]


async def _read_fields(tx: Transaction, key: str, fields: Sequence[str | bytes]) -> list[bytes | None]:
    """The values of these fields of a hash."""
    chunks = (fields[first : first + AT_ONCE] for first in range(0, len(fields), AT_ONCE))
    return [found for chunk in chunks for found in (await tx.read(("HMGET", key, *chunk)))[0]]


def _looked_at(rows: Sequence[bytes], of_vectors: list[bytes]) -> list[Looked]:
    vectors = dict(pairs(of_vectors))
    return [look_at(memory, vectors.get(memory.id)) for memory in map(_sure, map(_memory, rows))]


def _memory(row: bytes | None) -> MemoryRecord | None:
    return None if row is None else decode(row, MemoryRecord)


def _sure(memory: MemoryRecord | None) -> MemoryRecord:
    assert memory is not None
    return memory


_: type[MemoryStore] = RedisMemoryStore
