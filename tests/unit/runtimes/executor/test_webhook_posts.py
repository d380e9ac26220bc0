"""One message to a receiver that does as it likes."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from helix_agents import Webhook
from helix_agents.runtimes.executor.webhook_posts import Answered, Posts, Unreachable
from helix_agents.testing.contracts.executor.webhooks import SECRET
from helix_agents.testing.receiver import Receiver


@pytest.fixture
async def posts() -> AsyncIterator[Posts]:
    posts = Posts()
    yield posts
    await posts.close()


@asynccontextmanager
async def answering(answer: bytes, *, then_closes: bool) -> AsyncIterator[str]:
    """A server that says this to whoever has sent it something, and then closes the connection, or is silent."""
    over = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            if not then_closes:
                await over.wait()
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
        over.set()


@pytest.mark.parametrize("then_closes", [True, False])
async def test_the_status_is_the_answer_even_if_the_rest_of_it_never_comes(posts: Posts, *, then_closes: bool) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nOK"
    async with answering(head, then_closes=then_closes) as url:
        assert await posts.send(Webhook(url, secret=SECRET, timeout=0.5), "msg_1", b"{}") == Answered(200)


async def test_an_answer_that_makes_no_sense_is_none(posts: Posts) -> None:
    async with answering(b"good day\r\n\r\n", then_closes=True) as url:
        answer = await posts.send(Webhook(url, secret=SECRET), "msg_1", b"{}")
        assert isinstance(answer, Unreachable)
        assert "RemoteProtocolError" in answer.reason


async def test_what_one_receiver_wants_remembered_is_sent_to_none(posts: Posts) -> None:
    async with Receiver() as receiver:
        receiver.headers["set-cookie"] = "visitor=7; Path=/"
        for number in range(2):
            await posts.send(Webhook(receiver.url, secret=SECRET), f"msg_{number}", b"{}")
        assert all("cookie" not in each.headers for each in receiver.received)


async def test_an_address_that_may_hold_a_token_is_in_no_log(posts: Posts, caplog: pytest.LogCaptureFixture) -> None:
    async with Receiver() as receiver:
        with caplog.at_level(logging.DEBUG):
            answer = await posts.send(Webhook(f"{receiver.url}/T0K3N?key=K3Y", secret=SECRET), "msg_1", b"{}")
            logging.getLogger("httpx2").info("a request of somebody else")
    assert answer == Answered(204)
    assert "a request of somebody else" in caplog.text
    assert "T0K3N" not in caplog.text
    assert "K3Y" not in caplog.text


async def test_webhooks_that_hang_use_up_no_connections_of_others(posts: Posts) -> None:
    async with Receiver() as hanging, Receiver() as other, asyncio.TaskGroup() as sending:
        hanging.hold.clear()
        for number in range(110):
            sending.create_task(posts.send(Webhook(hanging.url, secret=SECRET, timeout=120), f"msg_{number}", b"{}"))
        await hanging.until(110)
        assert await posts.send(Webhook(other.url, secret=SECRET), "msg_other", b"{}") == Answered(204)
        hanging.hold.set()


@pytest.mark.parametrize(
    ("asks", "least", "most"),
    [
        (lambda: "120", 120_000, 120_000),
        (lambda: format_datetime(datetime.now(UTC) + timedelta(minutes=5), usegmt=True), 200_000, 300_000),
        (lambda: "Mon, 01 Jan 2001 00:00:00 GMT", 0, 0),
        (lambda: "soon", 0, 0),
        (lambda: "-5", 0, 0),
        (lambda: "9" * 400, 0, 0),
    ],
)
async def test_a_receiver_may_ask_to_be_left_alone_for_so_many_seconds_or_until_a_date(
    posts: Posts, asks: Callable[[], str], least: int, most: int
) -> None:
    async with Receiver(503) as receiver:
        receiver.headers["retry-after"] = asks()
        answer = await posts.send(Webhook(receiver.url, secret=SECRET), "msg_1", b"{}")
        assert isinstance(answer, Answered)
        assert least <= answer.retry_after_ms <= most
