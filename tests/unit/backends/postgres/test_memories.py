"""Vectors in Postgres are compared alike with pgvector, wherever that lies, and without it."""

import pytest

from helix_agents.backends.postgres import PostgresStateStore
from helix_agents.backends.postgres.connection import Connection
from helix_agents.domain.memory_search import unit_vector
from helix_agents.ports.backend import open_backend
from helix_agents.testing.contracts.memories import embed, memories_of, save


async def test_vectors_are_compared_alike_with_and_without_pgvector(postgres_url: str) -> None:
    async def make_extension(connection: Connection) -> None:
        await connection.execute('CREATE SCHEMA IF NOT EXISTS "an odd ""place"')
        await connection.execute('CREATE EXTENSION vector SCHEMA "an odd ""place"')

    async with await open_backend(postgres_url) as backend, await open_backend(postgres_url) as later:
        memories = memories_of(backend)
        for n in range(30):
            await save(memories, f"m-{n}", f"Fact {n}")
            await embed(memories, f"m-{n}", n % 7 - 3, n % 5 - 2, n % 3)
        asked = unit_vector([1.0, -0.5, 0.25])
        in_sql = await memories.search_meaning("ann", asked, "small", limit=30)
        assert isinstance(backend.state, PostgresStateStore)
        database = backend.state._database
        await database.write(make_extension)
        try:
            in_c = await memories_of(later).search_meaning("ann", asked, "small", limit=30)
        finally:
            await database.write(lambda connection: connection.execute('DROP SCHEMA "an odd ""place" CASCADE'))
    assert "OPERATOR" in vars(memories_of(later))["_compare"]
    assert [each.similarity for each in in_c] == pytest.approx([each.similarity for each in in_sql], abs=1e-6)
    assert {each.memory.id for each in in_c[:5]} == {each.memory.id for each in in_sql[:5]}
