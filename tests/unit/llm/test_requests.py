"""What a provider is asked: the history, the tools and the settings, in its own format."""

import dataclasses
import json
import re
from typing import Any

import pytest

from helix_agents import Agent, Executor, tool
from helix_agents.domain.errors import ModelRefusedError
from helix_agents.domain.messages import (
    EDITED_INPUT,
    AssistantMessage,
    File,
    Image,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from helix_agents.llm.prompt_cache import anthropic_cache
from helix_agents.llm.pydantic_ai import PydanticAIModel
from helix_agents.ports.llm import FINISH_TOOL, ModelSettings, ToolSpec
from tests.support.asking import answer_of, question
from tests.support.provider_server import ProviderServer
from tests.support.provider_wire import ANTHROPIC, BEDROCK, CHAT, GOOGLE, MISTRAL, RESPONSES, Wire, Wired

YES = Wired(text="yes")
OBJECT = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
SEARCH = ToolSpec(name="search", description="Search the archive.", parameters=OBJECT)
HISTORY = [
    UserMessage(content="What are tides?"),
    AssistantMessage(
        text="Let me look.",
        tool_calls=(
            ToolCall(id="call_a", name="search", arguments={"query": "tides"}),
            ToolCall(id="call_b", name="search", arguments="{not json"),
        ),
    ),
    ToolMessage(tool_call_id="call_a", tool_name="search", content=["moon", "sun"]),
    ToolMessage(tool_call_id="call_b", tool_name="search", content="arguments are not JSON", error=True),
]


async def asked(server: ProviderServer, model: PydanticAIModel, wire: Wire, *messages: Any, **fields: Any) -> Any:
    server.will(wire.stream(YES))
    await answer_of(model, question(*messages, **fields))
    return server.asked


# Mistral's library sends no headers of others; Pydantic AI warns of it.
@pytest.mark.filterwarnings("ignore:The `extra_headers` setting is not supported by model 'mistral")
async def test_the_key_and_extra_headers_are_sent(wire: Wire, server: ProviderServer, model: PydanticAIModel) -> None:
    await asked(server, model, wire, settings=ModelSettings(headers={"x-team": "north"}))
    headers = server.requests[-1].headers
    assert headers.get("x-team") == (None if wire is MISTRAL else "north")
    assert any((wire.key or "Credential=an-id/") in value for value in headers.values())


async def test_results_stand_right_after_their_calls(server: ProviderServer, connect: Any) -> None:
    body = await asked(server, connect(ANTHROPIC), ANTHROPIC, *HISTORY, UserMessage(content="go on"))
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    first, second, said = body["messages"][-1]["content"]
    assert first == {
        "type": "tool_result",
        "tool_use_id": "call_a",
        "content": [{"type": "text", "text": '["moon","sun"]'}],
        "is_error": False,
    }
    assert (second["tool_use_id"], second["is_error"]) == ("call_b", True)
    assert said == {"type": "text", "text": "go on"}


async def test_arguments_that_were_no_json_are_shown_to_the_model_all_the_same(
    server: ProviderServer, connect: Any
) -> None:
    body = await asked(server, connect(ANTHROPIC), ANTHROPIC, *HISTORY)
    [_, _, bad] = body["messages"][1]["content"]
    assert "{not json" in str(bad["input"])


async def test_a_name_the_model_made_up_is_sent_back_as_one_that_providers_read(
    wire: Wire, server: ProviderServer, model: PydanticAIModel
) -> None:
    made_up = ["functions.search tool", "", "x" * 70]
    calls = tuple(ToolCall(id=f"call_{at}", name=name) for at, name in enumerate(made_up))
    results = [ToolMessage(tool_call_id=made.id, tool_name=made.name, content="no", error=True) for made in calls]
    body = await asked(server, model, wire, UserMessage(content="Go"), AssistantMessage(tool_calls=calls), *results)
    sent = json.dumps(body)
    assert [sent.count(f'"{name}"') > 0 for name in ("functions_search_tool", "unknown", "x" * 64)] == [True] * 3
    assert "functions.search" not in sent
    assert "x" * 65 not in sent


@pytest.mark.parametrize(
    ("by", "legal"),
    [(MISTRAL, r"[a-zA-Z0-9]{9}"), (CHAT, r"[a-zA-Z0-9_-]{1,40}")],
    ids=["mistral", "chat"],
)
async def test_an_id_that_the_engine_or_another_model_made_is_sent_as_one_that_the_api_accepts(
    by: Wire, legal: str, server: ProviderServer, connect: Any
) -> None:
    """Each call in a sub-agent carries the child's suffix."""
    made = ["D681PevKs", "D681PevKs_a1b2c3", "toolu_01A09q90qw90lq917835lq9", "pyd_ai_" + "0" * 32 + "_a1b2c3"]
    calls = tuple(ToolCall(id=each, name="search") for each in made)
    results = [ToolMessage(tool_call_id=each, tool_name="search", content="no") for each in made]
    body = await asked(server, connect(by), by, UserMessage(content="Go"), AssistantMessage(tool_calls=calls), *results)
    [ids] = [[call["id"] for call in each["tool_calls"]] for each in body["messages"] if each.get("tool_calls")]
    assert ids == [each["tool_call_id"] for each in body["messages"] if each["role"] == "tool"]
    assert ids[0] == "D681PevKs"
    assert len(set(ids)) == 4
    assert [each for each in ids if not re.fullmatch(legal, each)] == []


@pytest.mark.parametrize("nothing", ["", " \n", (), (Text(text=""),)])
async def test_a_message_without_words_is_sent_in_words(
    wire: Wire, server: ProviderServer, model: PydanticAIModel, nothing: Any
) -> None:
    body = await asked(server, model, wire, UserMessage(content=nothing))
    assert "(empty message)" in json.dumps(body)


@pytest.mark.parametrize("nothing", ["", "\n"])
async def test_anthropic_is_sent_no_blank_text_because_it_refuses_the_whole_conversation_for_one(
    nothing: str, server: ProviderServer, connect: Any
) -> None:
    called = AssistantMessage(text="\n\n", tool_calls=(ToolCall(id="call_a", name="search"),))
    body = await asked(
        server,
        connect(ANTHROPIC),
        ANTHROPIC,
        UserMessage(content=(Text(text=" "), Text(text="Go"))),
        called,
        ToolMessage(tool_call_id="call_a", tool_name="search", content=nothing),
        AssistantMessage(text=" "),
        UserMessage(content="go on"),
    )
    blocks = [block for message in body["messages"] for block in message["content"]]
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    assert texts == ["Go", "go on"]
    assert [block["content"][0]["text"] for block in blocks if block["type"] == "tool_result"] == ["(empty result)"]


async def test_bedrock_is_sent_no_blank_text_whoever_made_the_model(server: ProviderServer, connect: Any) -> None:
    nova = dataclasses.replace(BEDROCK, model="bedrock:us.amazon.nova-pro-v1:0")
    blank = AssistantMessage(text=" ", tool_calls=(ToolCall(id="call_a", name="search"),))
    result = ToolMessage(tool_call_id="call_a", tool_name="search", content="found")
    body = await asked(server, connect(nova), nova, UserMessage(content="Go"), blank, result)
    assert [[*block] for block in body["messages"][1]["content"]] == [["toolUse"]]


@pytest.mark.parametrize(
    ("result", "shown"), [("paid", "paid"), ({"cents": 10}, '{"cents":10}'), ("", "(empty result)")]
)
async def test_the_model_is_told_of_an_input_that_a_person_changed(
    result: Any, shown: str, server: ProviderServer, connect: Any
) -> None:
    body = await asked(
        server,
        connect(ANTHROPIC),
        ANTHROPIC,
        UserMessage(content="Go"),
        AssistantMessage(tool_calls=(ToolCall(id="call_a", name="pay", arguments={"cents": 5000}),)),
        ToolMessage(tool_call_id="call_a", tool_name="pay", content=result, metadata={EDITED_INPUT: {"cents": 10}}),
    )
    [told] = body["messages"][-1]["content"][0]["content"]
    assert told["text"] == (
        f'(A person changed the input of this call before approving it. It ran with {{"cents":10}}.)\n{shown}'
    )


async def test_a_picture_whose_base64_lacks_its_padding_is_sent(server: ProviderServer, connect: Any) -> None:
    picture = Image(url="data:image/png;base64,aGVsbG8")
    body = await asked(server, connect(ANTHROPIC), ANTHROPIC, UserMessage(content=(picture,)))
    assert body["messages"][0]["content"][0]["source"]["data"] == "aGVsbG8="


async def test_instructions_and_tools_are_sent_and_the_choice_is_left_to_the_model(
    server: ProviderServer, connect: Any
) -> None:
    body = await asked(server, connect(ANTHROPIC), ANTHROPIC, tools=(SEARCH,))
    assert body["system"] == [{"type": "text", "text": "Be brief."}]
    assert [(tool["name"], tool["input_schema"]) for tool in body["tools"]] == [("search", OBJECT)]
    assert body["tool_choice"] == {"type": "auto"}
    body = await asked(server, connect(RESPONSES), RESPONSES, tools=(SEARCH,))
    assert body["instructions"] == "Be brief."
    assert body["tool_choice"] == "auto"


TODAY = ToolSpec(name="today", description="The date.", parameters=OBJECT)
LEFT_TO_THE_MODEL = ({"type": "auto"}, "auto", "VALIDATED", {"auto": {}})
FINISH = ToolSpec(name=FINISH_TOOL, description="Hand over the report.", parameters=OBJECT)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", {"anthropic": {"type": "auto"}, "google": "VALIDATED", "bedrock": {"auto": {}}}),
        ("required", {"anthropic": {"type": "any"}, "google": "ANY", "bedrock": {"any": {}}, "mistral": "any"}),
        ("none", {"anthropic": {"type": "none"}, "google": "NONE", "bedrock": {"type": "none"}}),
        (
            "today",
            {
                "anthropic": {"type": "tool", "name": "today"},
                "openai": {"type": "function", "name": "today"},
                "openai-chat": {"type": "function", "function": {"name": "today"}},
                "groq": {"type": "function", "function": {"name": "today"}},
                "mistral": {"type": "function", "function": {"name": "today"}},
                "google": ("ANY", ["today"]),
                "bedrock": {"tool": {"name": "today"}},
            },
        ),
    ],
)
async def test_a_choice_of_tools_is_sent_in_the_providers_words_and_the_tools_stay(
    choice: str, expected: dict[str, Any], wire: Wire, server: ProviderServer, model: PydanticAIModel
) -> None:
    settings = ModelSettings(tool_choice=choice)
    # Bedrock is offered no tools that it must not call, unless the conversation has calls; Mistral never is.
    messages = HISTORY if wire is BEDROCK else ()
    body = await asked(server, model, wire, *messages, tools=(SEARCH, TODAY), settings=settings)
    if wire is MISTRAL and choice == "none":
        assert not body.get("tools")
        return
    assert chosen(body) == expected.get(wire.model.partition(":")[0], choice)
    assert tools_in(body) == ["search", "today"]


async def test_a_model_that_may_call_no_tool_may_still_hand_in_its_output(
    wire: Wire, server: ProviderServer, model: PydanticAIModel
) -> None:
    settings = ModelSettings(tool_choice="none")
    body = await asked(server, model, wire, tools=(SEARCH, TODAY, FINISH), settings=settings)
    if wire in (RESPONSES, CHAT):
        assert tools_in(body) == ["search", "today", FINISH_TOOL]
        allowed = body["tool_choice"].get("allowed_tools", body["tool_choice"])
        named = [each.get("function", each)["name"] for each in allowed["tools"]]
        assert (allowed["mode"], named) == ("auto", [FINISH_TOOL])
    else:
        # These providers know no such choice, so the other tools are left out.
        assert tools_in(body) == [FINISH_TOOL]
        assert chosen(body) in LEFT_TO_THE_MODEL
    body = await asked(server, model, wire, tools=(FINISH,), settings=settings)
    assert chosen(body) in LEFT_TO_THE_MODEL


@pytest.mark.parametrize("choice", [None, "auto", "none"])
async def test_a_history_with_calls_is_sent_although_no_tool_is_left(
    choice: Any, wire: Wire, server: ProviderServer, model: PydanticAIModel
) -> None:
    body = await asked(server, model, wire, *HISTORY, settings=ModelSettings(tool_choice=choice))
    if wire in (ANTHROPIC, BEDROCK):
        # They refuse calls and results in a request that declares no tool.
        assert (tools_in(body), chosen(body)) == (["no_tool"], {"type": "none"})
    else:
        assert not body.get("tools")
        assert not {"tool_choice", "toolConfig"} & {*body}
    body = await asked(server, model, wire, settings=ModelSettings(tool_choice=choice))
    assert not body.get("tools")


async def test_a_choice_that_a_model_cannot_be_sent_is_refused_in_a_sentence(
    server: ProviderServer, connect: Any
) -> None:
    thinking = {"anthropic_thinking": {"type": "enabled", "budget_tokens": 1024}}
    settings = ModelSettings(tool_choice="required", provider_options=thinking)
    with pytest.raises(ModelRefusedError, match=r"tool_choice='required' is not supported.*thinking") as refused:
        await answer_of(connect(ANTHROPIC), question(tools=(SEARCH,), settings=settings))
    assert not refused.value.retryable
    assert server.requests == []


async def test_a_run_demands_a_tool_of_its_provider_until_one_has_answered(
    wire: Wire, server: ProviderServer, model: PydanticAIModel
) -> None:
    @tool
    async def today() -> str:
        """The date."""
        return "2026-05-01"

    server.will(wire.stream(Wired(calls=[("call_a", "today", {})])), wire.stream(YES))
    agent = Agent(name="clock", model=model, tools=[today], settings=ModelSettings(tool_choice="required"))
    async with Executor.open("memory://", agents=[agent]) as helix:
        assert await (await helix.execute(agent, "Which day is it?")).output() == "yes"
    free = await asked(server, model, wire, tools=(SEARCH,))
    forced, unforced = (chosen(each.body) for each in server.requests[:2])
    assert (forced != chosen(free), unforced) == (True, chosen(free))


def chosen(body: dict[str, Any]) -> Any:
    """What a request says about calling tools, and which ones if Google is asked."""
    if "toolConfig" not in body:
        return body["tool_choice"]
    if "functionCallingConfig" not in body["toolConfig"]:
        return body["toolConfig"].get("toolChoice") or body["additionalModelRequestFields"]["tool_choice"]
    calling = body["toolConfig"]["functionCallingConfig"]
    named = calling.get("allowedFunctionNames")
    return calling["mode"] if named is None else (calling["mode"], named)


def tools_in(body: dict[str, Any]) -> list[str]:
    """The tools that a request shows, in order."""
    offered = body["tools"] if "tools" in body else body["toolConfig"]["tools"]
    shown = [each for tool in offered for each in tool.get("functionDeclarations", [tool])]
    return [each.get("function", each.get("toolSpec", each))["name"] for each in shown]


async def test_without_instructions_none_are_sent(server: ProviderServer, connect: Any) -> None:
    body = await asked(server, connect(ANTHROPIC), ANTHROPIC, instructions="")
    assert "system" not in body


async def test_settings_that_are_not_set_are_left_to_the_provider(
    wire: Wire, server: ProviderServer, model: PydanticAIModel
) -> None:
    body = await asked(server, model, wire)
    unset = {"temperature", "top_p", "topP", "stop", "stop_sequences", "stopSequences", "seed", "max_output_tokens"}
    # Mistral's library sends what is its own default anyway.
    given = {name for name, value in body.items() if value is not None} - ({"top_p"} if wire is MISTRAL else set())
    assert not unset & (given | {*body.get("generationConfig", {}), *body.get("inferenceConfig", {})})


@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        (ANTHROPIC, {"temperature": 0.2, "top_p": 0.9, "max_tokens": 99, "stop_sequences": ["END"]}),
        (CHAT, {"temperature": 0.2, "top_p": 0.9, "max_completion_tokens": 99, "stop": ["END"], "seed": 4}),
        (
            GOOGLE,
            {
                "generationConfig": {
                    "temperature": 0.2,
                    "topP": 0.9,
                    "maxOutputTokens": 99,
                    "stopSequences": ["END"],
                    "seed": 4,
                    "responseModalities": ["TEXT"],
                }
            },
        ),
    ],
)
async def test_settings_are_sent_under_the_providers_names(
    wire: Wire, expected: dict[str, Any], server: ProviderServer, connect: Any
) -> None:
    settings = ModelSettings(temperature=0.2, top_p=0.9, max_output_tokens=99, stop_sequences=("END",), seed=4)
    body = await asked(server, connect(wire), wire, settings=settings)
    assert {name: body.get(name) for name in expected} == expected


async def test_provider_options_reach_the_provider(server: ProviderServer, connect: Any) -> None:
    options = {"anthropic_thinking": {"type": "adaptive"}, "extra_body": {"metadata": {"user_id": "u-1"}}}
    body = await asked(
        server, connect(ANTHROPIC), ANTHROPIC, settings=ModelSettings(provider_options=options, max_output_tokens=99)
    )
    assert body["thinking"] == {"type": "adaptive"}
    assert body["metadata"] == {"user_id": "u-1"}
    assert body["max_tokens"] == 99


@pytest.mark.parametrize(("strict", "sent"), [(True, True), (False, False)])
async def test_a_tool_says_whether_its_schema_is_strict(
    strict: bool, sent: bool, server: ProviderServer, connect: Any
) -> None:
    tool = ToolSpec(name="search", description="", parameters=OBJECT, strict=strict)
    body = await asked(server, connect(RESPONSES), RESPONSES, tools=(tool,))
    assert body["tools"][0]["strict"] is sent


async def test_strict_output_makes_the_finishing_tool_strict_and_no_other(server: ProviderServer, connect: Any) -> None:
    finish = ToolSpec(name=FINISH_TOOL, description="Hand over the report.", parameters=OBJECT)
    settings = ModelSettings(strict_output=True)
    body = await asked(server, connect(ANTHROPIC), ANTHROPIC, tools=(SEARCH, finish), settings=settings)
    assert [tool.get("strict") for tool in body["tools"]] == [None, True]


async def test_pictures_and_files_go_with_the_text(server: ProviderServer, connect: Any) -> None:
    content = (
        Text(text="look"),
        Image(url="data:image/png;base64,aGVsbG8="),
        Image(url="https://example.org/moon.png"),
        File(url="data:application/pdf;base64,aGVsbG8=", media_type="application/pdf", filename="moon.pdf"),
        File(url="https://example.org/sun.pdf", media_type="application/pdf"),
        File(url="data:text/plain,hello%20there", media_type="text/plain"),
        File(url="https://example.org/sea", media_type="image/webp"),
    )
    body = await asked(server, connect(ANTHROPIC), ANTHROPIC, UserMessage(content=content))
    text, *files = body["messages"][0]["content"]
    assert text == {"type": "text", "text": "look"}
    assert [(file["type"], file["source"]) for file in files] == [
        ("image", {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}),
        ("image", {"type": "url", "url": "https://example.org/moon.png"}),
        ("document", {"type": "base64", "media_type": "application/pdf", "data": "aGVsbG8="}),
        ("document", {"type": "url", "url": "https://example.org/sun.pdf"}),
        ("document", {"type": "text", "media_type": "text/plain", "data": "hello there"}),
        ("image", {"type": "url", "url": "https://example.org/sea"}),
    ]


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (Image(url="data:image/jpg;base64,aGVsbG8="), "image/jpeg"),
        (Image(url="DATA:IMAGE/PNG;BASE64,aGVsbG8="), "image/png"),
        (Image(url="data:;base64,aGVsbG8=", media_type="image/jpg"), "image/jpeg"),
        (File(url="data:text/plain,hello", media_type="text/plain; charset=UTF-8"), "text/plain"),
    ],
)
async def test_a_media_type_is_sent_as_providers_write_it(
    given: Any, sent: str, server: ProviderServer, connect: Any
) -> None:
    body = await asked(server, connect(ANTHROPIC), ANTHROPIC, UserMessage(content=(given,)))
    source = body["messages"][0]["content"][0]["source"]
    assert source["media_type"] == sent
    assert source["data"] in ("aGVsbG8=", "hello")


def marks(value: Any, path: str = "") -> dict[str, Any]:
    """Where a request asks for caching, and for how long."""
    if isinstance(value, list):
        found = [marks(item, f"{path}[{index}]") for index, item in enumerate(value)]
        return {where: what for part in found for where, what in part.items()}
    if not isinstance(value, dict):
        return {}
    own = {path: value["cache_control"].get("ttl")} if "cache_control" in value else {}
    return own | {where: what for key, item in value.items() for where, what in marks(item, f"{path}.{key}").items()}


@pytest.mark.parametrize("ttl", ["5m", "1h"])
async def test_the_cache_is_anchored_at_the_instructions_and_after_the_latest_results(
    ttl: Any, server: ProviderServer, connect: Any
) -> None:
    older = [
        UserMessage(content="hello"),
        AssistantMessage(tool_calls=(ToolCall(id="call_0", name="search", arguments={"query": "x"}),)),
        ToolMessage(tool_call_id="call_0", tool_name="search", content="nothing"),
        AssistantMessage(text="Nothing found."),
    ]
    later = [UserMessage(content="go on"), AssistantMessage(text="I do."), UserMessage(content="and?")]
    settings = ModelSettings(cache=anthropic_cache(ttl=ttl))
    body = await asked(
        server, connect(ANTHROPIC), ANTHROPIC, *older, *HISTORY, *later, tools=(SEARCH,), settings=settings
    )
    assert marks(body) == {".system[0]": ttl, ".messages[6].content[1]": ttl}
    assert body["messages"][6]["content"][1]["tool_use_id"] == "call_b"


async def test_the_mark_moves_on_with_every_batch_of_results(server: ProviderServer, connect: Any) -> None:
    model, settings = connect(ANTHROPIC), ModelSettings(cache=anthropic_cache())
    body = await asked(server, model, ANTHROPIC, *HISTORY, settings=settings)
    assert marks(body) == {".system[0]": "5m", ".messages[2].content[1]": "5m"}
    more = [
        AssistantMessage(tool_calls=(ToolCall(id="call_c", name="search", arguments={"query": "z"}),)),
        ToolMessage(tool_call_id="call_c", tool_name="search", content="found"),
    ]
    body = await asked(server, model, ANTHROPIC, *HISTORY, *more, settings=settings)
    assert marks(body) == {".system[0]": "5m", ".messages[4].content[0]": "5m"}


async def test_without_instructions_the_tools_are_the_anchor(server: ProviderServer, connect: Any) -> None:
    settings = ModelSettings(cache=anthropic_cache())
    tools = (SEARCH, ToolSpec(name="today", description="", parameters=OBJECT))
    body = await asked(server, connect(ANTHROPIC), ANTHROPIC, instructions="", tools=tools, settings=settings)
    assert marks(body) == {".tools[1]": "5m"}


async def test_nothing_is_cached_unless_asked_for(wire: Wire, server: ProviderServer, model: PydanticAIModel) -> None:
    assert marks(await asked(server, model, wire, *HISTORY, tools=(SEARCH,))) == {}


@pytest.mark.parametrize("wire", [RESPONSES, CHAT, GOOGLE])
async def test_other_providers_ignore_the_anthropic_cache(wire: Wire, server: ProviderServer, connect: Any) -> None:
    model = connect(wire)
    plain = await asked(server, model, wire, *HISTORY)
    cached = await asked(server, model, wire, *HISTORY, settings=ModelSettings(cache=anthropic_cache()))
    assert cached == plain


async def test_reasoning_of_another_provider_is_not_passed_on(
    wire: Wire, server: ProviderServer, model: PydanticAIModel
) -> None:
    foreign = AssistantMessage(
        text="Because of the moon.",
        thinking=(Thinking(text="secret thoughts", signature="c2VjcmV0"),),
        model="someone:else",
        metadata={"provider": {"name": "someone"}},
    )
    body = await asked(server, model, wire, UserMessage(content="why?"), foreign, UserMessage(content="and?"))
    assert "Because of the moon." in str(body)
    assert "secret" not in str(body)
