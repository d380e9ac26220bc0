"""Opening a Postgres database: migrations, refusals, and what is told when it is not there."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from helix_agents.backends.postgres import PostgresStateStore, parse_url
from helix_agents.backends.postgres.database_clock import SLOW_SECONDS
from helix_agents.backends.postgres.migrations import known_version, migrations
from helix_agents.domain.errors import (
    InvalidStoreUrlError,
    SchemaTooNewError,
    SchemaTooOldError,
    StoreClosedError,
    StoreReadOnlyError,
    StoreUnavailableError,
    UnstorableValueError,
)
from helix_agents.ports.backend import open_backend
from helix_agents.testing.jobs import MODULE
from helix_agents.testing.postgres_service import PostgresService
from helix_agents.testing.scenes import SESSION, commit, said, start
from helix_agents.testing.service_process import free_port
from helix_agents.testing.stream_scenes import STREAM, delta, open_writer, texts, write
from helix_agents.testing.workers import Processes

asyncpg = pytest.importorskip("asyncpg")

NEWEST = known_version()


async def in_sql(url: str, statement: str) -> list[tuple[object, ...]]:
    raw = await asyncpg.connect(parse_url(url)[0].dsn)
    try:
        return [tuple(row) for row in await raw.fetch(statement)]
    finally:
        await raw.close()


def schema_of(url: str) -> str:
    return parse_url(url)[0].schema


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes(preload=[MODULE, "helix_agents.backends.postgres"]) as processes:
        yield processes


async def test_a_database_is_migrated_once_by_many_processes(
    postgres_service: PostgresService, processes: Processes
) -> None:
    url = postgres_service.new_url()
    jobs = [{"url": url, "session_id": f"s-{number}"} for number in range(6)]
    outcomes = await processes.run(f"{MODULE}:open_first", jobs)
    assert [(outcome.error, outcome.value) for outcome in outcomes] == [(None, NEWEST)] * 6
    ledger = await in_sql(url, f"SELECT version, name FROM {schema_of(url)}.__agents_migrations ORDER BY version")
    assert ledger == [(step.version, step.name) for step in migrations()]


def test_migrations_are_numbered_without_gaps() -> None:
    assert [step.version for step in migrations()] == list(range(1, NEWEST + 1))


async def test_checking_creates_nothing_and_names_the_cure(postgres_service: PostgresService) -> None:
    url = postgres_service.new_url(migrate="check")
    with pytest.raises(SchemaTooOldError, match="helix migrate"):
        await PostgresStateStore.open(url)
    assert not await in_sql(url, f"SELECT 1 FROM pg_namespace WHERE nspname = '{schema_of(url)}'")


async def test_a_newer_schema_is_refused_in_either_mode(postgres_service: PostgresService) -> None:
    url = postgres_service.new_url()
    await (await PostgresStateStore.open(url)).close()
    await in_sql(url, f"INSERT INTO {schema_of(url)}.__agents_migrations VALUES (999, 'later', 0)")
    for mode in ("auto", "check"):
        with pytest.raises(SchemaTooNewError):
            await PostgresStateStore.open(url, migrate=mode)


async def test_two_schemas_of_one_database_know_nothing_of_each_other(postgres_service: PostgresService) -> None:
    one = await PostgresStateStore.open(postgres_service.new_url())
    two = await PostgresStateStore.open(postgres_service.new_url())
    await start(one)
    assert not await two.session_exists(SESSION)
    await one.close()
    await two.close()


@pytest.mark.parametrize("schema", ["user", "select", "__agents_own"])
async def test_any_name_that_is_taken_for_a_schema_is_one(postgres_service: PostgresService, schema: str) -> None:
    url = f"{postgres_service.url}{'&' if '?' in postgres_service.url else '?'}schema={schema}"
    async with await open_backend(url) as parts:
        await start(parts.state)
        await commit(parts.state, messages=[said("hi")])
        reader_of = await open_writer(parts.streams)
        reader = await parts.streams.create_reader(STREAM)
        assert reader is not None
        reading = asyncio.create_task(anext(reader))
        await asyncio.sleep(0.05)
        await write(reader_of, delta("a"))
        assert texts([await asyncio.wait_for(reading, 10)]) == ["a"]
        await reader.close()
    await in_sql(url, f'DROP SCHEMA "{schema}" CASCADE')


async def test_a_database_that_isolates_more_by_default_changes_nothing(postgres_url: str) -> None:
    strict = f"{postgres_url}&default_transaction_isolation=repeatable%20read"
    store = await PostgresStateStore.open(strict)
    await start(store)
    await asyncio.gather(*(store.append_messages(SESSION, [said(str(number))]) for number in range(20)))
    assert await store.get_message_count(SESSION) == 20
    await store.close()


async def test_a_database_that_has_no_form_for_most_texts_is_refused_at_once(postgres_service: PostgresService) -> None:
    text = "tides, \u6f6e\u6c50, \U0001f30a"
    for encoding, taken in (("LATIN1", False), ("SQL_ASCII", True)):
        name = schema_of(postgres_service.new_url())
        await in_sql(postgres_service.url, f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0")
        url = f"{postgres_service.url.rpartition('/')[0]}/{name}"
        if taken:
            async with await open_backend(url) as backend:
                await start(backend.state, append_messages=(said(text),))
                assert [row.message for row in await backend.state.load_transcript(SESSION)] == [said(text)]
        else:
            with pytest.raises(InvalidStoreUrlError, match=r"encoded as LATIN1.*create one with UTF8"):
                await open_backend(url)
        await in_sql(postgres_service.url, f"DROP DATABASE {name} (FORCE)")


async def test_what_a_role_may_not_do_is_named(postgres_service: PostgresService) -> None:
    url = postgres_service.new_url()
    role = f"guest_{schema_of(url)}"
    async with await open_backend(url) as backend:
        await start(backend.state)
    await in_sql(url, f"CREATE ROLE {role} LOGIN")
    await in_sql(url, f"GRANT USAGE ON SCHEMA {schema_of(url)} TO {role}")
    await in_sql(url, f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema_of(url)} TO {role}")
    async with await open_backend(url.replace("postgres@", f"{role}@")) as backend:
        assert await backend.state.session_exists(SESSION)
        with pytest.raises(StoreReadOnlyError, match=r"grant access to the role .*permission denied for") as refusal:
            await backend.state.append_messages(SESSION, [said("hi")])
        assert "file" not in str(refusal.value)
    await in_sql(url, f"DROP OWNED BY {role}")
    await in_sql(url, f"DROP ROLE {role}")


async def test_a_server_that_is_not_there_is_named_without_a_password() -> None:
    url = f"postgresql://ann:secret@127.0.0.1:{free_port()}/agents?connect_patience=0"
    with pytest.raises(StoreUnavailableError) as refusal:
        await PostgresStateStore.open(url)
    assert "127.0.0.1" in str(refusal.value)
    assert "secret" not in str(refusal.value)


async def test_work_that_waits_for_a_connection_when_the_store_closes_is_told_so(postgres_url: str) -> None:
    store = await PostgresStateStore.open(postgres_url, pool_size=1)
    await start(store)
    asked = [asyncio.create_task(store.load_state(SESSION)) for _ in range(20)]
    await asyncio.sleep(0)
    await store.close()
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(answer).__name__ for answer in answers} <= {"SessionState", "StoreClosedError"}
    with pytest.raises(StoreClosedError):
        await store.load_state(SESSION)


async def test_a_store_may_be_used_from_another_event_loop(postgres_url: str) -> None:
    store = await PostgresStateStore.open(postgres_url)
    lease = await asyncio.to_thread(asyncio.run, store.renew_lease("worker-1", 60_000))
    assert await store.find_lease("worker-1") == lease
    await store.close()


async def test_time_is_the_servers_whatever_this_process_thinks(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    really = time.time()
    monkeypatch.setattr(time, "time", lambda: really - 86_400)
    store = await PostgresStateStore.open(postgres_url)
    assert abs(store.now_ms() - really * 1000) < 60_000
    await store.close()


def test_without_the_driver_the_extra_is_named() -> None:
    program = (
        "import sys\n"
        "sys.modules['asyncpg'] = None\n"
        "import importlib.util as u\n"
        "real = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'asyncpg' else real(name, *a)\n"
        "from helix_agents.domain.errors import MissingExtraError\n"
        "try:\n"
        "    import helix_agents.backends.postgres\n"
        "except MissingExtraError as missing:\n"
        "    print(missing)\n"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "pip install 'helix-agents[postgres]'" in told.stdout, told.stderr


async def test_renewing_a_lease_sets_the_clock_by_the_server(postgres_url: str) -> None:
    store = await PostgresStateStore.open(postgres_url)
    clock = store.database.clock
    clock.heard(0, time.monotonic())
    assert abs(store.now_ms()) < 60_000, "it believes what it is told"
    await store.renew_lease("worker", 1_000)
    assert abs(store.now_ms() - time.time() * 1000) < 60_000
    right = store.now_ms()
    clock.heard(0, time.monotonic() - 2 * SLOW_SECONDS)
    assert store.now_ms() >= right, "an answer that took too long says nothing of the time"
    await store.close()


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/nowhere", 'database "nowhere" does not exist'),
        ("/postgres?colour=blue", "colour"),
        ("/postgres?sslmode=perhaps", "sslmode"),
    ],
)
async def test_a_server_that_refuses_is_not_tried_again(
    postgres_service: PostgresService, path: str, reason: str
) -> None:
    address = postgres_service.new_url().partition("?")[0].rpartition("/")[0]
    with pytest.raises(InvalidStoreUrlError, match=reason):
        await PostgresStateStore.open(address + path)


async def test_an_address_that_cannot_be_read_says_so() -> None:
    with pytest.raises(InvalidStoreUrlError, match=r"localhost:port.* host and port cannot be told apart"):
        await PostgresStateStore.open("postgresql://localhost:port/postgres")


async def test_ids_that_are_too_long_together_for_an_index_are_refused_for_good(postgres_url: str) -> None:
    """Each is within its limit; a caller who was told to try again would do so for ever."""
    tenant, session = ("".join(chr(first + 37 * n % 40_000) for n in range(256)) for first in (0x20000, 0x20001))
    store = await PostgresStateStore.open(postgres_url, namespace=tenant)
    with pytest.raises(UnstorableValueError):
        await store.create_session(session)
    await store.create_session("short")
    await store.close()
