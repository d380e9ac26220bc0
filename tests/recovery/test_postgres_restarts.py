"""A Postgres server that loses connections, restarts or dies under work: nothing is lost, doubled or stuck."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest

from helix_agents import Agent, Completed, DBOSAgentExecutor, Executor, ScriptedModel, tool
from helix_agents.backends.postgres import PostgresStateStore, parse_url
from helix_agents.backends.postgres.database_clock import DatabaseClock
from helix_agents.domain.errors import RuntimeUnavailableError, StoreUnavailableError
from helix_agents.domain.messages import AssistantMessage, ToolMessage
from helix_agents.ports.backend import open_backend
from helix_agents.runtimes.dbos import instance
from helix_agents.runtimes.dbos.runtime import Placement
from helix_agents.testing import call
from helix_agents.testing.contracts.executor.stage import until
from helix_agents.testing.postgres_service import PostgresService
from helix_agents.testing.scenes import SESSION, append_to, commit, said, start

SECONDS = 60.0
STEPS = 6


@pytest.fixture
def server() -> Iterator[PostgresService]:
    """A server of its own, as it is going to be killed."""
    with PostgresService() as server:
        yield server


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStateStore]:
    store = await PostgresStateStore.open(postgres_url)
    yield store
    await store.close()


async def texts(store: PostgresStateStore) -> list[Any]:
    return [getattr(row.message, "content", None) for row in await store.load_transcript(SESSION)]


async def no_thread_of_dbos() -> bool:
    return not any(thread.name.startswith("dbos-executor") for thread in threading.enumerate())


async def in_sql(server: PostgresService, statements: str) -> None:
    import asyncpg

    raw = await asyncpg.connect(server.url)
    await raw.execute(statements)
    await raw.close()


async def break_connections(url: str) -> None:
    """End every other session of the server that belongs to this schema's test, as an operator or a failover would."""
    import asyncpg

    raw = await asyncpg.connect(parse_url(url)[0].dsn)
    await raw.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    await raw.close()


def hear_of_the_end(raw: Any) -> None:
    """Have a connection hear that the server ends it, while the line is still open."""
    farewell = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"
    raw._protocol.data_received(b"E" + (len(farewell) + 4).to_bytes(4) + farewell)
    assert not raw.is_closed()


async def test_a_connection_that_only_heard_of_its_end_is_replaced_too(store: PostgresStateStore) -> None:
    await start(store)
    (raw,) = vars(store._db._pool)["_idle"]
    hear_of_the_end(raw)
    assert (await commit(store, messages=[said("once")])).new_version == 2
    assert await texts(store) == ["once"]


@pytest.mark.parametrize("end", [hear_of_the_end, lambda raw: raw.terminate()], ids=["told", "cut off"])
async def test_a_connection_that_ends_as_soon_as_it_is_there_is_replaced_too(
    store: PostgresStateStore, postgres_url: str, monkeypatch: pytest.MonkeyPatch, end: Callable[[Any], None]
) -> None:
    await start(store)
    left, look_at = 3, DatabaseClock.look_at

    async def end_and_look(clock: DatabaseClock, raw: Any) -> None:
        nonlocal left
        if left:
            left -= 1
            end(raw)
        await look_at(clock, raw)

    monkeypatch.setattr(DatabaseClock, "look_at", end_and_look)
    await break_connections(postgres_url)
    assert (await commit(store, messages=[said("once")])).new_version == 2
    assert left == 0
    assert await texts(store) == ["once"]


class Breaking:
    """A seam that has the connections broken when a certain statement was sent for the n-th time."""

    def __init__(self, url: str, holds: str, times: int = 1) -> None:
        self._url = url
        self._holds = holds
        self.left = times

    async def __call__(self, statement: str, /) -> None:
        if self.left and self._holds in statement:
            self.left -= 1
            await break_connections(self._url)


async def test_idle_connections_that_broke_are_replaced_without_anybody_noticing(
    store: PostgresStateStore, postgres_url: str
) -> None:
    await start(store)
    await break_connections(postgres_url)
    assert (await store.load_state(SESSION)).version == 1
    await break_connections(postgres_url)
    assert (await commit(store, messages=[said("once")])).new_version == 2
    await break_connections(postgres_url)
    await store.append_messages(SESSION, [said("twice")])
    assert await texts(store) == ["once", "twice"]


async def test_a_connection_broken_inside_a_transaction_undoes_it_and_it_runs_again(
    store: PostgresStateStore, postgres_url: str
) -> None:
    await start(store)
    breaking = Breaking(postgres_url, "INSERT INTO __agents_messages")
    other = await PostgresStateStore.open(postgres_url, seam=breaking)
    assert await other.append_messages(SESSION, [said("once")]) == 1
    assert breaking.left == 0
    assert await texts(store) == ["once"]
    await other.close()


async def test_a_commit_whose_answer_never_came_is_made_once(store: PostgresStateStore, postgres_url: str) -> None:
    await start(store)
    lost = 0

    async def lose_the_answer(statement: str, /) -> None:
        nonlocal lost
        if "__agents_commit_step" in statement and not lost:
            lost += 1
            raise ConnectionResetError("the answer is on its way, and the connection is gone")

    other = await PostgresStateStore.open(postgres_url, seam=lose_the_answer)
    await other.load_state(SESSION)
    first = await commit(other, messages=[said("once")], writes=append_to("list", 1))
    assert lost == 1
    assert (first.new_version, await texts(store)) == (2, ["once"])
    assert (await store.load_state(SESSION)).custom_state == {"list": [1]}
    await other.close()


async def test_a_transaction_lost_in_its_commit_is_reported_and_not_repeated(
    store: PostgresStateStore, postgres_url: str
) -> None:
    await start(store)

    async def lose_the_commit(statement: str, /) -> None:
        if statement == "COMMIT":
            raise ConnectionResetError("nobody knows")

    other = await PostgresStateStore.open(postgres_url, seam=lose_the_commit)
    with pytest.raises(StoreUnavailableError, match="may have been made"):
        await other.append_messages(SESSION, [said("once")])
    assert await texts(store) == ["once"]
    await other.close()


async def test_a_connection_to_a_server_that_only_follows_is_not_kept(server: PostgresService) -> None:
    url = server.new_url()
    store = await PostgresStateStore.open(url)
    await start(store)
    await in_sql(server, "ALTER DATABASE postgres SET default_transaction_read_only = on")
    await break_connections(url)
    with pytest.raises(StoreUnavailableError, match="accepts no writes"):
        await commit(store, messages=[said("refused")])
    with pytest.raises(StoreUnavailableError, match="accepts no writes"):
        await store.append_messages(SESSION, [said("refused")])
    await in_sql(server, "BEGIN READ WRITE; ALTER DATABASE postgres RESET ALL; COMMIT")
    assert (await commit(store, messages=[said("once")])).new_version == 2
    assert await texts(store) == ["once"]
    await store.close()


class Address:
    """Where clients connect. Connections from before a failover look alive until something is sent over them."""

    def __init__(self, url: str) -> None:
        self._there = urlsplit(url)
        self._generation = 0
        self._lines: list[asyncio.Future[None]] = []

    def url_at(self, port: int) -> str:
        return urlunsplit(self._there._replace(netloc=f"postgres@127.0.0.1:{port}"))

    def fail_over(self) -> None:
        self._generation += 1

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._lines.append(asyncio.ensure_future(self._carry(reader, writer)))

    async def hung_up(self) -> None:
        """Every connection was ended."""
        await asyncio.gather(*self._lines)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        born = self._generation
        there, back = await asyncio.open_connection(self._there.hostname, self._there.port)
        answers = asyncio.create_task(_pass_on(there, writer))
        with contextlib.suppress(OSError):
            while (data := await reader.read(65_536)) and born == self._generation:
                back.write(data)
        for line in (back, writer):
            line.transport.abort()
        await answers
        for line in (back, writer):
            with contextlib.suppress(OSError):
                await line.wait_closed()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)


async def test_connections_that_died_unnoticed_are_not_tried_one_after_the_other(postgres_url: str) -> None:
    address = Address(postgres_url)
    listening = await asyncio.start_server(address.carry, "127.0.0.1")
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        store = await PostgresStateStore.open(address.url_at(port), pool_size=8)
        await start(store)
        await asyncio.gather(*(store.load_state(SESSION) for _ in range(8)))
        address.fail_over()
        assert (await store.load_state(SESSION)).version == 1
        await store.close()
        await asyncio.wait_for(address.hung_up(), SECONDS)


async def test_a_server_that_is_down_is_a_typed_error_and_one_that_comes_back_is_used_again(
    server: PostgresService,
) -> None:
    url = server.new_url(connect_patience=0.2)
    store = await PostgresStateStore.open(url)
    await start(store)
    await asyncio.to_thread(server.kill)
    with pytest.raises(StoreUnavailableError) as refusal:
        await commit(store, messages=[said("lost")])
    assert refusal.value.retryable
    assert "127.0.0.1" in str(refusal.value)
    with pytest.raises(StoreUnavailableError):
        await store.load_state(SESSION)
    await asyncio.to_thread(server.start)
    assert (await commit(store, messages=[said("kept")])).new_version == 2
    assert await texts(store) == ["kept"]
    await store.close()


async def test_reads_and_commits_ride_through_a_restart(server: PostgresService) -> None:
    store = await PostgresStateStore.open(server.new_url(connect_patience=20))
    await start(store)
    for step in range(1, 4):
        restarting = asyncio.create_task(asyncio.to_thread(server.restart))
        committing = [await commit(store, step, messages=[said(str(step))])]
        await restarting
        assert committing[0].new_version == step + 1
    assert await texts(store) == ["1", "2", "3"]
    await store.close()


@pytest.mark.parametrize(
    ("asked_for", "placement", "patience"), [("launch", "here", 0.3), ("launch", "here", 0.0), ("queue", "shared", 0.3)]
)
async def test_a_server_that_dies_while_dbos_begins_is_told_and_leaves_nothing_behind(
    server: PostgresService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked_for: str,
    placement: Placement,
    patience: float,
) -> None:
    from dbos._sys_db import SystemDatabase

    # With none at all it is over before the launch has come to the database.
    monkeypatch.setattr(instance, "PATIENCE_SECONDS", patience)
    asked = SystemDatabase.get_latest_application_version
    rest = ["launch", "queue"]

    def ask(self: SystemDatabase) -> Any:
        if rest.pop(0) == asked_for:
            server.kill()
        return asked(self)

    monkeypatch.setattr(SystemDatabase, "get_latest_application_version", ask)
    with pytest.raises(RuntimeUnavailableError, match=r"DBOS at postgresql://.* is not answering"):
        await DBOSAgentExecutor.open(
            f"sqlite:///{tmp_path}/helix.db", system_database_url=server.url, placement=placement
        )
    await until(no_thread_of_dbos)


async def test_who_leaves_while_the_server_is_down_keeps_no_thread_of_dbos(
    server: PostgresService, tmp_path: Path
) -> None:
    worker = agent()
    url = f"sqlite:///{tmp_path}/helix.db"
    async with DBOSAgentExecutor.open(url, system_database_url=server.url, agents=[worker], grace=0.1) as helix:
        await asyncio.to_thread(server.kill)
        await helix.execute(worker, "go", session_id=SESSION)
    await until(no_thread_of_dbos)


async def test_a_server_that_goes_away_under_dbos_is_told_and_whoever_asks_is_not_kept_waiting(
    server: PostgresService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(instance, "PATIENCE_SECONDS", 0.3)
    worker = agent()
    url = f"sqlite:///{tmp_path}/helix.db"
    shared: dict[str, Any] = {"system_database_url": server.url, "placement": "shared", "janitor_seconds": None}
    async with DBOSAgentExecutor.open(url, **shared, agents=[worker], grace=0.1) as helix, asyncio.timeout(SECONDS):
        await asyncio.to_thread(server.kill)
        waiting = await helix.execute(worker, "go", session_id=SESSION)
        for _ in range(2):
            with pytest.raises(RuntimeUnavailableError, match=r"DBOS at postgresql://.* is not answering"):
                await helix.execute(worker, "once more", session_id=SESSION)
        assert (await helix.recover()).errors == 1
        told = [record for record in caplog.records if vars(record).get("event") == "dbos.unavailable"]
        assert told
        assert told[0].levelname == "ERROR"
        assert "runs wait until its system database answers" in told[0].getMessage()
        await asyncio.to_thread(server.restart)
        assert isinstance(await waiting.result(), Completed)
        assert (await helix.recover()).errors == 0


def agent(name: str = "worker") -> Agent[Any, str, Any]:
    @tool
    async def work(part: int) -> str:
        """Do a part of the work."""
        await asyncio.sleep(0.01)
        return f"part {part}"

    script = [call("work", {"part": number}) for number in range(1, STEPS + 1)]
    return Agent(name=name, model=ScriptedModel([*script, "All done."]), tools=[work])


async def survive(server: PostgresService, *, sessions: int, restarts: int) -> None:
    """Let sessions work while the server dies again and again; each ends, with every message once."""
    url = server.new_url(connect_patience=10, pool_size=8)
    worker = agent()
    async with Executor.open(url, agents=[worker], janitor_seconds=0.5, lease_ms=2_000) as helix:
        names = [f"session-{number}" for number in range(sessions)]

        async def drive(name: str) -> None:
            async with asyncio.timeout(SECONDS):
                while True:
                    try:
                        handle = await helix.execute(worker, "go", session_id=name, idempotency_key=f"{name}-go")
                        result = await handle.result()
                    except StoreUnavailableError:
                        await asyncio.sleep(0.1)
                        continue
                    if isinstance(result, Completed):
                        return
                    await asyncio.sleep(0.1)

        driving = [asyncio.create_task(drive(name)) for name in names]
        for _ in range(restarts):
            await asyncio.sleep(0.3)
            await asyncio.to_thread(server.restart)
        await asyncio.gather(*driving)
    async with await open_backend(url) as backend:
        for name in names:
            transcript = [row.message for row in await backend.state.load_transcript(name)]
            results = [message.content for message in transcript if isinstance(message, ToolMessage)]
            assert results == [f"part {number}" for number in range(1, STEPS + 1)], name
            replies = [message for message in transcript if isinstance(message, AssistantMessage)]
            assert len(replies) == STEPS + 1
            assert len(transcript) == 2 * STEPS + 2
            run = await backend.state.get_current_run(name)
            assert run is not None
            assert run.status == "completed"
        assert await backend.state.list_orphans() == ()


@pytest.mark.timeout(120)
async def test_sessions_survive_a_server_that_dies(server: PostgresService) -> None:
    await survive(server, sessions=4, restarts=1)


@pytest.mark.chaos
@pytest.mark.timeout(600)
async def test_many_sessions_survive_a_server_that_dies_again_and_again(server: PostgresService) -> None:
    await survive(server, sessions=50, restarts=6)
