"""Refusals before a body was read: the rest of the body is accepted first, so that the client gets to read them."""

import asyncio
from contextlib import suppress

from starlette.types import Message, Receive, Scope, Send

from helix_agents.server.limits import ServerLimits

# The rest of a refused body is accepted, and thrown away, up to this many times the size limit. A client that is still
# sending when the connection is closed sees a reset, and not the reason why it was refused.
LET_IN = 16
# A client that did not send its body in time is not waited for again.
TOO_SLOW = 408


def let_in(scope: Scope, receive: Receive, send: Send, limits: ServerLimits) -> tuple[Receive, Send]:
    """The request's receive and send, such that a refusal first waits for the rest of the body, within bounds.

    A client that asks before it sends a body sends none once it is refused.
    """
    names = {name for name, _ in scope["headers"]}
    if b"expect" in names or not names & {b"content-length", b"transfer-encoding"}:
        return receive, send
    is_whole = False

    async def hear() -> Message:
        nonlocal is_whole
        message = await receive()
        is_whole = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    async def throw_away() -> None:
        arrived = 0
        while not is_whole and arrived <= limits.body_bytes * LET_IN:
            arrived += len((await hear()).get("body", b""))

    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] >= 400 and message["status"] != TOO_SLOW:
            with suppress(TimeoutError):
                async with asyncio.timeout(limits.body_seconds):
                    await throw_away()
        await send(message)

    return hear, answer
