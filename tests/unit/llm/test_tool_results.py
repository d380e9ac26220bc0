"""Results with images and files: each provider is sent what it reads, and a note about the rest."""

import json
import struct
from typing import Any

import pytest

from helix_agents.domain.messages import (
    EDITED_INPUT,
    AssistantMessage,
    File,
    Image,
    Part,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from helix_agents.domain.parts import in_json
from helix_agents.llm.prompt_cache import anthropic_cache
from helix_agents.llm.pydantic_ai import PydanticAIModel
from helix_agents.llm.pydantic_ai.messages import MessageConverter
from helix_agents.ports.llm import ModelSettings
from tests.support.asking import answer_of, question
from tests.support.provider_server import ProviderServer
from tests.support.provider_wire import ANTHROPIC, BEDROCK, CHAT, GOOGLE, RESPONSES, Wire, Wired

YES = Wired(text="yes")
PNG = Image.of(b"hello", "image/png", "moon.png")
PDF = File.of(b"hello", "application/pdf", "papers.pdf")
FAR = Image(url="https://example.org/sun.png")
SOUND = File.of(b"hello", "audio/mpeg", "sea.mp3")
MIXED = (Text(text="The moon:"), PNG, Text(text=" "), PDF, FAR, Text(text="and the sun."), SOUND)
UNREAD = "[file: sea.mp3, audio/mpeg, about 6 bytes] (this model cannot be shown it)"


def result(*parts: Part, metadata: dict[str, Any] | None = None) -> ToolMessage:
    content, in_parts = in_json(parts)
    return ToolMessage(
        tool_call_id="call_a", tool_name="look", content=content, in_parts=in_parts, metadata=metadata or {}
    )


def told(*results: ToolMessage) -> list[Any]:
    calls = tuple(ToolCall(id=each.tool_call_id, name="look") for each in results)
    return [UserMessage(content="What is there?"), AssistantMessage(tool_calls=calls), *results]


async def asked(server: ProviderServer, model: PydanticAIModel, wire: Wire, *messages: Any, **fields: Any) -> Any:
    server.will(wire.stream(YES))
    await answer_of(model, question(*messages, **fields))
    return server.asked


async def test_anthropic_is_sent_blocks_within_the_result(server: ProviderServer, connect: Any) -> None:
    body = await asked(server, connect(ANTHROPIC), ANTHROPIC, *told(result(*MIXED)))
    [block] = body["messages"][-1]["content"]
    assert (block["type"], block["tool_use_id"], block["is_error"]) == ("tool_result", "call_a", False)
    assert [each.get("text") or each["source"] for each in block["content"]] == [
        "The moon:",
        {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="},
        {"type": "base64", "media_type": "application/pdf", "data": "aGVsbG8="},
        {"type": "url", "url": "https://example.org/sun.png"},
        "and the sun.",
        UNREAD,
    ]


async def test_openai_is_sent_the_parts_of_an_output(server: ProviderServer, connect: Any) -> None:
    body = await asked(server, connect(RESPONSES), RESPONSES, *told(result(*MIXED)))
    output = body["input"][-1]
    assert (output["type"], output["call_id"]) == ("function_call_output", "call_a")
    kinds = ["input_text", "input_image", "input_file", "input_image", "input_text", "input_text"]
    assert [each["type"] for each in output["output"]] == kinds
    assert output["output"][1]["image_url"] == "data:image/png;base64,aGVsbG8="
    assert output["output"][2]["file_data"] == "data:application/pdf;base64,aGVsbG8="
    assert output["output"][3]["image_url"] == "https://example.org/sun.png"
    assert output["output"][5]["text"] == UNREAD


async def test_chat_completions_are_sent_the_files_after_all_results(server: ProviderServer, connect: Any) -> None:
    other = ToolMessage(tool_call_id="call_b", tool_name="look", content="nothing")
    body = await asked(server, connect(CHAT), CHAT, *told(result(*MIXED), other))
    *_, first, second, files = body["messages"]
    assert [first["role"], second["role"], files["role"]] == ["tool", "tool", "user"]
    assert json.loads(first["content"])[:2] == ["The moon:", "See file moon.png."]
    assert json.loads(first["content"])[-1] == UNREAD
    shown = [each for each in files["content"] if each["type"] != "text"]
    assert [each["type"] for each in shown] == ["image_url", "file", "image_url"]
    assert shown[0]["image_url"]["url"] == "data:image/png;base64,aGVsbG8="
    assert shown[2]["image_url"]["url"] == "https://example.org/sun.png"


async def test_google_is_sent_the_data_and_told_of_the_addresses(server: ProviderServer, connect: Any) -> None:
    body = await asked(server, connect(GOOGLE), GOOGLE, *told(result(*MIXED)))
    response, files = body["contents"][-2:]
    sent = [each["inlineData"] for each in files["parts"] if "inlineData" in each]
    assert [each["mime_type"] for each in sent] == ["image/png", "application/pdf", "audio/mpeg"]
    assert "[image: https://example.org/sun.png] (this model cannot be shown it)" in json.dumps(response)


@pytest.mark.parametrize(
    "part",
    [
        File.of(b"hello", "application/zip", "all.zip"),
        File(url="https://example.org/all.zip", media_type="application/zip"),
        Image.of(b"<svg/>", "image/svg+xml"),
        Image(url="data:;base64,aGVsbG8="),
        Image(url="https://example.org/moon.tiff", media_type="image/tiff"),
    ],
    ids=lambda part: part.url[:40],
)
async def test_what_a_model_cannot_read_does_not_end_its_conversation(
    part: Any, wire: Wire, server: ProviderServer, model: PydanticAIModel
) -> None:
    body = await asked(server, model, wire, *told(result(Text(text="Here:"), part)))
    assert "cannot be shown it" in json.dumps(body)


def png(wide: int, high: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", wide, high)


def jpeg(wide: int, high: int) -> bytes:
    about = b"\xff\xe0\x00\x04JF" + b"\xff\xc4\x00\x03x"
    return b"\xff\xd8" + about + b"\xff\xff\xc2\x00\x11\x08" + struct.pack(">HH", high, wide) + b"\x03\x01"


def gif(wide: int, high: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", wide, high)


def webp(wide: int, high: int) -> bytes:
    return b"RIFF0000WEBPVP8X" + bytes(8) + struct.pack("<I", wide - 1)[:3] + struct.pack("<I", high - 1)[:3]


def webp_without_loss(wide: int, high: int) -> bytes:
    return b"RIFF0000WEBPVP8L0000\x2f" + struct.pack("<I", wide - 1 | high - 1 << 14)


def webp_with_loss(wide: int, high: int) -> bytes:
    return b"RIFF0000WEBPVP8 " + bytes(10) + struct.pack("<HH", wide, high)


@pytest.mark.parametrize("made", [png, jpeg, gif, webp, webp_without_loss, webp_with_loss])
@pytest.mark.parametrize("wires", [ANTHROPIC, BEDROCK], ids=lambda each: each.model)
async def test_a_picture_that_is_too_large_to_be_shown_does_not_end_its_conversation(
    made: Any, wires: Wire, server: ProviderServer, connect: Any
) -> None:
    kind = {"png": "image/png", "jpeg": "image/jpeg", "gif": "image/gif"}.get(made.__name__, "image/webp")
    shots = [Image.of(made(*sides), kind, "page") for sides in ((8_000, 8_000), (1_440, 8_570), (8_001, 20))]
    body = json.dumps(await asked(server, connect(wires), wires, *told(result(*shots))))
    assert body.count("[image: page, ") == body.count("cannot be shown it") == 2


async def test_a_picture_of_too_many_bytes_is_named(server: ProviderServer, connect: Any) -> None:
    heavy = Image.of(png(100, 100) + bytes(4 << 20), "image/png", "heavy")
    bedrock = await asked(server, connect(BEDROCK), BEDROCK, *told(result(heavy)))
    assert "cannot be shown it" in json.dumps(bedrock)
    body = await asked(server, connect(ANTHROPIC), ANTHROPIC, *told(result(heavy)))
    assert body["messages"][-1]["content"][0]["content"][0]["type"] == "image"


async def test_a_file_of_text_is_sent_as_text_where_files_of_its_kind_are_not_read(
    server: ProviderServer, connect: Any
) -> None:
    table = File.of(b"a,b\n1,2", "text/csv", "table.csv")
    body = await asked(server, connect(ANTHROPIC), ANTHROPIC, *told(result(table)))
    [block] = body["messages"][-1]["content"]
    [text] = block["content"]
    assert text["text"] == "[file: table.csv, text/csv, about 9 bytes]\na,b\n1,2"


async def test_a_result_without_anything_to_see_is_put_into_words(
    wire: Wire, server: ProviderServer, model: PydanticAIModel
) -> None:
    body = await asked(server, model, wire, *told(result(Text(text=" "))))
    assert "(empty result)" in json.dumps(body)


async def test_an_image_comes_after_the_note_about_an_edited_input(server: ProviderServer, connect: Any) -> None:
    edited = result(PNG, metadata={EDITED_INPUT: {"at": "the moon"}})
    body = await asked(server, connect(ANTHROPIC), ANTHROPIC, *told(edited))
    [block] = body["messages"][-1]["content"]
    assert [each["type"] for each in block["content"]] == ["text", "image"]
    assert 'It ran with {"at":"the moon"}' in block["content"][0]["text"]


async def test_the_cache_mark_stays_after_a_result_with_an_image(server: ProviderServer, connect: Any) -> None:
    settings = ModelSettings(cache=anthropic_cache())
    body = await asked(server, connect(ANTHROPIC), ANTHROPIC, *told(result(PNG)), settings=settings)
    assert "cache_control" in body["messages"][-1]["content"][-1]


async def test_an_image_is_converted_once(
    server: ProviderServer, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    converted: list[str] = []
    convert = MessageConverter.request_part

    def counting(self: MessageConverter, message: Any) -> Any:
        converted.append(type(message).__name__)
        return convert(self, message)

    monkeypatch.setattr(MessageConverter, "request_part", counting)
    model, history = connect(ANTHROPIC), told(result(PNG))
    await asked(server, model, ANTHROPIC, *history)
    body = await asked(server, model, ANTHROPIC, *history, AssistantMessage(text="I see."), UserMessage(content="And?"))
    assert converted == ["UserMessage", "ToolMessage", "UserMessage"]
    assert body["messages"][2]["content"][0]["content"][0]["type"] == "image"
