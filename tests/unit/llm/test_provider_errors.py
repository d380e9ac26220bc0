"""What goes wrong at a provider arrives as one of four errors, each saying whether asking again may help."""

import json
import socket
from typing import Any

import pytest

from helix_agents.domain.errors import (
    ContextTooLongError,
    ModelError,
    ModelOverloadedError,
    ModelRefusedError,
    ModelUnavailableError,
)
from helix_agents.domain.messages import File, UserMessage
from helix_agents.llm.pydantic_ai import PydanticAIModel
from helix_agents.ports.llm import ModelSettings, ToolSpec
from helix_agents.ports.models import open_model
from tests.support.asking import answer_of, events_of, question
from tests.support.provider_server import ProviderServer, Refusal, Stream
from tests.support.provider_wire import ANTHROPIC, CHAT, GOOGLE, GROQ, MISTRAL, RESPONSES, Wire, Wired, data, event

TWO_REPLIES = Wired(text="a fairly long reply", calls=[("call_a", "search", {"query": "high tides"})])


async def failure_of(model: PydanticAIModel, **fields: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await events_of(model, question(**fields))
    return caught.value


async def test_a_rate_limit_is_worth_waiting_for_as_long_as_the_provider_says(
    wire: Wire, server: ProviderServer, model: PydanticAIModel
) -> None:
    server.will(wire.refusal(429, "rate_limit_error", "too many requests", retry_after="7"))
    error = await failure_of(model)
    assert type(error) is ModelOverloadedError
    assert error.retryable
    assert error.retry_after == 7
    assert error.model == wire.model
    assert "too many requests" in str(error)


async def test_a_wish_to_wait_is_read_where_google_writes_it(server: ProviderServer, connect: Any) -> None:
    """Gemini sends no header for it."""
    about = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "36.5s"}
    quota = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": []}
    body = GOOGLE.error(429, "RESOURCE_EXHAUSTED", "You exceeded your current quota.")
    body["error"]["details"] = [quota, about]
    server.will(Refusal(status=429, body=body))
    error = await failure_of(connect(GOOGLE))
    assert type(error) is ModelOverloadedError
    assert error.retry_after == 36.5


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "2.5"}, 2.5),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
    ],
)
async def test_a_wish_to_wait_may_have_a_fraction_and_one_that_makes_no_sense_is_none(
    headers: dict[str, str], seconds: float | None, server: ProviderServer, connect: Any
) -> None:
    server.will(Refusal(status=429, body=CHAT.error(429, "rate_limit_error", "too many requests"), headers=headers))
    assert (await failure_of(connect(CHAT))).retry_after == seconds


async def test_the_provider_is_asked_once_because_the_engine_alone_retries(
    wire: Wire, server: ProviderServer, model: PydanticAIModel
) -> None:
    server.will(*[wire.refusal(500, "server_error", "went up in smoke")] * 3)
    await failure_of(model)
    assert len(server.requests) == 1


async def test_not_even_provider_options_make_the_library_retry(server: ProviderServer, connect: Any) -> None:
    server.will(*[ANTHROPIC.refusal(500, "api_error", "went up in smoke")] * 3)
    await failure_of(connect(ANTHROPIC), settings=ModelSettings(provider_options={"max_retries": 2}))
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [500, 502, 503, 504, 408])
async def test_a_failure_inside_the_provider_may_pass(
    status: int, wire: Wire, server: ProviderServer, model: PydanticAIModel
) -> None:
    server.will(wire.refusal(status, "server_error", "went up in smoke"))
    error = await failure_of(model)
    assert type(error) is ModelUnavailableError
    assert error.retryable


@pytest.mark.parametrize(
    ("wire", "status", "kind"),
    [(ANTHROPIC, 529, "overloaded_error"), (RESPONSES, 503, "server_is_overloaded"), (CHAT, 503, "overloaded")],
)
async def test_overload_is_told_from_other_failures(
    wire: Wire, status: int, kind: str, server: ProviderServer, connect: Any
) -> None:
    server.will(wire.refusal(status, kind, "come back later"))
    assert type(await failure_of(connect(wire))) is ModelOverloadedError


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (401, "authentication_error"), (403, "permission_error"), (404, "not_found")],
)
async def test_a_request_that_was_refused_is_not_worth_repeating(
    status: int, kind: str, wire: Wire, server: ProviderServer, model: PydanticAIModel
) -> None:
    server.will(wire.refusal(status, kind, "certainly not"))
    error = await failure_of(model)
    assert type(error) is ModelRefusedError
    assert not error.retryable
    assert f"HTTP {status}: certainly not" in str(error)


async def test_an_empty_account_is_a_refusal_although_it_looks_like_a_rate_limit(
    server: ProviderServer, connect: Any
) -> None:
    server.will(RESPONSES.refusal(429, "insufficient_quota", "you have no credit left"))
    assert type(await failure_of(connect(RESPONSES))) is ModelRefusedError


async def test_a_history_that_no_longer_fits_is_an_error_of_its_own(
    wire: Wire, server: ProviderServer, model: PydanticAIModel
) -> None:
    server.will(Refusal(status=400, body=wire.too_long))
    error = await failure_of(model)
    assert type(error) is ContextTooLongError
    assert not error.retryable


@pytest.mark.parametrize(
    ("by", "status", "said"),
    [
        (ANTHROPIC, 400, "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000"),
        (CHAT, 400, "the request exceeds the available context size, try increasing it"),
        (CHAT, 500, "the request exceeds the available context size. try increasing the context size"),
        (CHAT, 400, "prompt too long; exceeded max context length by 4 tokens"),
        (CHAT, 422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 32769. Given: 40000"),
    ],
    ids=["anthropic", "llama.cpp", "an older llama.cpp", "ollama", "together"],
)
async def test_a_history_that_no_longer_fits_is_known_by_its_words_too(
    by: Wire, status: int, said: str, server: ProviderServer, connect: Any
) -> None:
    server.will(by.refusal(status, "invalid_request_error", said))
    assert type(await failure_of(connect(by))) is ContextTooLongError


@pytest.mark.parametrize("keep", [1, 4])
async def test_a_connection_cut_in_the_middle_of_a_reply_may_go_better_next_time(
    keep: int, wire: Wire, server: ProviderServer, model: PydanticAIModel
) -> None:
    server.will(wire.cut(TWO_REPLIES, keep=keep))
    assert type(await failure_of(model)) is ModelUnavailableError


async def test_a_stream_that_ends_before_its_reply_does_is_no_reply(
    wire: Wire, server: ProviderServer, model: PydanticAIModel
) -> None:
    """A proxy that gives up may close the stream as if all had been said."""
    server.will(Stream(frames=wire.frames(TWO_REPLIES)[:5]))
    error = await failure_of(model)
    assert type(error) is ModelUnavailableError
    assert "before the reply was complete" in str(error)


@pytest.mark.parametrize(
    ("wire", "frame"),
    [
        (
            ANTHROPIC,
            event({"type": "error", "error": {"type": "overloaded_error", "message": "come back later"}}),
        ),
        (
            RESPONSES,
            event(
                {"type": "error", "sequence_number": 9, "code": "server_is_overloaded", "message": "come back later"}
            ),
        ),
        (CHAT, data({"error": {"message": "come back later", "code": "overloaded", "type": "overloaded"}})),
    ],
)
async def test_an_error_inside_a_stream_is_told_like_one_before_it(
    wire: Wire, frame: str, server: ProviderServer, connect: Any
) -> None:
    server.will(Stream(frames=[*wire.frames(TWO_REPLIES)[:4], frame]))
    error = await failure_of(connect(wire))
    assert type(error) is ModelOverloadedError
    assert "come back later" in str(error)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("invalid_prompt", ModelRefusedError),
        ("image_too_large", ModelRefusedError),
        ("server_error", ModelUnavailableError),
        ("vector_store_timeout", ModelUnavailableError),
    ],
)
async def test_a_refusal_inside_a_stream_of_openai_is_not_worth_repeating(
    code: str, kind: type[ModelError], server: ProviderServer, connect: Any
) -> None:
    *_, completed = RESPONSES.frames(Wired(text="hi"))
    ending = json.loads(completed.partition("data: ")[2])
    ending["response"] |= {"status": "failed", "error": {"code": code, "message": "It failed."}}
    server.will(Stream(frames=[event({**ending, "type": "response.failed"})]))
    assert type(await failure_of(connect(RESPONSES))) is kind


async def test_a_stream_that_makes_no_sense_may_make_some_next_time(server: ProviderServer, connect: Any) -> None:
    frames = CHAT.frames(Wired(text="The tide is rising."))
    for nonsense in ("[1, 2]", '{"choices": 5}', "{"):
        server.will(Stream(frames=[*frames[:3], f"data: {nonsense}\n\n", *frames[3:]]))
        assert type(await failure_of(connect(CHAT))) is ModelUnavailableError


@pytest.mark.parametrize(
    ("wire", "nonsense"),
    [
        (ANTHROPIC, event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "x"}})),
        (RESPONSES, event({"type": "response.created", "sequence_number": 0, "response": "well"})),
        (CHAT, data({"choices": 5})),
        (GOOGLE, data({"candidates": [{"content": {"parts": "none"}}]})),
    ],
)
async def test_so_may_one_whose_first_piece_makes_no_sense(
    wire: Wire, nonsense: str, server: ProviderServer, connect: Any
) -> None:
    server.will(Stream(frames=[nonsense]))
    assert type(await failure_of(connect(wire))) is ModelUnavailableError


async def test_a_reply_the_provider_gave_up_on_is_no_reply(server: ProviderServer, connect: Any) -> None:
    server.will(GOOGLE.stream(Wired(text="well", stop="MALFORMED_FUNCTION_CALL")))
    error = await failure_of(connect(GOOGLE))
    assert type(error) is ModelUnavailableError
    assert "MALFORMED_FUNCTION_CALL" in str(error)


async def test_a_prompt_that_google_blocks_is_withheld_and_not_asked_again(
    server: ProviderServer, connect: Any
) -> None:
    server.will(Stream(frames=[data({"promptFeedback": {"blockReason": "SAFETY"}, "modelVersion": "gemini"})]))
    reply = (await answer_of(connect(GOOGLE), question())).reply
    assert (reply.text, reply.stop_reason) == ("", "content_filter")


@pytest.mark.parametrize("wire", [ANTHROPIC, RESPONSES, CHAT])
async def test_a_provider_that_says_nothing_times_out(wire: Wire, server: ProviderServer, connect: Any) -> None:
    silence = wire.held(TWO_REPLIES, keep=0)
    server.will(silence)
    error = await failure_of(connect(wire), settings=ModelSettings(provider_options={"timeout": 0.05}))
    assert type(error) is ModelUnavailableError


@pytest.mark.usefixtures("aws")
async def test_a_provider_that_cannot_be_reached_may_come_back(wire: Wire) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}"
    model = open_model(wire.model, base_url=nobody + wire.base_path, api_key=wire.key)
    assert isinstance(model, PydanticAIModel)
    try:
        error = await failure_of(model)
    finally:
        await model.close()
    assert type(error) is ModelUnavailableError
    assert nobody in str(error)


@pytest.mark.parametrize("wire", [ANTHROPIC, RESPONSES, CHAT])
async def test_an_address_that_is_none_is_not_asked_again(wire: Wire) -> None:
    model = open_model(wire.model, base_url="localhost:8080/v1", api_key=wire.key)
    assert isinstance(model, PydanticAIModel)
    try:
        error = await failure_of(model)
    finally:
        await model.close()
    assert type(error) is ModelRefusedError
    assert "its address has no host; begin it with http:// or https://" in str(error)


@pytest.mark.parametrize(
    ("wire", "variable"),
    [
        (ANTHROPIC, "ANTHROPIC_API_KEY"),
        (RESPONSES, "OPENAI_API_KEY"),
        (CHAT, "OPENAI_API_KEY"),
        (GOOGLE, "GOOGLE_API_KEY"),
        (GROQ, "GROQ_API_KEY"),
        (MISTRAL, "MISTRAL_API_KEY"),
    ],
)
async def test_a_missing_key_is_a_refusal_that_names_the_variable(
    wire: Wire, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (variable, "GEMINI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    model = open_model(wire.model)
    assert isinstance(model, PydanticAIModel)
    error = await failure_of(model)
    assert type(error) is ModelRefusedError
    assert str(error).endswith(f"there is no API key for it; set {variable}, or give open_model an api_key")
    await model.close()


async def test_a_model_that_could_not_be_set_up_is_set_up_anew_when_it_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, server: ProviderServer
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    model = open_model(ANTHROPIC.model, base_url=server.url)
    assert isinstance(model, PydanticAIModel)
    await failure_of(model)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key")
    server.will(ANTHROPIC.stream(Wired(text="yes")))
    assert (await answer_of(model, question())).reply.text == "yes"
    await model.close()


FREE_KEYS = {
    "a field": {"properties": {"scores": {"type": "object", "additionalProperties": {"type": "integer"}}}},
    "a field without a type": {"properties": {"scores": {"type": "object"}}},
    "a field further down": {
        "properties": {"all": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/One"}, {"type": "null"}]}}},
        "$defs": {"One": {"type": "object", "properties": {"scores": {"type": "object", "additionalProperties": {}}}}},
    },
}


@pytest.mark.parametrize("where", FREE_KEYS)
@pytest.mark.parametrize("wire", [ANTHROPIC, CHAT, RESPONSES])
async def test_a_strict_schema_that_would_lose_what_a_dict_holds_is_refused(
    where: str, wire: Wire, server: ProviderServer, connect: Any
) -> None:
    """Of free keys a strict schema allows none, so the model could hand in nothing but an empty dict."""
    schema = {"type": "object", "additionalProperties": False, **FREE_KEYS[where]}
    tool = ToolSpec(name="rate", description="Rate.", parameters=schema, strict=True)
    error = await failure_of(connect(wire), tools=(tool,))
    assert type(error) is ModelRefusedError
    assert "tool 'rate' cannot be strict" in str(error)
    assert "'scores'" in str(error)
    assert server.requests == []


async def test_what_is_not_strict_may_have_free_keys(server: ProviderServer, connect: Any) -> None:
    schema = {"type": "object", **FREE_KEYS["a field"]}
    server.will(RESPONSES.stream(Wired(text="ok")))
    await events_of(
        connect(RESPONSES), question(tools=(ToolSpec(name="rate", description="Rate.", parameters=schema),))
    )
    assert server.asked["tools"][0]["parameters"]["properties"]["scores"]["additionalProperties"] == {"type": "integer"}


async def test_a_data_url_that_is_no_base64_is_a_refusal_that_says_so(server: ProviderServer, connect: Any) -> None:
    broken = File(url="data:image/png;base64,abcde", media_type="image/png")
    error = await failure_of(connect(ANTHROPIC), messages=[UserMessage(content=(broken,))])
    assert type(error) is ModelRefusedError
    assert "data URL" in str(error)
    assert server.requests == []


async def test_a_file_the_provider_cannot_read_is_a_refusal(server: ProviderServer, connect: Any) -> None:
    sound = File(url="data:audio/wav;base64,aGVsbG8=", media_type="audio/wav")
    error = await failure_of(connect(ANTHROPIC), messages=[UserMessage(content=(sound,))])
    assert type(error) is ModelRefusedError
    assert "audio/wav" in str(error)
    assert server.requests == []
