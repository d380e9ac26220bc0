"""What an agent, a user and the janitor ask is looked up: nobody waits for the many other sessions in the store."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from helix_agents.backends.postgres import PostgresStateStore
from helix_agents.backends.postgres.connection import Connection
from helix_agents.ports.backend import Backend, open_backend
from tests.support.a_life import be_automated, be_briefed, end, live

OTHERS = 1_000
# What belongs to a session by its name, and which of its columns have to differ from one session to the next.
NAMES = (
    *("session_id", "root_session_id", "parent_session_id", "sub_session_id"),
    *("run_id", "previous_run_id", "parent_run_id", "stream_id", "user_id"),
)
TABLES = ("sessions", "runs", "sub_session_refs", "pending_calls", "usage", "streams")


async def crowd(connection: Connection) -> None:
    """Copy all there is, many times, each time as other sessions."""
    for table in TABLES:
        columns = await connection.all(
            "SELECT attname FROM pg_attribute WHERE attrelid = ?::regclass AND attnum > 0 AND attidentity = ''"
            " AND attgenerated = ''",
            (await own_name(connection, table),),
        )
        names = [row[0] for row in columns]
        copied = [f"{name} || '-' || number" if name in NAMES else name for name in names]
        await connection.execute(
            f"INSERT INTO __agents_{table} ({', '.join(names)})"
            f" SELECT {', '.join(copied)} FROM __agents_{table}, generate_series(1, {OTHERS}) AS number"
        )
        await connection.execute(f"ANALYZE __agents_{table}")


async def own_name(connection: Connection, table: str) -> str:
    row = await connection.one(f"SELECT '__agents_{table}'::regclass::oid::text")
    assert row is not None
    return row[0]


async def rows_read(connection: Connection) -> dict[str, int]:
    """How many rows of each table, and of its indexes, were looked at so far."""
    found = await connection.all(
        "SELECT relname, seq_tup_read + (SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes i"
        " WHERE i.relid = t.relid) FROM pg_stat_user_tables t WHERE relid = ANY(?::text[]::oid[])",
        ([await own_name(connection, table) for table in TABLES],),
    )
    return dict(found)


async def test_nothing_in_a_sessions_life_goes_through_other_sessions(postgres_url: str) -> None:
    async def another_life(backend: Backend) -> None:
        await live(backend, "s-2")
        await end(backend, "s-2")

    read = await read_in_a_crowd(postgres_url, another_life)
    assert read
    assert all(count < OTHERS for count in read.values()), read


async def test_schedules_queues_and_webhooks_go_through_no_sessions(postgres_url: str) -> None:
    read = await read_in_a_crowd(postgres_url, lambda backend: be_automated(backend.state, "s-2"))
    assert read
    assert all(count < OTHERS for count in read.values()), read


async def test_a_briefing_and_the_end_of_old_backups_go_through_no_sessions(postgres_url: str, tmp_path: Path) -> None:
    async def briefing(backend: Backend) -> None:
        assert backend.entries is not None
        await be_briefed(backend.entries, tmp_path)

    read = await read_in_a_crowd(postgres_url, briefing)
    assert read
    assert all(count < OTHERS for count in read.values()), read


async def read_in_a_crowd(url: str, work: Callable[[Backend], Awaitable[None]]) -> dict[str, int]:
    """How many rows of each table are looked at for some work among many sessions."""
    async with await open_backend(url) as backend:
        await live(backend, "s-1")
    store = await PostgresStateStore.open(url)
    await store._db.write(crowd)
    await store.close()
    store = await PostgresStateStore.open(url)
    before = await store._db.read(rows_read)
    async with await open_backend(url) as backend:
        await work(backend)
    # Its connections are closed, so what they counted is known.
    after = await store._db.read(rows_read)
    await store.close()
    return {table: after[table] - before[table] for table in after}
