"""Tools that the provider runs itself: what it is asked for, what is told of it, and what it gets back."""

import re
from typing import Any

import pytest
from msgspec.structs import replace

from helix_agents.domain.errors import ModelRefusedError, ModelUnavailableError
from helix_agents.domain.messages import (
    AssistantMessage,
    Message,
    ProviderCall,
    Source,
    ToolMessage,
    UserMessage,
    decode_message,
)
from helix_agents.domain.records import encode
from helix_agents.llm.pydantic_ai import PydanticAIModel
from helix_agents.llm.pydantic_ai.provider_support import PROVIDERS, refusal
from helix_agents.ports.llm import ProviderCallEnded, ProviderCallInput, ProviderCallStarted, TextPiece
from helix_agents.ports.models import open_model
from helix_agents.ports.provider_tools import (
    CodeExecution,
    FileSearch,
    ProviderMCP,
    ProviderTool,
    UserLocation,
    WebFetch,
    WebSearch,
)
from tests.support import provider_tool_wire as wire
from tests.support.asking import answer_of, events_of, question
from tests.support.provider_server import ProviderServer, Stream
from tests.support.provider_wire import ANTHROPIC, CHAT, GOOGLE, RESPONSES, WIRES, Wire, Wired

HELLO = UserMessage(content="When is high tide?")
MORE = UserMessage(content="And low tide?")
SEARCH = (WebSearch(),)
SHOWN = [{"type": "web_search_result", "title": "Tides", "url": "https://sea.example/tides", "page_age": "2 days ago"}]
GEMINI = Wire(
    model="google:gemini-3-pro",
    base_path="",
    frames=GOOGLE.frames,
    stops=GOOGLE.stops,
    error=GOOGLE.error,
    too_long=GOOGLE.too_long,
)


def stored(message: Message) -> Message:
    """The message as it comes back from a store."""
    return decode_message(encode(message))


async def first_reply(
    server: ProviderServer, model: PydanticAIModel, *streams: Stream, tools: tuple[ProviderTool, ...] = SEARCH
) -> AssistantMessage:
    server.will(*streams)
    return (await answer_of(model, question(HELLO, provider_tools=tools))).reply


async def asked_again(
    server: ProviderServer, model: PydanticAIModel, wires: Wire, reply: Message, **fields: Any
) -> Any:
    """The body of the next request, whose history holds the reply as a store gave it back."""
    server.will(wires.stream(Wired(text="done")))
    given = {"provider_tools": SEARCH, "run_id": "r-2"} | fields
    await answer_of(model, question(HELLO, stored(reply), MORE, **given))
    return server.asked


# -- what is asked for


async def test_anthropic_is_asked_for_its_tools_with_their_limits(server: ProviderServer, connect: Any) -> None:
    tools = (
        WebSearch(max_uses=3, allowed_domains=["sea.example"], user_location=UserLocation(city="Hamburg")),
        WebFetch(max_uses=2, blocked_domains=("land.example",), max_content_tokens=1000),
        CodeExecution(),
        ProviderMCP(label="harbour", url="https://mcp.example", authorization="secret", allowed_tools=["berths"]),
    )
    server.will(ANTHROPIC.stream(Wired(text="done")))
    await answer_of(connect(ANTHROPIC), question(HELLO, provider_tools=tools))
    search, fetch, code = (
        next(each for each in server.asked["tools"] if each["name"] == name)
        for name in ("web_search", "web_fetch", "code_execution")
    )
    assert (search["max_uses"], search["allowed_domains"]) == (3, ["sea.example"])
    assert search["user_location"] == {"type": "approximate", "city": "Hamburg"}
    assert (fetch["max_uses"], fetch["blocked_domains"], fetch["max_content_tokens"]) == (2, ["land.example"], 1000)
    assert code["type"].startswith("code_execution")
    (harbour,) = server.asked["mcp_servers"]
    assert (harbour["name"], harbour["url"], harbour["authorization_token"]) == (
        "harbour",
        "https://mcp.example",
        "secret",
    )


async def test_openai_is_asked_for_its_tools_with_their_limits(server: ProviderServer, connect: Any) -> None:
    tools = (
        WebSearch(allowed_domains=["sea.example"], context_size="low"),
        CodeExecution(),
        FileSearch(stores=["vs_1"]),
        ProviderMCP(label="harbour", url="https://mcp.example", headers={"X-Harbour": "1"}),
    )
    server.will(RESPONSES.stream(Wired(text="done")))
    await answer_of(connect(RESPONSES), question(HELLO, provider_tools=tools))
    asked = {each["type"]: each for each in server.asked["tools"]}
    assert asked["web_search"]["filters"] == {"allowed_domains": ["sea.example"]}
    assert asked["web_search"]["search_context_size"] == "low"
    assert asked["file_search"]["vector_store_ids"] == ["vs_1"]
    assert asked["code_interpreter"]["container"] == {"type": "auto"}
    assert asked["mcp"] | {"server_label": "harbour", "headers": {"X-Harbour": "1"}} == asked["mcp"]
    assert "code_interpreter_call.outputs" in server.asked["include"]


async def test_google_is_asked_for_its_tools(server: ProviderServer, connect: Any) -> None:
    server.will(GEMINI.stream(Wired(text="done")))
    tools = (WebSearch(), WebFetch(), CodeExecution())
    await answer_of(connect(GEMINI), question(HELLO, provider_tools=tools))
    assert [next(iter(each)) for each in server.asked["tools"]] == ["googleSearch", "urlContext", "codeExecution"]


async def test_a_provider_is_asked_for_no_tools_if_the_agent_has_none(
    server: ProviderServer, wire: Wire, model: PydanticAIModel
) -> None:
    server.will(wire.stream(Wired(text="done")))
    await answer_of(model, question(HELLO))
    assert not server.asked.get("tools")


# -- what is told


async def test_a_search_of_anthropic_is_told_as_it_happens(server: ProviderServer, connect: Any) -> None:
    server.will(wire.anthropic_search())
    *events, done = await events_of(connect(ANTHROPIC), question(HELLO, provider_tools=SEARCH))
    told = [each for each in events if not isinstance(each, TextPiece)]
    assert told == [
        ProviderCallStarted(id="srvtoolu_1", name="web_search"),
        ProviderCallInput(id="srvtoolu_1", arguments={"query": "tides"}),
        ProviderCallEnded(id="srvtoolu_1", result=SHOWN),
    ]
    assert "".join(each.delta for each in events if isinstance(each, TextPiece)) == done.reply.text == wire.TEXT
    (call,) = done.reply.provider_calls
    assert call == ProviderCall(
        id="srvtoolu_1",
        name="web_search",
        arguments={"query": "tides"},
        result=SHOWN,
        text_before=len(wire.SAID_BEFORE),
    )
    begins = len(wire.TEXT) - len(wire.SAID_AFTER)
    assert done.reply.sources == (
        Source(url="https://sea.example/tides", title="Tides", start=begins, end=len(wire.TEXT)),
    )
    assert done.reply.tool_calls == ()
    assert done.reply.stop_reason == "stop"


async def test_the_input_of_a_call_is_told_before_its_result_is_there(server: ProviderServer, connect: Any) -> None:
    server.will(wire.anthropic_searching_forever())
    seen: list[Any] = []
    asking = connect(ANTHROPIC).ask(question(HELLO, provider_tools=SEARCH))
    async for event in asking:
        seen.append(event)
        if isinstance(event, ProviderCallInput):
            break
    await asking.aclose()
    assert seen[-2:] == [
        ProviderCallStarted(id="srvtoolu_1", name="web_search"),
        ProviderCallInput(id="srvtoolu_1", arguments={"query": "tides"}),
    ]


async def test_a_failed_search_says_so(server: ProviderServer, connect: Any) -> None:
    reply = await first_reply(server, connect(ANTHROPIC), wire.anthropic_failed_search())
    (call,) = reply.provider_calls
    assert call.error
    assert call.result["error_code"] == "max_uses_exceeded"


async def test_a_search_of_openai_is_told_as_it_happens(server: ProviderServer, connect: Any) -> None:
    server.will(wire.responses_search())
    *events, done = await events_of(connect(RESPONSES), question(HELLO, provider_tools=SEARCH))
    told = [each for each in events if type(each).__name__.startswith("ProviderCall")]
    assert told == [
        ProviderCallStarted(id="ws_1", name="web_search"),
        ProviderCallInput(id="ws_1", arguments=wire.SEARCHED),
        ProviderCallEnded(id="ws_1", result={"status": "completed"}),
    ]
    assert [(call.thoughts_before, call.text_before) for call in done.reply.provider_calls] == [(1, 0)]
    assert done.reply.sources == (Source(url="https://sea.example/tides", title="Tides", start=12, end=39),)


async def test_code_that_google_runs_is_told(server: ProviderServer, connect: Any) -> None:
    reply = await first_reply(server, connect(GEMINI), wire.google_code(), tools=(CodeExecution(),))
    (call,) = reply.provider_calls
    assert (call.name, call.arguments) == ("code_execution", {"language": "PYTHON", "code": "print(6 * 7)"})
    assert call.result["output"] == "42\n"
    assert reply.text == "It is 42."


async def test_what_google_grounds_an_answer_in_is_told(server: ProviderServer, connect: Any) -> None:
    reply = await first_reply(server, connect(GEMINI), wire.google_search())
    assert [(call.name, call.arguments) for call in reply.provider_calls] == [("web_search", {"queries": ["tides"]})]
    assert reply.sources == (Source(url="https://sea.example/tides", title="Tides", start=0, end=9),)


# -- what a provider gets back


async def test_anthropic_gets_its_search_back_exactly(server: ProviderServer, connect: Any) -> None:
    model = connect(ANTHROPIC)
    reply = await first_reply(server, model, wire.anthropic_search())
    body = await asked_again(server, model, ANTHROPIC, reply)
    assert body["messages"][1] == {"role": "assistant", "content": wire.ANTHROPIC_BLOCKS}


async def test_it_gets_its_own_ids_back_even_if_the_engine_has_renamed_the_calls(
    server: ProviderServer, connect: Any
) -> None:
    model = connect(ANTHROPIC)
    reply = await first_reply(server, model, wire.anthropic_search())
    renamed = replace(reply, provider_calls=tuple(replace(call, id="other") for call in reply.provider_calls))
    body = await asked_again(server, model, ANTHROPIC, renamed)
    assert body["messages"][1]["content"] == wire.ANTHROPIC_BLOCKS


async def test_openai_gets_its_search_back_by_its_id(server: ProviderServer, connect: Any) -> None:
    model = connect(RESPONSES)
    reply = await first_reply(server, model, wire.responses_search())
    body = await asked_again(server, model, RESPONSES, reply)
    _, reasoning, search, message, _ = body["input"]
    assert (reasoning["id"], reasoning["encrypted_content"]) == ("rs_1", "c2lnLTE=")
    assert search == {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": wire.SEARCHED}
    assert message["id"] == "msg_1"
    assert message["content"][0]["annotations"] == [wire.CITATION]


async def test_anthropic_gets_code_its_container_and_mcp_calls_back(server: ProviderServer, connect: Any) -> None:
    model = connect(ANTHROPIC)
    tools = (CodeExecution(), ProviderMCP(label="harbour", url="https://mcp.example"))
    reply = await first_reply(server, model, wire.anthropic_code_and_mcp(), tools=tools)
    code, berths = reply.provider_calls
    assert (code.name, code.arguments, code.result["stdout"]) == ("code_execution", {"command": "expr 6"}, "42\n")
    assert berths.name == "mcp_server:harbour"
    assert berths.arguments == {"action": "call_tool", "tool_name": "berths", "tool_args": {"quay": 7}}
    assert [call.error for call in reply.provider_calls] == [False, False]
    body = await asked_again(server, model, ANTHROPIC, reply, provider_tools=tools)
    assert body["container"] == "container_1"
    ran, outcome, asked, told, text = body["messages"][1]["content"]
    assert (ran["name"], ran["id"], ran["input"]) == ("bash_code_execution", "srvtoolu_2", {"command": "expr 6"})
    assert (outcome["type"], outcome["content"]) == ("bash_code_execution_tool_result", wire.RAN)
    assert (asked["name"], asked["server_name"], asked["input"]) == ("berths", "harbour", {"quay": 7})
    assert (told["tool_use_id"], told["is_error"]) == ("mcptoolu_1", False)
    assert text["text"] == wire.SAID_AFTER


async def test_openai_gets_code_back_with_its_container(server: ProviderServer, connect: Any) -> None:
    model = connect(RESPONSES)
    reply = await first_reply(server, model, wire.responses_code(), tools=(CodeExecution(),))
    (code,) = reply.provider_calls
    assert (code.name, code.arguments) == ("code_execution", wire.RAN_AT_OPENAI)
    assert code.result == {"status": "completed", "logs": ["42\n"]}
    body = await asked_again(server, model, RESPONSES, reply, provider_tools=(CodeExecution(),))
    _, ran, message, _ = body["input"]
    assert (ran["type"], ran["id"], ran["status"]) == ("code_interpreter_call", "ci_1", "completed")
    assert {name: ran[name] for name in wire.RAN_AT_OPENAI} == wire.RAN_AT_OPENAI
    assert message["id"] == "msg_1"


async def test_google_gets_its_code_and_signature_back(server: ProviderServer, connect: Any) -> None:
    model = connect(GEMINI)
    reply = await first_reply(server, model, wire.google_code(), tools=(CodeExecution(),))
    body = await asked_again(server, model, GEMINI, reply, provider_tools=(CodeExecution(),))
    code, outcome, text = body["contents"][1]["parts"]
    assert code["executableCode"]["code"] == "print(6 * 7)"
    assert code["thoughtSignature"] == "c2lnLTE="
    assert outcome["codeExecutionResult"] == {"outcome": "OUTCOME_OK", "output": "42\n"}
    assert text == {"text": "It is 42."}


REPLIES = {
    "anthropic": (ANTHROPIC, wire.anthropic_search, wire.SAID_AFTER),
    "responses": (RESPONSES, wire.responses_search, wire.LINKED),
    "google": (GEMINI, wire.google_search, wire.SAID_AFTER),
}


@pytest.mark.parametrize(("by", "to"), [(by, to) for by in sorted(REPLIES) for to in sorted(WIRES) if by != to])
async def test_another_provider_gets_only_the_text(server: ProviderServer, connect: Any, by: str, to: str) -> None:
    wires, search, text = REPLIES[by]
    reply = await first_reply(server, connect(wires), search())
    body = await asked_again(server, connect(WIRES[to]), WIRES[to], reply, provider_tools=())
    sent = str(body)
    assert text in sent
    for its_own in ("srvtoolu_1", "ws_1", "c2VhbGVk", "aW5kZXg=", "web_search"):
        assert its_own not in sent


async def test_an_edited_reply_goes_back_without_its_search(server: ProviderServer, connect: Any) -> None:
    model = connect(ANTHROPIC)
    reply = await first_reply(server, model, wire.anthropic_search())
    body = await asked_again(server, model, ANTHROPIC, replace(reply, text="Twice.", provider_calls=()))
    assert body["messages"][1]["content"] == [{"type": "text", "text": "Twice."}]


@pytest.mark.parametrize("wires", [ANTHROPIC, RESPONSES, CHAT, GOOGLE], ids=lambda each: each.model)
async def test_a_reply_that_was_only_a_cut_off_search_is_left_out(
    server: ProviderServer, connect: Any, wires: Wire
) -> None:
    cut = AssistantMessage(
        model=wires.model,
        interrupted="interrupt",
        provider_calls=(ProviderCall(id="srvtoolu_1", name="web_search", error=True),),
    )
    body = await asked_again(server, connect(wires), wires, cut, provider_tools=())
    assert "srvtoolu_1" not in str(body)
    turns = body.get("messages") or body.get("input") or body["contents"]
    assert not [each for each in turns if each.get("role") in ("assistant", "model")]


async def test_a_paused_reply_is_continued_in_the_same_answer(server: ProviderServer, connect: Any) -> None:
    model = connect(ANTHROPIC)
    server.will(*wire.anthropic_paused())
    *events, done = await events_of(model, question(HELLO, provider_tools=SEARCH))
    assert server.asked["messages"][-1] == {"role": "assistant", "content": wire.ANTHROPIC_BLOCKS[:2]}
    assert "".join(each.delta for each in events if isinstance(each, TextPiece)) == done.reply.text == wire.TEXT
    assert ProviderCallEnded(id="srvtoolu_1", result=SHOWN) in events
    assert done.usage.completion == 40
    body = await asked_again(server, model, ANTHROPIC, done.reply)
    assert body["messages"][1]["content"] == wire.ANTHROPIC_BLOCKS


async def test_a_result_that_comes_in_a_later_reply_goes_back_only_after_its_call(
    server: ProviderServer, connect: Any
) -> None:
    model = connect(ANTHROPIC)
    begun, ended = wire.anthropic_beside_a_call()
    first = await first_reply(server, model, begun)
    answer = ToolMessage(tool_call_id="call_a", tool_name="lookup", content="one")
    server.will(ended)
    second = (await answer_of(model, question(HELLO, first, answer, provider_tools=SEARCH))).reply
    assert [(call.result is None) for reply in (first, second) for call in reply.provider_calls] == [True, False]
    _, search, found, text = wire.ANTHROPIC_BLOCKS

    server.will(ANTHROPIC.stream(Wired(text="done")), ANTHROPIC.stream(Wired(text="done")))
    whole = question(HELLO, stored(first), answer, stored(second), MORE, provider_tools=SEARCH, run_id="r-2")
    await answer_of(model, whole)
    assert server.asked["messages"][1]["content"][0] == search
    assert server.asked["messages"][3]["content"] == [found, text]

    without = question(HELLO, stored(second), MORE, provider_tools=SEARCH, run_id="r-3")
    await answer_of(model, without)
    assert [each["type"] for each in server.asked["messages"][1]["content"]] == ["text"]


async def test_a_paused_reply_that_then_breaks_off_is_no_reply(server: ProviderServer, connect: Any) -> None:
    paused, rest = wire.anthropic_paused()
    server.will(paused, Stream(frames=rest.frames[:-2], then="end"))
    with pytest.raises(ModelUnavailableError):
        await answer_of(connect(ANTHROPIC), question(HELLO, provider_tools=SEARCH))


async def test_a_reply_is_not_paused_for_ever(server: ProviderServer, connect: Any) -> None:
    server.will_by(lambda _: wire.anthropic_paused()[0])
    with pytest.raises(ModelRefusedError, match="paused the reply 21 times"):
        await answer_of(connect(ANTHROPIC), question(HELLO, provider_tools=SEARCH))


# -- what is refused


@pytest.mark.parametrize(
    ("model", "tool", "says"),
    [
        ("openai:gpt-5", WebSearch(max_uses=3), r"does not keep max_uses of WebSearch; models that do: anthropic:…"),
        ("openai:gpt-5", WebFetch(), r"does not run WebFetch; models that do: anthropic:…, google:…"),
        ("google:gemini-3-pro", ProviderMCP(label="a", url="b"), r"models that do: anthropic:…, openai:…"),
        ("google:gemini-3-pro", WebSearch(allowed_domains=["a"]), r"models that do: anthropic:…, openai:…"),
        ("openai-chat:gpt-4o", WebSearch(), r"does not run WebSearch; models that do: .*openai-chat:…-search-preview"),
        ("anthropic:claude-sonnet-4-6", WebSearch(allowed_domains=["a"], blocked_domains=["b"]), "not both"),
        ("anthropic:claude-sonnet-4-6", FileSearch(stores=["a"]), r"models that do: openai:…, google:…"),
    ],
)
def test_a_model_that_does_not_run_a_tool_says_which_do(model: str, tool: ProviderTool, says: str) -> None:
    opened = open_model(model, api_key="a-key")
    assert isinstance(opened, PydanticAIModel)
    reason = opened.refuse_provider_tools([tool], beside_tools=False)
    assert reason is not None
    assert re.search(says, reason), reason


def test_an_older_gemini_does_not_run_its_tools_beside_those_of_an_agent() -> None:
    older, newer = open_model("google:gemini-2.5-flash"), open_model("google:gemini-3-pro")
    assert isinstance(older, PydanticAIModel)
    assert isinstance(newer, PydanticAIModel)
    assert older.refuse_provider_tools(SEARCH, beside_tools=False) is None
    assert "newer Gemini models do" in (older.refuse_provider_tools(SEARCH, beside_tools=True) or "")
    assert newer.refuse_provider_tools(SEARCH, beside_tools=True) is None


async def test_what_is_known_of_the_providers_is_what_the_layer_below_does() -> None:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.google import GoogleProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    from helix_agents.llm.pydantic_ai.provider_tools import native_tool

    openai = OpenAIProvider(api_key="a-key")
    models = {
        "anthropic": AnthropicModel("claude-sonnet-4-6", provider=AnthropicProvider(api_key="a-key")),
        "openai": OpenAIResponsesModel("gpt-5", provider=openai),
        "openai-chat": OpenAIChatModel("gpt-4o-search-preview", provider=openai),
        "google": GoogleModel("gemini-3-pro", provider=GoogleProvider(api_key="a-key")),
    }
    limits = {
        WebSearch: (WebSearch(max_uses=1), WebSearch(allowed_domains=["a"]), WebSearch(blocked_domains=["a"])),
        WebFetch: (WebFetch(max_uses=1), WebFetch(allowed_domains=["a"]), WebFetch(blocked_domains=["a"])),
    }
    plain = (WebSearch(), WebFetch(), CodeExecution(), FileSearch(stores=["a"]), ProviderMCP(label="a", url="b"))
    for provider, model in models.items():
        name, support = f"{provider}:{model.model_name}", PROVIDERS[provider]
        for tool in plain:
            runs = isinstance(native_tool(tool), tuple(model.profile["supported_native_tools"]))
            assert (refusal(name, support, [tool], beside_tools=False) is None) == runs, (provider, tool)
            for limited in limits.get(type(tool), ()) if runs else ():
                keeps = not model.unsupported_native_tool_settings(native_tool(limited))
                assert (refusal(name, support, [limited], beside_tools=False) is None) == keeps, (provider, limited)


async def test_a_model_of_your_own_that_lacks_a_tool_refuses_when_it_is_asked(server: ProviderServer) -> None:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    def build(http: Any) -> Any:
        return OpenAIChatModel("mine", provider=OpenAIProvider(api_key="k", base_url=server.url, http_client=http))

    model = PydanticAIModel("mine:model", build)
    assert model.refuse_provider_tools(SEARCH, beside_tools=False) is None
    with pytest.raises(ModelRefusedError, match="WebSearchTool"):
        await answer_of(model, question(HELLO, provider_tools=SEARCH))
    await model.close()
