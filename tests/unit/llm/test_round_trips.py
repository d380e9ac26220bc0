"""A provider gets its own reply back as it sent it: signatures, item ids and the order of its parts."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from helix_agents.domain.messages import AssistantMessage, Message, Thinking, ToolMessage, UserMessage, decode_message
from helix_agents.domain.records import encode
from helix_agents.llm.pydantic_ai import PydanticAIModel
from tests.support.asking import answer_of, events_of, question
from tests.support.provider_server import ProviderServer, Stream
from tests.support.provider_wire import ANTHROPIC, CHAT, GOOGLE, RESPONSES, Wire, Wired, event

A_REPLY = Wired(
    thinking="Moon, sun.",
    signature="c2lnLTE=",
    text="Let me look.",
    calls=[("call_a", "search", {"query": "x"}), ("call_b", "search", {"query": "y"})],
)
HELLO = UserMessage(content="hello")
RESULTS = [
    ToolMessage(tool_call_id="call_a", tool_name="search", content="one"),
    ToolMessage(tool_call_id="call_b", tool_name="search", content="two"),
]


def stored(message: Message) -> Message:
    """The message as it comes back from a store."""
    return decode_message(encode(message))


async def sent_back(server: ProviderServer, model: PydanticAIModel, first: Stream, last: Stream) -> Any:
    """The body of the second request, whose history holds the first reply as a store gave it back."""
    server.will(first, last)
    reply = (await answer_of(model, question(HELLO))).reply
    await answer_of(model, question(HELLO, stored(reply), *RESULTS, run_id="r-2"))
    return server.asked


async def test_anthropic_gets_its_signed_thinking_back(server: ProviderServer, connect: Any) -> None:
    done = ANTHROPIC.stream(Wired(text="done"))
    body = await sent_back(server, connect(ANTHROPIC), ANTHROPIC.stream(A_REPLY), done)
    assert body["messages"][1] == {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Moon, sun.", "signature": "c2lnLTE="},
            {"type": "text", "text": "Let me look."},
            {"type": "tool_use", "id": "call_a", "name": "search", "input": {"query": "x"}},
            {"type": "tool_use", "id": "call_b", "name": "search", "input": {"query": "y"}},
        ],
    }


async def test_openai_gets_its_encrypted_reasoning_and_item_ids_back(server: ProviderServer, connect: Any) -> None:
    done = RESPONSES.stream(Wired(text="done"))
    body = await sent_back(server, connect(RESPONSES), RESPONSES.stream(A_REPLY), done)
    _, reasoning, message, first, second, *results = body["input"]
    assert (reasoning["id"], reasoning["encrypted_content"]) == ("rs_1", "c2lnLTE=")
    assert reasoning["summary"] == [{"type": "summary_text", "text": "Moon, sun."}]
    assert (message["id"], message["content"][0]["text"]) == ("msg_1", "Let me look.")
    assert [(call["id"], call["call_id"]) for call in (first, second)] == [("fc_2", "call_a"), ("fc_3", "call_b")]
    assert [result["call_id"] for result in results] == ["call_a", "call_b"]


async def test_google_gets_the_signature_back_on_the_call_that_carried_it(server: ProviderServer, connect: Any) -> None:
    body = await sent_back(server, connect(GOOGLE), GOOGLE.stream(A_REPLY), GOOGLE.stream(Wired(text="done")))
    calls = [part for part in body["contents"][1]["parts"] if "functionCall" in part]
    assert [part.get("thoughtSignature") for part in calls] == ["c2lnLTE=", None]


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[str]:
    return [
        event({"type": "content_block_start", "index": index, "content_block": start}),
        *[event({"type": "content_block_delta", "index": index, "delta": delta}) for delta in deltas],
        event({"type": "content_block_stop", "index": index}),
    ]


INTERLEAVED = [
    {"type": "thinking", "thinking": "First.", "signature": "sig-1"},
    {"type": "text", "text": "One."},
    {"type": "redacted_thinking", "data": "b3BhcXVl"},
    {"type": "text", "text": "Two."},
    {"type": "text", "text": " Three."},
    {"type": "tool_use", "id": "call_a", "name": "search", "input": {}},
    {"type": "tool_use", "id": "call_b", "name": "search", "input": {}},
]


def interleaved() -> Stream:
    opening, *_, stop, end = ANTHROPIC.frames(Wired(calls=[("call_a", "search", {})]))
    return Stream(
        frames=[opening, *[frame for at, part in enumerate(INTERLEAVED) for frame in block(at, part)], stop, end]
    )


async def test_parts_come_back_in_the_order_they_came_in(server: ProviderServer, connect: Any) -> None:
    body = await sent_back(server, connect(ANTHROPIC), interleaved(), ANTHROPIC.stream(Wired(text="done")))
    assert body["messages"][1]["content"] == INTERLEAVED


async def test_texts_apart_are_set_apart_the_same_way_in_the_stream_and_in_the_reply(
    server: ProviderServer, connect: Any
) -> None:
    server.will(interleaved())
    *pieces, done = await events_of(connect(ANTHROPIC), question())
    assert done.reply.text == "One.\n\nTwo. Three."
    assert "".join(piece.delta for piece in pieces if type(piece).__name__ == "TextPiece") == done.reply.text
    assert [block.text for block in done.reply.thinking] == ["First.", ""]


async def test_a_reply_somebody_edited_is_sent_as_it_now_is(server: ProviderServer, connect: Any) -> None:
    model = connect(RESPONSES)
    server.will(RESPONSES.stream(A_REPLY), RESPONSES.stream(Wired(text="done")))
    reply = (await answer_of(model, question(HELLO))).reply
    edited = replace(reply, text="I looked.", tool_calls=())
    await answer_of(model, question(HELLO, edited, UserMessage(content="go on"), run_id="r-2"))
    sent = [item for item in server.asked["input"] if item.get("role") == "assistant"]
    assert [item["content"] for item in sent] == ["I looked."]


async def test_a_description_that_cannot_be_read_costs_the_reasoning_and_not_the_reply(
    server: ProviderServer, connect: Any
) -> None:
    strange = AssistantMessage(
        text="I looked.",
        thinking=(Thinking(text="hm", signature="s"),),
        metadata={"provider": {"name": "anthropic", "of_tomorrow": True}},
    )
    server.will(ANTHROPIC.stream(Wired(text="done")))
    await answer_of(connect(ANTHROPIC), question(HELLO, strange, UserMessage(content="go on")))
    assert server.asked["messages"][1]["content"] == [{"type": "text", "text": "I looked."}]


async def test_signed_thinking_of_a_reply_that_was_cut_off_goes_back_to_its_own_model(
    server: ProviderServer, connect: Any
) -> None:
    """Nobody described that reply: its stream never ended."""
    cut = AssistantMessage(
        text="I was about to",
        thinking=(Thinking(text="Moon.", signature="sig-1"),),
        interrupted="interrupt",
        model=ANTHROPIC.model,
    )
    server.will(ANTHROPIC.stream(Wired(text="done")))
    await answer_of(connect(ANTHROPIC), question(HELLO, cut, UserMessage(content="go on")))
    assert server.asked["messages"][1]["content"][0] == {"type": "thinking", "thinking": "Moon.", "signature": "sig-1"}


async def test_a_reply_that_is_only_reasoning_is_left_out_because_it_would_be_refused(
    wire: Wire, server: ProviderServer, model: PydanticAIModel
) -> None:
    """It reached its token limit while it was thinking. Anthropic and OpenAI would refuse every later request."""
    at_its_limit = next(stop for stop, ours in wire.stops.items() if ours == "length")
    server.will(wire.stream(Wired(thinking="Moon, sun.", signature="c2lnLTE=", stop=at_its_limit)))
    reply = (await answer_of(model, question(HELLO))).reply
    assert (reply.thinking[0].text, reply.text) == ("Moon, sun.", "")
    server.will(wire.stream(Wired(text="yes")))
    await answer_of(model, question(HELLO, stored(reply), UserMessage(content="Go on."), run_id="r-2"))
    assert "Moon" not in json.dumps(server.asked)
    turns = server.asked.get("messages") or server.asked.get("input") or server.asked["contents"]
    assert {turn.get("role", turn.get("type")) for turn in turns} <= {"user", "system"}


async def test_reasoning_after_the_last_word_is_left_out(server: ProviderServer, connect: Any) -> None:
    opening, *_, stop, end = ANTHROPIC.frames(Wired(text="One."))
    said = [{"type": "text", "text": "One."}, {"type": "thinking", "thinking": "Hm.", "signature": "sig-1"}]
    cut = Stream(frames=[opening, *[frame for at, part in enumerate(said) for frame in block(at, part)], stop, end])
    body = await sent_back(server, connect(ANTHROPIC), cut, ANTHROPIC.stream(Wired(text="done")))
    assert body["messages"][1]["content"] == [{"type": "text", "text": "One."}]


@pytest.mark.parametrize(("first", "second"), [(RESPONSES, CHAT), (CHAT, RESPONSES)])
async def test_reasoning_of_one_api_is_not_sent_to_another_of_the_same_provider(
    first: Wire, second: Wire, server: ProviderServer, connect: Any
) -> None:
    server.will(first.stream(Wired(thinking="Moon, sun.", signature="c2lnbmVk", text="Because.")))
    reply = (await answer_of(connect(first), question())).reply
    assert reply.thinking
    server.will(second.stream(Wired(text="yes")))
    await answer_of(connect(second), question(UserMessage(content="Why?"), reply, UserMessage(content="Sure?")))
    assert "Because." in json.dumps(server.asked)
    assert "Moon" not in json.dumps(server.asked)
