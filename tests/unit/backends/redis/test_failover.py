"""A Redis server that another one takes over from: writes go to the new one as soon as the address leads there."""

import asyncio
import contextlib
import time
from collections.abc import Iterator

import pytest

from helix_agents.backends.redis.errors import translated
from helix_agents.domain.errors import StoreFullError, StoreUnavailableError
from helix_agents.ports.backend import open_backend
from helix_agents.testing.redis_service import RedisService
from helix_agents.testing.scenes import SESSION, commit, said, start
from helix_agents.testing.service_process import free_port

exceptions = pytest.importorskip("redis.exceptions")

SECONDS = 20.0


class Address:
    """Where clients connect. It leads new connections to one server or another; old ones stay where they are."""

    def __init__(self, service: RedisService) -> None:
        self.leads_to = service
        self.port = free_port()
        self._lines: list[asyncio.Future[None]] = []

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._lines.append(asyncio.ensure_future(self._carry(reader, writer)))

    async def hung_up(self) -> None:
        """Every connection was ended."""
        await asyncio.gather(*self._lines)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*_place(self.leads_to))
        await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()
        await writer.wait_closed()


@pytest.fixture
def servers() -> Iterator[tuple[RedisService, RedisService]]:
    with RedisService() as old, RedisService() as new:
        yield old, new


def take_over(old: RedisService, new: RedisService) -> None:
    """Have the new server follow the old one until it has everything, and then the old one the new one."""
    new.ask("REPLICAOF", *_place(old))
    deadline = time.monotonic() + SECONDS
    while b"master_link_status:up" not in new.ask("INFO", "replication"):
        assert time.monotonic() < deadline
    new.ask("REPLICAOF", "NO", "ONE")
    old.ask("REPLICAOF", *_place(new))


def _place(service: RedisService) -> tuple[str, str]:
    host, _, port = service.url.removeprefix("redis://").partition("/")[0].partition(":")
    return host, port


@pytest.mark.parametrize("at_once", [1, 3])
async def test_writes_go_to_the_server_that_took_over(servers: tuple[RedisService, RedisService], at_once: int) -> None:
    old, new = servers
    address = Address(old)
    listening = await asyncio.start_server(address.carry, "127.0.0.1", address.port)
    async with listening, await open_backend(address.url) as backend:
        await start(backend.state)
        await asyncio.to_thread(take_over, old, new)
        address.leads_to = new
        tries = [backend.state.append_messages(SESSION, [said("hi")]) for _ in range(at_once)]
        answers = await asyncio.gather(*tries, return_exceptions=True)
        assert isinstance(answers[0], StoreUnavailableError)
        stored = sum(isinstance(answer, int) for answer in answers)
        await commit(backend.state, messages=[said("once")])
        assert await backend.state.get_message_count(SESSION) == stored + 1
    await asyncio.wait_for(address.hung_up(), SECONDS)


@pytest.mark.parametrize(
    ("word", "meaning"),
    [("READONLY", StoreUnavailableError), ("NOREPLICAS", StoreUnavailableError), ("OOM", StoreFullError)],
)
def test_what_stops_a_script_is_told_as_what_stops_a_command(word: str, meaning: type[Exception]) -> None:
    """Before version 7 a server wraps the one into the other."""
    inside = f"Error running script (call to f_6b1bf4): @user_script:1: @user_script: 1: -{word} not now."
    assert isinstance(translated(exceptions.ResponseError(inside), "redis"), meaning)
    assert isinstance(translated(exceptions.ResponseError(f"{word} not now."), "redis"), meaning)
