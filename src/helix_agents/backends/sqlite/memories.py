"""Memories in SQLite: words in an FTS5 index, vectors compared exactly, in the same file as the sessions."""

from collections.abc import Sequence

from helix_agents.backends.memory_columns import MEMORY, columns_of, in_scope, memory_of
from helix_agents.backends.part import Part
from helix_agents.backends.sqlite.connection import Connection, Row, Value
from helix_agents.backends.sqlite.database import Database
from helix_agents.backends.sqlite.paging import read_page
from helix_agents.backends.sqlite.vectors import compares_in_c
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
from helix_agents.domain.memory_search import Looked, by_meaning
from helix_agents.domain.memory_words import words_of
from helix_agents.domain.paging import DEFAULT_LIMIT, Page, check_page
from helix_agents.domain.records import encode
from helix_agents.ports.clock import Clock
from helix_agents.ports.memory_store import MemoryStore
from helix_agents.system import SystemClock

_PLACES = ", ".join("?" * 10)
_OF = ", ".join(f"m.{name.strip()}" for name in MEMORY.split(","))


class SQLiteMemoryStore(Part[Database]):
    """The memories of one namespace in one file, for all processes that use it."""

    def __init__(self, database: Database, *, namespace: str = "", clock: Clock | None = None) -> None:
        super().__init__(database)
        self._namespace = namespace
        self._clock = clock or SystemClock()

    def now_ms(self) -> int:
        return self._clock.now_ms()

    async def save_memory(self, request: SaveMemory) -> SavedMemory:
        check_save(request)
        now, digest, words = self.now_ms(), digest_of(request.text), words_of(request.text)

        def work(connection: Connection) -> SavedMemory:
            found = self._find(connection, request.entity, request.id)
            same = connection.one(
                f"SELECT {MEMORY} FROM __agents_memories"
                " WHERE namespace = ? AND entity = ? AND source = ? AND digest = ?",
                (self._namespace, request.entity, request.source, digest),
            )
            under_id = None if found is None else memory_of(found[1:])
            saved = plan_save(request, under_id=under_id, same_text=None if same is None else memory_of(same), now=now)
            if saved.outcome == "created":
                connection.execute(
                    f"INSERT INTO __agents_memories ({MEMORY}, namespace, digest) VALUES ({_PLACES}, ?, ?)",
                    (*columns_of(saved.memory), self._namespace, digest),
                )
                row = connection.one("SELECT last_insert_rowid()")
                assert row is not None
                self._put_words(connection, row[0], request.entity, words)
            elif saved.outcome == "replaced":
                assert found is not None
                self._put(connection, found[0], saved.memory)
            return saved

        return await self._db.write(work)

    async def find_memory(self, entity: EntityId, memory_id: MemoryId) -> MemoryRecord | None:
        row = await self._db.look_up(
            f"SELECT {MEMORY} FROM __agents_memories WHERE namespace = ? AND entity = ? AND id = ?",
            (self._namespace, entity, memory_id),
        )
        return None if row is None else memory_of(row)

    async def update_memory(self, request: UpdateMemory) -> MemoryRecord:
        check_update(request)
        now = self.now_ms()

        def work(connection: Connection) -> MemoryRecord:
            found = self._find(connection, request.entity, request.id)
            stored = None if found is None else memory_of(found[1:])
            memory = plan_update(request, stored, now)
            if memory is not stored:
                assert found is not None
                self._put(connection, found[0], memory)
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

        def work(connection: Connection) -> int:
            keys = [row[0] for row in connection.all(f"SELECT key FROM __agents_memories m WHERE {where}", values)]
            for table, column in (
                ("__agents_memory_words", "rowid"),
                ("__agents_memory_vectors", "key"),
                ("__agents_memories", "key"),
            ):
                connection.execute_many(f"DELETE FROM {table} WHERE {column} = ?", [(key,) for key in keys])
            return len(keys)

        return await self._db.write(work)

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
        return await self._db.read(
            lambda connection: read_page(
                connection,
                columns=_OF,
                source=f"__agents_memories m WHERE {where}",
                order="m.created_at DESC, m.id DESC",
                values=values,
                offset=offset,
                limit=limit,
                item=memory_of,
            )
        )

    async def list_entities(self, *, offset: int = 0, limit: int = DEFAULT_LIMIT) -> Page[MemoryEntity]:
        check_page(offset, limit)
        return await self._db.read(
            lambda connection: read_page(
                connection,
                columns="entity, source, memories",
                source="(SELECT entity, source, count(*) AS memories FROM __agents_memories WHERE namespace = ?"
                " GROUP BY entity, source)",
                order="entity, source",
                values=(self._namespace,),
                offset=offset,
                limit=limit,
                item=lambda row: MemoryEntity(entity=row[0], source=row[1], memories=row[2]),
            )
        )

    async def search_words(
        self, entity: EntityId, words: Sequence[str], *, sources: Sequence[str] | None = None, limit: int = 10
    ) -> tuple[MemoryRecord, ...]:
        where, values = self._within(entity, sources)
        if not words:
            return ()
        query = " OR ".join(f'"{word}"' for word in in_scope(words, self._namespace, entity))

        def work(connection: Connection) -> tuple[MemoryRecord, ...]:
            rows = connection.all(
                f"SELECT {_OF} FROM __agents_memory_words w JOIN __agents_memories m ON m.key = w.rowid"
                f" WHERE w.__agents_memory_words MATCH ? AND {where}"
                " ORDER BY bm25(__agents_memory_words), m.updated_at DESC, m.id DESC LIMIT ?",
                (query, *values, limit),
            )
            return tuple(map(memory_of, rows))

        return await self._db.read(work)

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
        rows_of = (
            f"FROM __agents_memories m JOIN __agents_memory_vectors v ON v.key = m.key"
            f" WHERE {where} AND m.embedded_by = ? AND length(v.vector) = ?"
        )
        asked = (*values, embedded_by, len(vector))

        def work(connection: Connection) -> tuple[NearMemory, ...]:
            if not any(vector):
                # A zero vector has no direction, so it is similar to nothing.
                rows = connection.all(f"SELECT {_OF} {rows_of} ORDER BY m.updated_at DESC LIMIT ?", (*asked, limit))
                return tuple(NearMemory(memory=memory_of(row), similarity=0.0) for row in rows)
            if compares_in_c(connection):
                rows = connection.all(
                    # The distance to a zero vector is NULL.
                    f"SELECT {_OF}, 1 - coalesce(vec_distance_cosine(v.vector, ?), 1) AS near {rows_of}"
                    " ORDER BY near DESC, m.updated_at DESC, m.id DESC LIMIT ?",
                    (vector, *asked, limit),
                )
                return tuple(NearMemory(memory=memory_of(row[:-1]), similarity=row[-1]) for row in rows)
            rows = connection.all(f"SELECT {_OF}, v.vector {rows_of}", asked)
            looked = [Looked(memory_of(row[:-1]), frozenset(), row[-1]) for row in rows]
            return by_meaning(looked, vector, embedded_by, limit)

        return await self._db.read(work)

    async def put_embedding(self, embedding: MemoryEmbedding) -> bool:
        check_embedding(embedding)

        def work(connection: Connection) -> bool:
            row = connection.one(
                "UPDATE __agents_memories SET embedded_by = ?"
                " WHERE namespace = ? AND entity = ? AND id = ? AND text = ? RETURNING key",
                (embedding.embedded_by, self._namespace, embedding.entity, embedding.id, embedding.text),
            )
            if row is None:
                return False
            connection.execute(
                "INSERT OR REPLACE INTO __agents_memory_vectors (key, vector) VALUES (?, ?)", (row[0], embedding.vector)
            )
            return True

        return await self._db.write(work)

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
        statement = f"{' UNION ALL '.join(parts)} ORDER BY entity, id LIMIT ?"
        rows = await self._db.read(lambda connection: connection.all(statement, (*values, limit)))
        return tuple(map(memory_of, rows))

    def _find(self, connection: Connection, entity: EntityId, memory_id: MemoryId) -> Row | None:
        return connection.one(
            f"SELECT key, {MEMORY} FROM __agents_memories WHERE namespace = ? AND entity = ? AND id = ?",
            (self._namespace, entity, memory_id),
        )

    def _put(self, connection: Connection, key: int, memory: MemoryRecord) -> None:
        """Replace a memory with its changed version; another one may have the same text by now."""
        digest = digest_of(memory.text)
        other = connection.one(
            "SELECT 1 FROM __agents_memories"
            " WHERE namespace = ? AND entity = ? AND source = ? AND digest = ? AND key <> ?",
            (self._namespace, memory.entity, memory.source, digest, key),
        )
        connection.execute(
            f"UPDATE __agents_memories SET ({MEMORY}, digest) = ({_PLACES}, ?) WHERE key = ?",
            (*columns_of(memory), None if other is not None else digest, key),
        )
        if memory.embedded_by is None:
            connection.execute("DELETE FROM __agents_memory_vectors WHERE key = ?", (key,))
        connection.execute("DELETE FROM __agents_memory_words WHERE rowid = ?", (key,))
        self._put_words(connection, key, memory.entity, words_of(memory.text))

    def _put_words(self, connection: Connection, key: int, entity: EntityId, words: Sequence[str]) -> None:
        connection.execute(
            "INSERT INTO __agents_memory_words (rowid, words) VALUES (?, ?)",
            (key, " ".join(in_scope(words, self._namespace, entity))),
        )

    def _within(
        self, entity: EntityId, sources: Sequence[str] | None, ids: Sequence[MemoryId] | None = None
    ) -> tuple[str, tuple[Value, ...]]:
        """The condition for memories of an entity, and its values."""
        check_id(entity, "entity")
        where = "m.namespace = ? AND m.entity = ?"
        values: list[Value] = [self._namespace, entity]
        for column, wanted in (("source", sources), ("id", ids)):
            if wanted is not None:
                # A statement can only bind a limited number of values.
                where += f" AND m.{column} IN (SELECT value FROM json_each(?))"
                values.append(encode(list(wanted)).decode())
        return where, tuple(values)


_: type[MemoryStore] = SQLiteMemoryStore
