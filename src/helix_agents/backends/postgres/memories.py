"""Memories in Postgres: words in a tsvector, vectors compared exactly, by pgvector if the database has it."""

import logging
from collections.abc import Sequence

from helix_agents.backends.memory_columns import MEMORY, columns_of, memory_of
from helix_agents.backends.part import Part
from helix_agents.backends.postgres.connection import Connection, Value, askable
from helix_agents.backends.postgres.database import Database
from helix_agents.backends.postgres.paging import read_page
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
    plan_save,
    plan_update,
)
from helix_agents.domain.memory_search import numbers
from helix_agents.domain.memory_words import words_of
from helix_agents.domain.paging import DEFAULT_LIMIT, Page, check_page
from helix_agents.ports.clock import Clock
from helix_agents.ports.memory_store import MemoryStore

log = logging.getLogger("helix_agents")

_PLACES = ", ".join("?" * 10)
_FIND = f"SELECT {MEMORY} FROM __agents_memories WHERE namespace = ? AND entity = ?"

# Both vectors have length 1, so their dot product is the similarity. SQL computes it vector by vector; the extension is
# written in C.
_IN_SQL = "(SELECT coalesce(sum(a::float8 * b), 0) FROM unnest(vector, ?::real[]) AS pairs (a, b))"
_IN_C = '-(vector::"{0}".vector OPERATOR("{0}".<#>) ?::real[]::"{0}".vector)'


class PostgresMemoryStore(Part[Database]):
    """The memories of one namespace in one database, for all processes that use it.

    Writes to one entity are serialised, so that every decision is based on what is stored.
    """

    def __init__(self, database: Database, *, namespace: str = "", clock: Clock | None = None) -> None:
        super().__init__(database)
        self._namespace = namespace
        self._clock = clock or database.clock
        self._compare: str | None = None

    def now_ms(self) -> int:
        return self._clock.now_ms()

    async def save_memory(self, request: SaveMemory) -> SavedMemory:
        check_save(request)
        now, digest = self.now_ms(), digest_of(request.text)

        async def work(connection: Connection) -> SavedMemory:
            await self._take_turn(connection, request.entity)
            under_id = await self._find(connection, request.entity, request.id)
            same = await connection.one(
                f"{_FIND} AND source = ? AND digest = ?", (self._namespace, request.entity, request.source, digest)
            )
            saved = plan_save(request, under_id=under_id, same_text=None if same is None else memory_of(same), now=now)
            if saved.outcome == "created":
                await connection.execute(
                    f"INSERT INTO __agents_memories ({MEMORY}, namespace, digest, words)"
                    f" VALUES ({_PLACES}, ?, ?, array_to_tsvector(?::text[]))",
                    (*columns_of(saved.memory), self._namespace, digest, _indexed(request.text)),
                )
            elif saved.outcome == "replaced":
                await self._put(connection, saved.memory)
            return saved

        return await self._db.write(work)

    async def find_memory(self, entity: EntityId, memory_id: MemoryId) -> MemoryRecord | None:
        row = await self._db.one(f"{_FIND} AND id = ?", (self._namespace, entity, memory_id))
        return None if row is None else memory_of(row)

    async def update_memory(self, request: UpdateMemory) -> MemoryRecord:
        check_update(request)
        now = self.now_ms()

        async def work(connection: Connection) -> MemoryRecord:
            await self._take_turn(connection, request.entity)
            stored = await self._find(connection, request.entity, request.id)
            memory = plan_update(request, stored, now)
            if memory is not stored:
                await self._put(connection, memory)
            return memory

        return await self._db.write(work)

    async def delete_memories(
        self,
        entity: EntityId,
        *,
        ids: Sequence[MemoryId] | None = None,
        sources: Sequence[str] | None = None,
    ) -> int:
        where, values = self._within(entity, sources, ids)
        return await self._db.execute(f"DELETE FROM __agents_memories WHERE {where}", askable(*values))

    async def list_memories(
        self,
        entity: EntityId,
        *,
        sources: Sequence[str] | None = None,
        offset: int = 0,
        limit: int = DEFAULT_LIMIT,
    ) -> Page[MemoryRecord]:
        check_page(offset, limit)
        where, values = self._within(entity, sources)
        return await read_page(
            self._db,
            columns=MEMORY,
            source=f"__agents_memories WHERE {where}",
            order="created_at DESC, id DESC",
            values=values,
            offset=offset,
            limit=limit,
            item=memory_of,
        )

    async def list_entities(self, *, offset: int = 0, limit: int = DEFAULT_LIMIT) -> Page[MemoryEntity]:
        check_page(offset, limit)
        return await read_page(
            self._db,
            columns="entity, source, memories",
            source="(SELECT entity, source, count(*) AS memories FROM __agents_memories WHERE namespace = ?"
            " GROUP BY entity, source) AS counts",
            order="entity, source",
            values=(self._namespace,),
            offset=offset,
            limit=limit,
            item=lambda row: MemoryEntity(entity=row[0], source=row[1], memories=row[2]),
        )

    async def search_words(
        self, entity: EntityId, words: Sequence[str], *, sources: Sequence[str] | None = None, limit: int = 10
    ) -> tuple[MemoryRecord, ...]:
        where, values = self._within(entity, sources)
        if not words:
            return ()
        asked = " | ".join(f"'{word}'" for word in words)
        rows = await self._db.all(
            f"SELECT {MEMORY} FROM __agents_memories WHERE {where} AND words @@ ?::text::tsquery"
            " ORDER BY ts_rank(words, ?::text::tsquery) DESC, updated_at DESC, id DESC LIMIT ?",
            (*values, asked, asked, limit),
        )
        return tuple(map(memory_of, rows))

    async def search_meaning(
        self,
        entity: EntityId,
        vector: bytes,
        embedded_by: str,
        *,
        sources: Sequence[str] | None = None,
        limit: int = 10,
    ) -> tuple[NearMemory, ...]:
        where, values = self._within(entity, sources)
        asked = numbers(vector).tolist()
        rows = await self._db.all(
            f"SELECT {MEMORY}, {await self._comparison()} AS near FROM __agents_memories"
            f" WHERE {where} AND embedded_by = ? AND cardinality(vector) = ?"
            " ORDER BY near DESC, updated_at DESC, id DESC LIMIT ?",
            (asked, *values, embedded_by, len(asked), limit),
        )
        return tuple(NearMemory(memory=memory_of(tuple(row)[:-1]), similarity=row[-1]) for row in rows)

    async def put_embedding(self, embedding: MemoryEmbedding) -> bool:
        check_embedding(embedding)
        changed = await self._db.execute(
            "UPDATE __agents_memories SET embedded_by = ?, vector = ?"
            " WHERE namespace = ? AND entity = ? AND id = ? AND text = ?",
            (
                embedding.embedded_by,
                numbers(embedding.vector).tolist(),
                self._namespace,
                embedding.entity,
                embedding.id,
                embedding.text,
            ),
        )
        return changed > 0

    async def list_unembedded(
        self,
        embedder: str | None = None,
        *,
        after: tuple[EntityId, MemoryId] | None = None,
        before_ms: int | None = None,
        limit: int = 100,
    ) -> tuple[MemoryRecord, ...]:
        conditions = "" if before_ms is None else " AND updated_at < ?"
        conditions += "" if after is None else " AND (entity, id) > (?, ?)"
        more: list[Value] = [*(() if before_ms is None else (before_ms,)), *(after or ())]
        # Each of the three conditions is a range of the index.
        others = () if embedder is None else ("embedded_by > '' AND embedded_by < ?", "embedded_by > ?")
        parts: list[str] = []
        values: list[Value] = []
        for which in ("embedded_by = ''", *others):
            parts.append(f"SELECT {MEMORY} FROM __agents_memories WHERE namespace = ? AND {which}{conditions}")
            values += (self._namespace, *((embedder,) if "?" in which else ()), *more)
        rows = await self._db.all(f"{' UNION ALL '.join(parts)} ORDER BY entity, id LIMIT ?", (*values, limit))
        return tuple(map(memory_of, rows))

    async def _comparison(self) -> str:
        """How vectors are compared in this database. Only a new process notices an extension that is created later."""
        if self._compare is None:
            row = await self._db.one(
                "SELECT nspname FROM pg_extension JOIN pg_namespace ON pg_namespace.oid = extnamespace"
                " WHERE extname = 'vector'"
            )
            if row is None:
                log.info(
                    "memory.no_pgvector vectors are compared in SQL, which is slower; CREATE EXTENSION vector helps"
                )
            self._compare = _IN_SQL if row is None else _IN_C.format(row[0].replace('"', '""'))
        return self._compare

    async def _take_turn(self, connection: Connection, entity: EntityId) -> None:
        await connection.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(?, 0))", (f"helix memories {self._namespace}\x1f{entity}",)
        )

    async def _find(self, connection: Connection, entity: EntityId, memory_id: MemoryId) -> MemoryRecord | None:
        row = await connection.one(f"{_FIND} AND id = ?{connection.lock}", (self._namespace, entity, memory_id))
        return None if row is None else memory_of(row)

    async def _put(self, connection: Connection, memory: MemoryRecord) -> None:
        """Replace a memory with its changed version; another one may have the same text by now."""
        digest = digest_of(memory.text)
        other = await connection.one(
            "SELECT 1 FROM __agents_memories"
            " WHERE namespace = ? AND entity = ? AND source = ? AND digest = ? AND id <> ?",
            (self._namespace, memory.entity, memory.source, digest, memory.id),
        )
        await connection.execute(
            f"UPDATE __agents_memories SET ({MEMORY}, digest, words) = ({_PLACES}, ?, array_to_tsvector(?::text[])),"
            " vector = CASE WHEN ? THEN vector END WHERE namespace = ? AND entity = ? AND id = ?",
            (
                *columns_of(memory),
                None if other is not None else digest,
                _indexed(memory.text),
                memory.embedded_by is not None,
                self._namespace,
                memory.entity,
                memory.id,
            ),
        )

    def _within(
        self, entity: EntityId, sources: Sequence[str] | None, ids: Sequence[MemoryId] | None = None
    ) -> tuple[str, tuple[Value, ...]]:
        """The condition for memories of an entity, and its values."""
        where = "namespace = ? AND entity = ?"
        values: list[Value] = [self._namespace, check_id(entity, "entity")]
        for column, wanted in (("source", sources), ("id", ids)):
            if wanted is not None:
                where += f" AND {column} = ANY(?::text[])"
                values.append(list(wanted))
        return where, tuple(values)


def _indexed(text: str) -> list[str]:
    return list(words_of(text))


_: type[MemoryStore] = PostgresMemoryStore
