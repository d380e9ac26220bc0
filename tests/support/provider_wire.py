"""What providers send for a reply, each in its own format: the same reply can be sent in every format."""

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic
from zlib import crc32

from typing_extensions import TypeVar

from helix_agents.domain.usage import TokenCount
from tests.support.provider_server import Refusal, Stream


@dataclass(kw_only=True)
class Wired:
    """A reply before it is put into a provider's format. Every text arrives in pieces of three characters."""

    thinking: str = ""
    signature: str = ""
    text: str = ""
    calls: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    stop: str = ""


Frame = TypeVar("Frame", bound=str | bytes, default=Any)
_USAGE = TokenCount(prompt=45, completion=20, reasoning=7, cached=30, total=65)


@dataclass(frozen=True, kw_only=True)
class Wire(Generic[Frame]):
    """One provider's format. `stops` maps its stop reasons to ours, and `usage` is what each of its replies used.
    Without a `key`, requests are signed with what the environment has."""

    model: str
    base_path: str
    frames: Callable[[Wired], list[Frame]]
    stops: dict[str, str]
    error: Callable[[int, str, str], Any]
    too_long: Any
    usage: TokenCount = _USAGE
    key: str | None = "a-key"

    def stream(self, said: Wired) -> Stream:
        return Stream(frames=self.frames(said))

    def cut(self, said: Wired, *, keep: int) -> Stream:
        """The reply, broken off after some frames."""
        return Stream(frames=self.frames(said)[:keep], then="cut")

    def held(self, said: Wired, *, keep: int) -> Stream:
        """The reply, stalled after some frames."""
        return Stream(frames=self.frames(said)[:keep], then="hold")

    def refusal(self, status: int, kind: str, message: str, **headers: str) -> Refusal:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return Refusal(status=status, body=self.error(status, kind, message), headers=named)


def pieces(text: str) -> list[str]:
    return [text[start : start + 3] for start in range(0, len(text), 3)]


def event(data: Any) -> str:
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n"


def data(value: Any) -> str:
    return f"data: {json.dumps(value)}\n\n"


# -- Anthropic Messages ------------------------------------------------------------------------------------


def anthropic_frames(said: Wired) -> list[str]:
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-6",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": 10,
            "cache_read_input_tokens": 30,
            "cache_creation_input_tokens": 5,
            "output_tokens": 1,
        },
    }
    frames = [event({"type": "message_start", "message": message})]
    index = 0

    def block(start: dict[str, Any], deltas: list[dict[str, Any]]) -> None:
        nonlocal index
        frames.append(event({"type": "content_block_start", "index": index, "content_block": start}))
        frames.extend(event({"type": "content_block_delta", "index": index, "delta": delta}) for delta in deltas)
        frames.append(event({"type": "content_block_stop", "index": index}))
        index += 1

    if said.thinking:
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(said.thinking)]
        signed = {"type": "signature_delta", "signature": said.signature}
        block({"type": "thinking", "thinking": "", "signature": ""}, [*deltas, signed])
    if said.text:
        deltas = [{"type": "text_delta", "text": piece} for piece in pieces(said.text)]
        block({"type": "text", "text": ""}, deltas)
    for call_id, tool, arguments in said.calls:
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces(json.dumps(arguments))]
        block({"type": "tool_use", "id": call_id, "name": tool, "input": {}}, deltas)
    stop = said.stop or ("tool_use" if said.calls else "end_turn")
    usage = {"output_tokens": 20, "output_tokens_details": {"thinking_tokens": 7}}
    frames.append(
        event({"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": usage})
    )
    frames.append(event({"type": "message_stop"}))
    return frames


ANTHROPIC = Wire(
    model="anthropic:claude-sonnet-4-6",
    base_path="",
    frames=anthropic_frames,
    stops={
        "end_turn": "stop",
        "tool_use": "tool_calls",
        "max_tokens": "length",
        "stop_sequence": "stop",
        "refusal": "content_filter",
    },
    error=lambda _, kind, message: {"type": "error", "error": {"type": kind, "message": message}},
    too_long={
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "prompt is too long: 210000 tokens > 200000 maximum"},
    },
)


# -- OpenAI Responses --------------------------------------------------------------------------------------


class _Numbered:
    """Frames of the Responses API carry a sequence number."""

    def __init__(self) -> None:
        self.frames: list[str] = []

    def add(self, kind: str, **fields: Any) -> None:
        self.frames.append(event({"type": kind, "sequence_number": len(self.frames), **fields}))


def responses_frames(said: Wired) -> list[str]:
    out = _Numbered()
    output: list[dict[str, Any]] = []
    out.add("response.created", response=_response([], "in_progress"))
    if said.thinking:
        output.append(_reasoning(out, len(output), said))
    if said.text:
        output.append(_output_message(out, len(output), said.text))
    for call_id, tool, arguments in said.calls:
        output.append(_function_call(out, len(output), call_id, tool, json.dumps(arguments)))
    if said.stop in ("", "completed"):
        out.add("response.completed", response=_response(output, "completed"))
    else:
        incomplete = _response(output, "incomplete") | {"incomplete_details": {"reason": said.stop}}
        out.add("response.incomplete", response=incomplete)
    return out.frames


def _response(output: list[dict[str, Any]], status: str) -> dict[str, Any]:
    usage = {
        "input_tokens": 45,
        "input_tokens_details": {"cached_tokens": 30, "cache_write_tokens": 0},
        "output_tokens": 20,
        "output_tokens_details": {"reasoning_tokens": 7},
        "total_tokens": 65,
    }
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_760_000_000,
        "model": "gpt-5-2025-08-07",
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None if status == "in_progress" else usage,
    }


def _reasoning(out: _Numbered, at: int, said: Wired) -> dict[str, Any]:
    item = {"type": "reasoning", "id": "rs_1", "summary": []}
    where = {"item_id": "rs_1", "output_index": at, "summary_index": 0}
    out.add("response.output_item.added", output_index=at, item=item)
    out.add("response.reasoning_summary_part.added", part={"type": "summary_text", "text": ""}, **where)
    for piece in pieces(said.thinking):
        out.add("response.reasoning_summary_text.delta", delta=piece, **where)
    out.add("response.reasoning_summary_text.done", text=said.thinking, **where)
    whole = item | {
        "summary": [{"type": "summary_text", "text": said.thinking}],
        "encrypted_content": said.signature,
    }
    out.add("response.output_item.done", output_index=at, item=whole)
    return whole


def _output_message(out: _Numbered, at: int, text: str) -> dict[str, Any]:
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "in_progress", "content": []}
    where = {"item_id": "msg_1", "output_index": at, "content_index": 0}
    part = {"type": "output_text", "text": "", "annotations": []}
    out.add("response.output_item.added", output_index=at, item=item)
    out.add("response.content_part.added", part=part, **where)
    for piece in pieces(text):
        out.add("response.output_text.delta", delta=piece, logprobs=[], **where)
    out.add("response.output_text.done", text=text, logprobs=[], **where)
    whole = item | {"status": "completed", "content": [part | {"text": text}]}
    out.add("response.output_item.done", output_index=at, item=whole)
    return whole


def _function_call(out: _Numbered, at: int, call_id: str, tool: str, arguments: str) -> dict[str, Any]:
    item_id = f"fc_{at}"
    item = {"type": "function_call", "id": item_id, "call_id": call_id, "name": tool, "arguments": ""}
    where = {"item_id": item_id, "output_index": at}
    out.add("response.output_item.added", output_index=at, item=item)
    for piece in pieces(arguments):
        out.add("response.function_call_arguments.delta", delta=piece, **where)
    out.add("response.function_call_arguments.done", arguments=arguments, name=tool, **where)
    whole = item | {"arguments": arguments, "status": "completed"}
    out.add("response.output_item.done", output_index=at, item=whole)
    return whole


def _openai_error(_: int, kind: str, message: str) -> Any:
    return {"error": {"message": message, "type": kind, "param": None, "code": kind}}


OPENAI_TOO_LONG = {
    "error": {
        "message": "Your input exceeds the context window of this model.",
        "type": "invalid_request_error",
        "param": "input",
        "code": "context_length_exceeded",
    }
}

RESPONSES = Wire(
    model="openai:gpt-5",
    base_path="/v1",
    frames=responses_frames,
    stops={"completed": "stop", "max_output_tokens": "length", "content_filter": "content_filter"},
    error=_openai_error,
    too_long=OPENAI_TOO_LONG,
)


# -- OpenAI Chat Completions -------------------------------------------------------------------------------


def chat_frames(said: Wired) -> list[str]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas.extend({"reasoning_content": piece} for piece in pieces(said.thinking))
    deltas.extend({"content": piece} for piece in pieces(said.text))
    for index, (call_id, tool, arguments) in enumerate(said.calls):
        opening = {"index": index, "id": call_id, "type": "function", "function": {"name": tool, "arguments": ""}}
        deltas.append({"tool_calls": [opening]})
        deltas.extend(
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
            for piece in pieces(json.dumps(arguments))
        )
    frames = [data(_chunk([{"index": 0, "delta": delta, "finish_reason": None}])) for delta in deltas]
    stop = said.stop or ("tool_calls" if said.calls else "stop")
    frames.append(data(_chunk([{"index": 0, "delta": {}, "finish_reason": stop}])))
    usage = {
        "prompt_tokens": 45,
        "prompt_tokens_details": {"cached_tokens": 30},
        "completion_tokens": 20,
        "completion_tokens_details": {"reasoning_tokens": 7},
        "total_tokens": 65,
    }
    frames.append(data(_chunk([]) | {"usage": usage}))
    frames.append("data: [DONE]\n\n")
    return frames


def _chunk(choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": "chatcmpl_1",
        "object": "chat.completion.chunk",
        "created": 1_760_000_000,
        "model": "gpt-4o-2024-08-06",
        "choices": choices,
    }


CHAT = Wire(
    model="openai-chat:gpt-4o",
    base_path="/v1",
    frames=chat_frames,
    stops={"stop": "stop", "tool_calls": "tool_calls", "length": "length", "content_filter": "content_filter"},
    error=_openai_error,
    too_long=OPENAI_TOO_LONG,
)


# -- Google Gemini -----------------------------------------------------------------------------------------


def google_frames(said: Wired) -> list[str]:
    parts: list[dict[str, Any]] = [{"text": piece, "thought": True} for piece in pieces(said.thinking)]
    parts.extend({"text": piece} for piece in pieces(said.text))
    for index, (call_id, tool, arguments) in enumerate(said.calls):
        call: dict[str, Any] = {"functionCall": {"id": call_id, "name": tool, "args": arguments}}
        # The signature over the reasoning travels on the first call.
        parts.append(call | {"thoughtSignature": said.signature} if said.signature and index == 0 else call)
    frames = [data(_candidate([part])) for part in parts]
    usage = {
        "promptTokenCount": 45,
        "cachedContentTokenCount": 30,
        "candidatesTokenCount": 13,
        "thoughtsTokenCount": 7,
        "totalTokenCount": 65,
    }
    frames.append(data(_candidate([], said.stop or "STOP") | {"usageMetadata": usage}))
    return frames


def _candidate(parts: list[dict[str, Any]], finish: str | None = None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], "modelVersion": "gemini-2.5-flash", "responseId": "resp_1"}


GOOGLE = Wire(
    model="google:gemini-2.5-flash",
    base_path="",
    frames=google_frames,
    stops={"STOP": "stop", "MAX_TOKENS": "length", "SAFETY": "content_filter"},
    error=lambda status, kind, message: {"error": {"code": status, "status": kind.upper(), "message": message}},
    too_long={
        "error": {
            "code": 400,
            "status": "INVALID_ARGUMENT",
            "message": "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
        }
    },
)

# -- Amazon Bedrock's Converse -----------------------------------------------------------------------------


def bedrock_frames(said: Wired) -> list[bytes]:
    frames = [_aws_event("messageStart", {"role": "assistant"})]
    index = 0

    def block(start: dict[str, Any] | None, deltas: list[dict[str, Any]]) -> None:
        nonlocal index
        at = {"contentBlockIndex": index}
        if start is not None:
            frames.append(_aws_event("contentBlockStart", {**at, "start": start}))
        frames.extend(_aws_event("contentBlockDelta", {**at, "delta": delta}) for delta in deltas)
        frames.append(_aws_event("contentBlockStop", at))
        index += 1

    if said.thinking:
        deltas = [{"reasoningContent": {"text": piece}} for piece in pieces(said.thinking)]
        block(None, [*deltas, {"reasoningContent": {"signature": said.signature}}])
    if said.text:
        block(None, [{"text": piece} for piece in pieces(said.text)])
    for call_id, tool, arguments in said.calls:
        deltas = [{"toolUse": {"input": piece}} for piece in pieces(json.dumps(arguments))]
        block({"toolUse": {"toolUseId": call_id, "name": tool}}, deltas)
    stop = said.stop or ("tool_use" if said.calls else "end_turn")
    frames.append(_aws_event("messageStop", {"stopReason": stop}))
    usage = {
        "inputTokens": 10,
        "cacheReadInputTokens": 30,
        "cacheWriteInputTokens": 5,
        "outputTokens": 20,
        "totalTokens": 65,
    }
    frames.append(_aws_event("metadata", {"usage": usage, "metrics": {"latencyMs": 1}}))
    return frames


def _aws_event(kind: str, value: Any) -> bytes:
    """One message of an AWS event stream: its lengths, its headers, its payload, and checksums of them."""
    about = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    headers = b"".join(_aws_header(name, text) for name, text in about.items())
    payload = json.dumps(value).encode()
    lengths = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    message = lengths + struct.pack(">I", crc32(lengths)) + headers + payload
    return message + struct.pack(">I", crc32(message))


def _aws_header(name: str, text: str) -> bytes:
    is_text = 7
    return struct.pack(">B", len(name)) + name.encode() + struct.pack(">BH", is_text, len(text)) + text.encode()


BEDROCK = Wire(
    model="bedrock:us.anthropic.claude-sonnet-4-5-20250929-v1:0",
    base_path="",
    frames=bedrock_frames,
    stops={
        "end_turn": "stop",
        "tool_use": "tool_calls",
        "max_tokens": "length",
        "stop_sequence": "stop",
        "guardrail_intervened": "content_filter",
    },
    error=lambda _, kind, message: {"__type": kind, "message": message},
    too_long={"__type": "ValidationException", "message": "prompt is too long: 210000 tokens > 200000 maximum"},
    # It does not count reasoning apart.
    usage=TokenCount(prompt=45, completion=20, cached=30, total=65),
    key=None,
)


# -- Groq, and Mistral -------------------------------------------------------------------------------------


def groq_frames(said: Wired) -> list[str]:
    """Chat Completions whose reasoning and usage have other names."""
    *rest, usage, done = chat_frames(said)
    told = json.loads(usage.removeprefix("data: "))
    told["x_groq"] = {"id": "req_1", "usage": told.pop("usage")}
    return [*(frame.replace('"reasoning_content"', '"reasoning"') for frame in rest), data(told), done]


def mistral_frames(said: Wired) -> list[str]:
    """Chat Completions whose calls arrive whole and all at once, and whose reasoning is a kind of content."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    for piece in pieces(said.thinking):
        thought = {"type": "thinking", "thinking": [{"type": "text", "text": piece}]}
        deltas.append({"content": [thought]})
    deltas.extend({"content": piece} for piece in pieces(said.text))
    calls = [
        {"index": at, "id": call_id, "function": {"name": tool, "arguments": json.dumps(arguments)}}
        for at, (call_id, tool, arguments) in enumerate(said.calls)
    ]
    if calls:
        deltas.append({"content": "", "tool_calls": calls})
    frames = [data(_chunk([{"index": 0, "delta": delta, "finish_reason": None}])) for delta in deltas]
    stop = said.stop or ("tool_calls" if said.calls else "stop")
    usage = {"prompt_tokens": 45, "completion_tokens": 20, "total_tokens": 65}
    frames.append(data(_chunk([{"index": 0, "delta": {"content": ""}, "finish_reason": stop}]) | {"usage": usage}))
    frames.append("data: [DONE]\n\n")
    return frames


GROQ = Wire(
    model="groq:openai/gpt-oss-120b",
    base_path="",
    frames=groq_frames,
    stops=CHAT.stops,
    error=_openai_error,
    too_long=OPENAI_TOO_LONG,
)

MISTRAL = Wire(
    model="mistral:mistral-large-latest",
    base_path="",
    frames=mistral_frames,
    stops={"stop": "stop", "tool_calls": "tool_calls", "length": "length", "model_length": "length"},
    error=lambda _, kind, message: {"object": "error", "type": kind, "message": message, "code": "1"},
    too_long={
        "object": "error",
        "type": "invalid_request_error",
        "message": "Prompt contains 140000 tokens, too large for model with 131072 maximum context length",
        "code": "3051",
    },
    usage=TokenCount(prompt=45, completion=20, total=65),
)

WIRES: dict[str, Wire] = {
    "anthropic": ANTHROPIC,
    "responses": RESPONSES,
    "chat": CHAT,
    "google": GOOGLE,
    "bedrock": BEDROCK,
    "groq": GROQ,
    "mistral": MISTRAL,
}
