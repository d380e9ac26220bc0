"""One message to one webhook, over HTTP."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextvars import ContextVar
from email.utils import parsedate_to_datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, NamedTuple, cast

from helix_agents.domain.errors import MissingExtraError
from helix_agents.domain.webhooks import DeliveryId, signed_headers
from helix_agents.runtimes.executor.webhooks import Webhook

if TYPE_CHECKING:
    import ssl

    import httpx2

CONNECT_SECONDS = 5.0
# What a receiver says in its answer is of no interest; reading a little of it keeps the connection usable.
_READ_BYTES = 16_384


_sending: ContextVar[bool] = ContextVar("sends a message to a webhook", default=False)


def _shows_no_address(_: logging.LogRecord) -> bool:
    """The client logs each request with its whole address, which may hold a token."""
    return not _sending.get()


class Answered(NamedTuple):
    """The receiver's answer; `retry_after_ms` is how long it asks to be left alone."""

    status: int
    retry_after_ms: int = 0


class Unreachable(NamedTuple):
    """Why there was no answer."""

    reason: str


class Posts:
    """Sends messages. Only addresses that the operator configured are called, and no redirect is followed."""

    def __init__(self) -> None:
        """Get ready.

        Raises:
            MissingExtraError: the HTTP client is not installed.
        """
        try:
            import httpx2
        except ImportError:
            raise MissingExtraError("A webhook", "webhooks") from None
        logging.getLogger("httpx2").addFilter(_shows_no_address)
        self._httpx2 = httpx2
        self._client: httpx2.AsyncClient | None = None
        self._opening = asyncio.Lock()

    async def send(self, webhook: Webhook, delivery_id: DeliveryId, body: bytes) -> Answered | Unreachable:
        """Send a signed message; never raises for what the receiver does."""
        # The time by which receivers refuse old messages is the world's, not the store's.
        headers = signed_headers(webhook.keys, delivery_id, int(time.time()), body)
        headers |= {"content-type": "application/json", "user-agent": "helix-agents", "accept-encoding": "identity"}
        answered: Answered | None = None
        sending = _sending.set(True)
        try:
            # Limits the whole answer: one that trickles in keeps every single read within its own limit.
            async with asyncio.timeout(webhook.timeout_ms / 1000):
                client = await self._opened()
                async with client.stream("POST", webhook.url, content=body, headers=headers) as answer:
                    # The status is the answer, even if the rest of it never comes.
                    answered = Answered(answer.status_code, _retry_after_ms(answer.headers.get("retry-after")))
                    await _read_some(answer)
        except TimeoutError:
            return answered or Unreachable(f"no answer within {webhook.timeout_ms / 1000:g} s")
        except Exception as problem:
            # Catch everything: what the client does not foresee has to be recorded and given up like all the rest.
            return answered or Unreachable(f"{type(problem).__name__} {problem}".strip()[:500])
        finally:
            _sending.reset(sending)
        return answered

    async def close(self) -> None:
        """Close all connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _opened(self) -> "httpx2.AsyncClient":
        async with self._opening:
            if self._client is None:
                # Reading the certificates takes a while.
                tls = await asyncio.to_thread(cast("Callable[[], ssl.SSLContext]", self._httpx2.create_ssl_context))
                self._client = self._httpx2.AsyncClient(
                    verify=tls,
                    timeout=self._httpx2.Timeout(None, connect=CONNECT_SECONDS),
                    # A webhook that hangs must not use up the connections of the others. And none is used again that
                    # its receiver may be closing just then; five seconds is what most of them wait.
                    limits=self._httpx2.Limits(
                        max_connections=None, max_keepalive_connections=20, keepalive_expiry=3.0
                    ),
                    # Receivers know us by the signature; what one of them wants remembered is not sent to any.
                    cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
                    follow_redirects=False,
                )
            return self._client


async def _read_some(answer: "httpx2.Response") -> None:
    read = 0
    async for piece in answer.aiter_raw():
        read += len(piece)
        if read > _READ_BYTES:
            return


def _retry_after_ms(text: str | None) -> int:
    """How many milliseconds the receiver asks for, as seconds or as a date; 0 if it asks for nothing that makes
    sense."""
    if text is None:
        return 0
    if text.isdecimal():
        return int(text) * 1000 if len(text) < 8 else 0
    try:
        return max(0, round((parsedate_to_datetime(text).timestamp() - time.time()) * 1000))
    except (ValueError, OverflowError):
        return 0
