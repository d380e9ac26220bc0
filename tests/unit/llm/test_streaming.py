"""A provider's reply arrives piece by piece, over real HTTP and through the provider's own library."""

import json
from typing import Any

import pytest

from helix_agents.domain.messages import ToolCall
from helix_agents.domain.records import encode
from helix_agents.domain.usage import TokenCount
from helix_agents.llm.pydantic_ai import PydanticAIModel
from helix_agents.ports.llm import TextPiece, ThinkingPiece, ToolArgumentsPiece, ToolCallEnded, ToolCallStarted
from tests.support.asking import answer_of, events_of, question
from tests.support.provider_server import ProviderServer, Stream
from tests.support.provider_wire import CHAT, MISTRAL, WIRES, Wire, Wired, data

A_CALL: tuple[str, str, dict[str, Any]] = ("call_a", "search", {"query": "high tides", "limit": 3})

# Mistral's library takes a reply with half a character for a broken one, and it is asked for once more.
READ_AS_FAR_AS_POSSIBLE = [wire for wire in WIRES.values() if wire is not MISTRAL]


def joined(events: list[Any], kind: type) -> str:
    return "".join(event.delta for event in events if isinstance(event, kind))


async def test_text_arrives_in_pieces_that_add_up_to_the_reply(
    wire: Wire, server: ProviderServer, model: PydanticAIModel
) -> None:
    server.will(wire.stream(Wired(text="The tide is rising.")))
    *pieces, done = await events_of(model, question())
    assert len([piece for piece in pieces if isinstance(piece, TextPiece)]) > 3
    assert joined(pieces, TextPiece) == done.reply.text == "The tide is rising."
    assert done.reply.model == model.name == wire.model
    assert done.reply.stop_reason == "stop"


async def test_a_call_is_announced_then_its_arguments_arrive_then_it_ends(
    wire: Wire, server: ProviderServer, model: PydanticAIModel
) -> None:
    server.will(wire.stream(Wired(text="Let me look.", calls=[A_CALL, ("call_b", "today", {})])))
    events = await events_of(model, question())
    about = [e for e in events if isinstance(e, ToolCallStarted | ToolArgumentsPiece | ToolCallEnded)]
    first = [event for event in about if event.id == "call_a"]
    assert first[0] == ToolCallStarted(id="call_a", name="search")
    assert first[-1] == ToolCallEnded(id="call_a")
    assert about.index(ToolCallEnded(id="call_a")) < about.index(ToolCallStarted(id="call_b", name="today"))
    assert joined(first, ToolArgumentsPiece).replace(" ", "") == '{"query":"hightides","limit":3}'
    assert events[-1].reply.tool_calls == (
        ToolCall(id="call_a", name="search", arguments={"query": "high tides", "limit": 3}),
        ToolCall(id="call_b", name="today", arguments={}),
    )
    assert events[-1].reply.stop_reason == "tool_calls"


@pytest.mark.parametrize("name", ["anthropic", "chat"])
async def test_a_call_ends_after_its_last_piece_though_another_began_before(
    name: str, server: ProviderServer, connect: Any
) -> None:
    frames = WIRES[name].frames(Wired(calls=[A_CALL, ("call_b", "search", {"query": "low tides"})]))
    # The second call is announced as soon as the first was.
    [first, second] = [at for at, frame in enumerate(frames) if '"call_a"' in frame or '"call_b"' in frame]
    frames.insert(first + 1, frames.pop(second))
    server.will(Stream(frames=frames))
    *events, done = await events_of(connect(WIRES[name]), question())
    for call_id, query in (("call_a", "high tides"), ("call_b", "low tides")):
        about = [event for event in events if getattr(event, "id", None) == call_id]
        assert [event for event in about if isinstance(event, ToolCallEnded)] == about[-1:]
        assert json.loads(joined(about, ToolArgumentsPiece))["query"] == query
    assert [made.arguments["query"] for made in done.reply.tool_calls] == ["high tides", "low tides"]


@pytest.mark.parametrize("name", ["anthropic", "responses", "chat"])
async def test_arguments_arrive_as_the_provider_streams_them(name: str, server: ProviderServer, connect: Any) -> None:
    server.will(WIRES[name].stream(Wired(calls=[A_CALL])))
    events = await events_of(connect(WIRES[name]), question())
    assert len([event for event in events if isinstance(event, ToolArgumentsPiece)]) > 5


async def test_usage_counts_what_was_cached_and_what_was_reasoning(
    wire: Wire, server: ProviderServer, model: PydanticAIModel
) -> None:
    server.will(wire.stream(Wired(text="yes")))
    done = await answer_of(model, question())
    assert done.usage == wire.usage


async def test_a_server_that_tells_with_every_piece_what_was_used_so_far_is_not_counted_twice(
    server: ProviderServer, connect: Any
) -> None:
    *pieces, last, done = CHAT.frames(Wired(text="The tide is rising."))
    so_far = {"prompt_tokens": 45, "completion_tokens": 3, "total_tokens": 48}
    telling = [frame.replace('"choices"', f'"usage": {json.dumps(so_far)}, "choices"') for frame in pieces]
    server.will(Stream(frames=[*telling, last, done]))
    told = await answer_of(connect(CHAT), question())
    assert told.usage == TokenCount(prompt=45, completion=20, reasoning=7, cached=30, total=65)
    # Others tell nothing more once the last piece is there.
    server.will(Stream(frames=[*telling, done]))
    told = await answer_of(connect(CHAT), question())
    assert told.usage == TokenCount(prompt=45, completion=3, total=48)


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
async def test_usage_that_is_told_in_another_way_costs_no_reply(server: ProviderServer, connect: Any) -> None:
    *pieces, _, done = CHAT.frames(Wired(text="The tide is rising."))
    used = {"prompt_tokens": 45.0, "completion_tokens": 20, "completion_tokens_details": {"reasoning_tokens": "many"}}
    server.will(Stream(frames=[*pieces, data({"id": "1", "object": "x", "choices": [], "usage": used}), done]))
    told = await answer_of(connect(CHAT), question())
    assert (told.reply.text, told.usage) == ("The tide is rising.", TokenCount(prompt=45, completion=20, total=65))


@pytest.mark.parametrize(
    ("name", "theirs", "ours"),
    [(name, theirs, ours) for name, wire in WIRES.items() for theirs, ours in wire.stops.items()],
)
async def test_stop_reasons_are_the_same_words_for_every_provider(
    name: str, theirs: str, ours: str, server: ProviderServer, connect: Any
) -> None:
    calls = [A_CALL] if ours == "tool_calls" else []
    server.will(WIRES[name].stream(Wired(text="well", stop=theirs, calls=calls)))
    done = await answer_of(connect(WIRES[name]), question())
    assert done.reply.stop_reason == ours


async def test_thinking_arrives_in_pieces_and_its_end_carries_the_signature(
    server: ProviderServer, connect: Any
) -> None:
    server.will(WIRES["anthropic"].stream(Wired(thinking="Moon, sun.", signature="sig-1", text="Because.")))
    events = await events_of(connect(WIRES["anthropic"]), question())
    thinking = [event for event in events if isinstance(event, ThinkingPiece)]
    assert joined(thinking, ThinkingPiece) == "Moon, sun."
    assert [event.done for event in thinking] == [False] * 4 + [True]
    assert thinking[-1].signature == "sig-1"
    [block] = events[-1].reply.thinking
    assert (block.text, block.signature) == ("Moon, sun.", "sig-1")


async def test_what_a_model_says_when_it_refuses_is_kept_beside_the_reply(server: ProviderServer, connect: Any) -> None:
    frames = [frame.replace('"content": "no"', '"refusal": "no"') for frame in CHAT.frames(Wired(text="no"))]
    server.will(Stream(frames=frames))
    reply = (await answer_of(connect(CHAT), question())).reply
    assert (reply.text, reply.stop_reason) == ("", "content_filter")
    assert reply.metadata["provider"]["refusal"] == "no"


@pytest.mark.parametrize("wire", READ_AS_FAR_AS_POSSIBLE)
async def test_a_character_that_arrives_in_two_halves_is_whole_and_half_a_character_is_marked(
    wire: Wire, server: ProviderServer, model: PydanticAIModel
) -> None:
    torn = "ab\ud83d\ude00 \ud83d"
    call: tuple[str, str, dict[str, Any]] = ("call_a", "se\ud83d", {"query": "\ud83d\ude00"})
    server.will(wire.stream(Wired(thinking=torn, signature="c2lnbmVk", text=torn, calls=[call])))
    *pieces, done = await events_of(model, question())
    assert joined(pieces, TextPiece) == done.reply.text == "ab😀 \ufffd"
    assert joined(pieces, ThinkingPiece) == done.reply.thinking[0].text == "ab😀 \ufffd"
    assert done.reply.tool_calls == (ToolCall(id="call_a", name="se\ufffd", arguments={"query": "😀"}),)
    assert encode(done.reply)


@pytest.mark.parametrize("wire", READ_AS_FAR_AS_POSSIBLE)
async def test_torn_characters_in_arguments_do_not_fail_the_reply(
    wire: Wire, server: ProviderServer, model: PydanticAIModel
) -> None:
    server.will(wire.stream(Wired(calls=[("call_a", "search", {"query": "\ud83d"})])))
    *pieces, done = await events_of(model, question())
    [made] = done.reply.tool_calls
    # Those that come as text stay the text they were, which no tool accepts.
    assert made.arguments in ({"query": "\ufffd"}, '{"query": "\\ud83d"}')
    assert joined(pieces, ToolArgumentsPiece)
    assert encode(done.reply)


@pytest.mark.parametrize("written", ["", " ", "null"])
@pytest.mark.parametrize("name", ["anthropic", "responses", "chat"])
async def test_no_arguments_are_no_arguments_however_they_are_written(
    name: str, written: str, server: ProviderServer, connect: Any
) -> None:
    frames = "\x00".join(WIRES[name].frames(Wired(calls=[("call_a", "today", {})])))
    server.will(Stream(frames=frames.replace('"{}"', json.dumps(written)).split("\x00")))
    reply = (await answer_of(connect(WIRES[name]), question())).reply
    assert reply.tool_calls == (ToolCall(id="call_a", name="today", arguments={}),)


async def test_arguments_too_deep_to_be_read_stay_the_text_they_were(server: ProviderServer, connect: Any) -> None:
    deep = '{"d":' * 3_000
    opening = {"index": 0, "id": "call_a", "type": "function", "function": {"name": "search", "arguments": deep}}
    [_, last, *rest] = CHAT.frames(Wired(stop="tool_calls"))
    begun = last.replace('"delta": {}', '"delta": ' + json.dumps({"tool_calls": [opening]}))
    server.will(Stream(frames=[begun.replace('"tool_calls"}', "null}"), last, *rest]))
    reply = (await answer_of(connect(CHAT), question())).reply
    assert [made.arguments for made in reply.tool_calls] == [deep]
