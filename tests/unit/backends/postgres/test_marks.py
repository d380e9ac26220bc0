"""Sessions with a mark of the engine are found by the index over labels, however many others there are."""

import pytest

from helix_agents.backends.postgres import PostgresStateStore
from helix_agents.backends.postgres.connection import Connection
from helix_agents.backends.postgres.sessions import _conditions
from helix_agents.domain.sessions import MARKS, CreateSession, SessionFilter


async def plan_of(connection: Connection, where: SessionFilter) -> str:
    # So few rows are always read faster from one end to the other.
    await connection.execute("SET LOCAL enable_seqscan = off", ())
    await connection.execute("ANALYZE __agents_sessions", ())
    conditions, values = _conditions(where)
    rows = await connection.all(
        f"EXPLAIN SELECT session_id FROM __agents_sessions WHERE namespace = ?{conditions}", ("", *values)
    )
    return " ".join(str(row[0]) for row in rows)


@pytest.mark.parametrize("mark", MARKS)
async def test_a_marked_session_is_looked_up_and_not_searched_for(postgres_url: str, mark: str) -> None:
    store = await PostgresStateStore.open(postgres_url)
    try:
        for number in range(300):
            await store.create_session(f"s-{number}", CreateSession(metadata={"k": str(number)}))
        await store.patch_metadata("s-7", {mark: "open"})
        plan = await store._db.write(lambda connection: plan_of(connection, SessionFilter(metadata={mark: "open"})))
    finally:
        await store.close()
    assert "agents_sessions_by_label" in plan, plan
