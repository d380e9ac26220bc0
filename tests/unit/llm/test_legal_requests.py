"""Whatever a transcript and the choice of a history processor look like, the request is one that a provider takes."""

import re
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from helix_agents.domain.messages import (
    AssistantMessage,
    Image,
    Message,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from helix_agents.domain.parts import in_json
from helix_agents.domain.transcript import as_shown
from helix_agents.engine.steps.call_ids import CallIds
from helix_agents.llm.pydantic_ai import PydanticAIModel
from helix_agents.ports.llm import ToolSpec
from tests.support.asking import answer_of, question
from tests.support.provider_server import ProviderServer
from tests.support.provider_wire import ANTHROPIC, CHAT, MISTRAL, RESPONSES, WIRES, Wire, Wired

Replies = list[AssistantMessage]

CONVERSATIONS = 12
SEARCH = ToolSpec(name="search", description="Search.", parameters={"type": "object", "properties": {}})
MOON = Image.of(b"hello", "image/png", "moon.png")
SAID = ("Hi.", "", " ", (Text(text="See:"), MOON), (Text(text=""),))
RESULTS = ("ok", "", None, [], {}, [1, 2], {"a": 1}, (MOON, Text(text="")), (Text(text=" "),))
NAMES = ("search", "no such.tool", "")
ARGUMENTS: tuple[Any, ...] = ({}, {"q": "x"}, "{not json")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


async def replies_of(server: ProviderServer, model: PydanticAIModel, wire: Wire) -> Replies:
    """What one provider says: with and without reasoning, text, blanks and calls, whole and cut off at its limit."""
    at_its_limit = next(stop for stop, ours in wire.stops.items() if ours == "length")
    ids = "abcdefg{:02}" if wire is MISTRAL else "pyd_ai_{:032}" if wire is CHAT else "call_{:024}"
    found: Replies = []
    for text, thinking, count in (("Well.", "Hm.", 2), ("", "Hm.", 1), ("", "Hm.", 0), (" ", "", 1), ("Well.", "", 0)):
        calls: list[tuple[str, str, dict[str, Any]]] = [(ids.format(at), "search", {}) for at in range(count)]
        said = Wired(text=text, thinking=thinking, signature="c2ln" if thinking else "", calls=calls)
        server.will(wire.stream(said if calls or text else Wired(thinking="Hm.", signature="c2ln", stop=at_its_limit)))
        found.append((await answer_of(model, question())).reply)
    return found


def transcript(random: Random, by: list[Replies], suffix: str | None) -> list[Message]:
    """A conversation as the engine leaves it: every call is answered, and the last word is not the model's."""
    ids, said = CallIds(suffix=suffix), list[Message]()
    for _ in range(random.randint(1, 3)):
        said.append(UserMessage(content=random.choice(SAID)))
        for _ in range(random.randint(0, 3)):
            reply = random.choice(random.choice(by))
            calls = tuple(
                ToolCall(id=ids.claim(call.id), name=random.choice(NAMES), arguments=random.choice(ARGUMENTS))
                for call in reply.tool_calls
            )
            reply = replace(reply, tool_calls=calls)
            if random.random() < 0.2 and (reply.text or calls):
                reply = replace(reply, metadata={}, interrupted="interrupt")
            said.extend([reply, *(result(random, call) for call in calls)])
            if random.random() < 0.2:
                said.append(UserMessage(content="Be quick."))
    return [*said, UserMessage(content="Go on.")]


def result(random: Random, call: ToolCall) -> ToolMessage:
    content: Any = random.choice(RESULTS)
    content, in_parts = in_json(content) if isinstance(content, tuple) else (content, False)
    failed = random.random() < 0.2
    return ToolMessage(tool_call_id=call.id, tool_name=call.name, content=content, in_parts=in_parts, error=failed)


@pytest.mark.parametrize("name", sorted(WIRES))
async def test_any_conversation_and_any_part_of_it_is_a_legal_request(
    name: str, server: ProviderServer, connect: Any
) -> None:
    wire, model = WIRES[name], connect(WIRES[name])
    others = ANTHROPIC if wire is not ANTHROPIC else RESPONSES
    own, foreign = await replies_of(server, model, wire), await replies_of(server, connect(others), others)
    for number in range(CONVERSATIONS):
        random = Random(f"{name} {number}")
        suffix = random.choice([None, "a1b2c3"])
        messages = transcript(random, [own, own, foreign], suffix)
        if number % 2:
            messages = as_shown([each for each in messages if random.random() < 0.8])
        server.will(wire.stream(Wired(text="Yes.")))
        tools = (SEARCH,) if random.random() < 0.7 else ()
        await answer_of(model, question(*messages, session_id=f"s-{number}", tools=tools))
        _CHECKS[name](server.asked)


def _check(calls_and_results: list[tuple[str, str]], names: list[str], texts: list[str], *, ids: str) -> None:
    """Each call has one result, which comes before anything else is said; nothing is blank, no name or id foreign."""
    waiting: list[str] = []
    made: set[str] = set()
    for kind, call_id in calls_and_results:
        match kind:
            case "call":
                assert call_id not in made
                assert re.fullmatch(ids, call_id), call_id
                made.add(call_id)
                waiting.append(call_id)
            case "result":
                waiting.remove(call_id)
            case _:
                assert not waiting, f"{kind} before the results of {waiting}"
    assert not waiting
    assert all(map(_NAME.fullmatch, names)), names
    assert all(text.strip() for text in texts), texts


def _check_anthropic(body: Any) -> None:
    order: list[tuple[str, str]] = []
    names: list[str] = []
    texts: list[str] = []
    for message in body["messages"]:
        blocks: list[Any] = message["content"]
        assert blocks
        for block in blocks:
            match block:
                case {"type": "tool_use", "id": call_id, "name": name, "input": dict()}:
                    order.append(("call", call_id))
                    names.append(name)
                case {"type": "tool_result", "tool_use_id": call_id, "content": content}:
                    order.append(("result", call_id))
                    texts += [each["text"] for each in content if each["type"] == "text"]
                case {"type": "thinking", "signature": str(signature)}:
                    assert signature
                case {"type": "text", "text": text}:
                    texts.append(text)
                    order += [(message["role"], "")] if message["role"] == "user" else []
                case {"type": "image"}:
                    continue
                case other:
                    raise AssertionError(other)
        assert blocks[-1]["type"] not in ("thinking", "redacted_thinking")
    _ends_with_user(body["messages"])
    _check(order, names, texts, ids=r"[a-zA-Z0-9_-]{1,64}")


def _check_bedrock(body: Any) -> None:
    order: list[tuple[str, str]] = []
    names: list[str] = []
    texts: list[str] = []
    for message in body["messages"]:
        blocks: list[Any] = message["content"]
        assert blocks
        for block in blocks:
            match block:
                case {"toolUse": {"toolUseId": call_id, "name": name, "input": dict()}}:
                    order.append(("call", call_id))
                    names.append(name)
                case {"toolResult": {"toolUseId": call_id, "content": [_, *_] as content}}:
                    order.append(("result", call_id))
                    texts += [each["text"] for each in content if "text" in each]
                case {"reasoningContent": {"reasoningText": {"signature": str(signature)}}}:
                    assert signature
                case {"text": text}:
                    texts.append(text)
                case {"image": _}:
                    continue
                case other:
                    raise AssertionError(other)
        assert "reasoningContent" not in blocks[-1]
    _ends_with_user(body["messages"])
    _check(order, names, texts, ids=r"[a-zA-Z0-9_-]{1,64}")


def _check_responses(body: Any) -> None:
    order: list[tuple[str, str]] = []
    names: list[str] = []
    after_reasoning = False
    for item in body["input"]:
        match item:
            case {"type": "function_call", "call_id": call_id, "name": name}:
                order.append(("call", call_id))
                names.append(name)
            case {"type": "function_call_output", "call_id": call_id, "output": output}:
                assert output
                order.append(("result", call_id))
            case {"type": "reasoning"}:
                after_reasoning = True
                continue
            case {"role": str(role), "content": content}:
                assert content
                order.append((role, ""))
            case other:
                raise AssertionError(other)
        own = item.get("type") == "function_call" or item.get("role") == "assistant"
        assert own or not after_reasoning, "reasoning without what it led to"
        after_reasoning = False
    assert not after_reasoning
    _ends_with_user([each for each in body["input"] if "role" in each])
    _check(order, names, [], ids=r"[a-zA-Z0-9_-]{1,64}")


def _check_chat(body: Any, ids: str = r"[a-zA-Z0-9_-]{1,40}") -> None:
    order: list[tuple[str, str]] = []
    names: list[str] = []
    for message in body["messages"]:
        if message["role"] == "tool":
            assert message["content"]
            order.append(("result", message["tool_call_id"]))
            continue
        order.append((message["role"], ""))
        calls: list[Any] = message.get("tool_calls") or []
        assert message.get("content") or calls, message
        order += [("call", each["id"]) for each in calls]
        names += [each["function"]["name"] for each in calls]
    _ends_with_user(body["messages"])
    _check(order, names, [], ids=ids)


def _check_mistral(body: Any) -> None:
    _check_chat(body, r"[a-zA-Z0-9]{9}")


def _check_google(body: Any) -> None:
    waiting = 0
    for turn in body["contents"]:
        assert turn["parts"]
        assert not any(part.get("text") == "" for part in turn["parts"])
        answers = sum("functionResponse" in part for part in turn["parts"])
        assert answers == waiting
        calls = [part["functionCall"] for part in turn["parts"] if "functionCall" in part]
        assert all(_NAME.fullmatch(call["name"]) for call in calls)
        waiting = len(calls)
    assert not waiting
    _ends_with_user(body["contents"])


def _ends_with_user(turns: list[Any]) -> None:
    first = next(each for each in turns if each["role"] != "system")
    assert (first["role"], turns[-1]["role"] in ("user", "tool")) == ("user", True)


_CHECKS: dict[str, Callable[[Any], None]] = {
    "anthropic": _check_anthropic,
    "bedrock": _check_bedrock,
    "chat": _check_chat,
    "google": _check_google,
    "groq": _check_chat,
    "mistral": _check_mistral,
    "responses": _check_responses,
}
