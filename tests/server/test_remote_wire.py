"""Reading what another service says, piece by piece."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from helix_agents.server.remote_wire import Event, NotOursError, read_events


async def pieces(body: bytes, size: int) -> AsyncIterator[bytes]:
    for begin in range(0, len(body), size):
        yield body[begin : begin + size]


STREAM = b'id: 1\ndata: {"a": 1}\n\n: keep-alive\n\nevent: end\ndata: {}\n\n'


@pytest.mark.parametrize("size", range(1, 12))
async def test_events_are_the_same_however_they_are_cut(size: int) -> None:
    read = [event async for event in read_events(pieces(STREAM, size), 1_000)]
    assert read == [Event("message", "1", b'{"a": 1}'), Event("end", None, b"{}")]


async def test_an_event_that_comes_in_a_million_pieces_is_read_in_its_time() -> None:
    """Looked through from its beginning each time, it would keep the process busy for minutes."""
    async with asyncio.timeout(20):
        body = b"data: " + b"x" * 1_000_000 + b"\n\n"
        (event,) = [event async for event in read_events(pieces(body, 1), 2_000_000)]
    assert len(event.data) == 1_000_000


async def test_an_event_may_not_be_too_large_in_whatever_pieces() -> None:
    with pytest.raises(NotOursError, match="more than 100 bytes"):
        async for _ in read_events(pieces(b"data: " + b"x" * 200, 7), 100):
            pass
