"""Whoever stops reading a reply cuts the call: the provider's side sees the connection close."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from helix_agents.llm.pydantic_ai import PydanticAIModel
from helix_agents.ports.llm import TextPiece
from tests.support.asking import answer_of, events_of, question
from tests.support.provider_server import PATIENCE, ProviderServer, Stream
from tests.support.provider_wire import ANTHROPIC, Wire, Wired

A_LONG_REPLY = Wired(text="a reply that never ends, or so it seems")


async def left(stream: Stream) -> bool:
    return await asyncio.to_thread(stream.client_left.wait, PATIENCE)


async def test_closing_the_iterator_closes_the_connection(
    wire: Wire, server: ProviderServer, model: PydanticAIModel
) -> None:
    held = wire.held(A_LONG_REPLY, keep=6)
    server.will(held)
    async with aclosing(model.ask(question())) as events:
        async for event in events:
            if isinstance(event, TextPiece):
                break
        assert not held.client_left.is_set()
    assert await left(held)


async def test_cancelling_the_reader_closes_the_connection(
    wire: Wire, server: ProviderServer, model: PydanticAIModel
) -> None:
    held = wire.held(A_LONG_REPLY, keep=6)
    server.will(held)
    reading = asyncio.Event()

    async def read() -> None:
        async with aclosing(model.ask(question())) as events:
            async for _ in events:
                reading.set()

    reader = asyncio.create_task(read())
    async with asyncio.timeout(PATIENCE):
        await reading.wait()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert await left(held)


async def test_the_same_model_answers_again_after_a_call_was_cut(
    wire: Wire, server: ProviderServer, model: PydanticAIModel
) -> None:
    held = wire.held(A_LONG_REPLY, keep=6)
    server.will(held, wire.stream(Wired(text="here I am")))
    async with aclosing(model.ask(question())) as events:
        await anext(events)
    assert await left(held)
    assert (await answer_of(model, question())).reply.text == "here I am"


async def test_a_closed_model_opens_new_connections_when_it_is_asked_again(
    server: ProviderServer, connect: Any
) -> None:
    model = connect(ANTHROPIC)
    server.will(*[ANTHROPIC.stream(Wired(text="yes"))] * 2)
    await answer_of(model, question())
    await model.close()
    await model.close()
    assert (await answer_of(model, question())).reply.text == "yes"


def test_one_model_serves_one_event_loop_after_another(server: ProviderServer) -> None:
    from helix_agents.llm.pydantic_ai import open_anthropic

    model = open_anthropic(ANTHROPIC.model, base_url=server.url, api_key="a-key")

    async def ask_and_close() -> str:
        [*_, done] = await events_of(model, question())
        await model.close()
        return done.reply.text

    server.will(*[ANTHROPIC.stream(Wired(text="yes"))] * 2)
    assert [asyncio.run(ask_and_close()), asyncio.run(ask_and_close())] == ["yes", "yes"]


async def test_many_sessions_that_ask_at_once_share_one_opening(server: ProviderServer, connect: Any) -> None:
    model = connect(ANTHROPIC)
    server.will(*[ANTHROPIC.stream(Wired(text="yes"))] * 5)
    asked = [answer_of(model, question(session_id=f"s-{number}")) for number in range(5)]
    assert [done.reply.text for done in await asyncio.gather(*asked)] == ["yes"] * 5
