"""What providers stream when they run tools themselves, each in its own format."""

from typing import Any

from tests.support.provider_server import Stream
from tests.support.provider_wire import ANTHROPIC, Wired, data, event, pieces

FOUND = [
    {
        "type": "web_search_result",
        "title": "Tides",
        "url": "https://sea.example/tides",
        "encrypted_content": "c2VhbGVk",
        "page_age": "2 days ago",
    }
]
CITED = {
    "type": "web_search_result_location",
    "cited_text": "Twice a day.",
    "url": "https://sea.example/tides",
    "title": "Tides",
    "encrypted_index": "aW5kZXg=",
}
SAID_BEFORE, SAID_AFTER = "Let me look.", "High tide is twice a day."
TEXT = f"{SAID_BEFORE}\n\n{SAID_AFTER}"


def anthropic_block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[str]:
    """One block of a streamed message."""
    return [
        event({"type": "content_block_start", "index": index, "content_block": start}),
        *[event({"type": "content_block_delta", "index": index, "delta": delta}) for delta in deltas],
        event({"type": "content_block_stop", "index": index}),
    ]


def _text(index: int, text: str, *citations: dict[str, Any]) -> list[str]:
    told = [{"type": "text_delta", "text": piece} for piece in pieces(text)]
    cited = [{"type": "citations_delta", "citation": each} for each in citations]
    return anthropic_block(index, {"type": "text", "text": "", "citations": []}, *told, *cited)


def _searching(index: int) -> list[str]:
    start = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    told = [{"type": "input_json_delta", "partial_json": piece} for piece in ('{"que', 'ry": "tides"', "}")]
    return anthropic_block(index, start, *told)


def _found(index: int, content: Any = FOUND) -> list[str]:
    return anthropic_block(index, {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": content})


def _around(*blocks: list[str], stop: str = "end_turn") -> list[str]:
    opening, *_, ending, end = ANTHROPIC.frames(Wired(text="x", stop=stop))
    return [opening, *[frame for block in blocks for frame in block], ending, end]


def anthropic_search() -> Stream:
    """Text, a search, what it found, and a text that cites it."""
    said = (_text(0, SAID_BEFORE), _searching(1), _found(2), _text(3, SAID_AFTER, CITED))
    return Stream(frames=_around(*said))


def anthropic_search_and_call() -> Stream:
    """The same, and then a call of the agent's own tool."""
    call = anthropic_block(4, {"type": "tool_use", "id": "call_a", "name": "publish", "input": {}})
    said = (_text(0, SAID_BEFORE), _searching(1), _found(2), _text(3, SAID_AFTER, CITED), call)
    return Stream(frames=_around(*said, stop="tool_use"))


RAN = {
    "type": "bash_code_execution_result",
    "stdout": "42\n",
    "stderr": "",
    "return_code": 0,
    "content": [],
}
BERTHS = {"content": [{"type": "text", "text": "three", "citations": None}], "is_error": False}


def anthropic_code_and_mcp() -> Stream:
    """Code that runs in a container, and a call of an MCP server's tool."""
    code = {"type": "server_tool_use", "id": "srvtoolu_2", "name": "bash_code_execution", "input": {}}
    ran = {"type": "bash_code_execution_tool_result", "tool_use_id": "srvtoolu_2", "content": RAN}
    asked = {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "berths", "server_name": "harbour", "input": {}}
    told = {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_1", **BERTHS}
    frames = _around(
        anthropic_block(0, code, {"type": "input_json_delta", "partial_json": '{"command": "expr 6"}'}),
        anthropic_block(1, ran),
        anthropic_block(2, asked, {"type": "input_json_delta", "partial_json": '{"quay": 7}'}),
        anthropic_block(3, told),
        _text(4, SAID_AFTER),
    )
    container = {"id": "container_1", "expires_at": "2030-01-01T00:00:00Z"}
    ending = {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None, "container": container},
        "usage": {"output_tokens": 20},
    }
    return Stream(frames=[*frames[:-2], event(ending), frames[-1]])


def anthropic_failed_search() -> Stream:
    """A search that the provider refuses, since there were enough of them."""
    problem = {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}
    return Stream(frames=_around(_searching(0), _found(1, problem), _text(2, SAID_AFTER)))


def anthropic_paused() -> tuple[Stream, Stream]:
    """A search that takes so long that the provider pauses its reply, and the rest of the reply."""
    return (
        Stream(frames=_around(_text(0, SAID_BEFORE), _searching(1), stop="pause_turn")),
        Stream(frames=_around(_found(0), _text(1, SAID_AFTER, CITED))),
    )


def anthropic_beside_a_call() -> tuple[Stream, Stream]:
    """A search that ends only after the agent's own tool has answered."""
    call = {"type": "tool_use", "id": "call_a", "name": "lookup", "input": {}}
    return (
        Stream(frames=_around(_searching(0), anthropic_block(1, call), stop="tool_use")),
        Stream(frames=_around(_found(0), _text(1, SAID_AFTER, CITED))),
    )


def anthropic_searching_forever() -> Stream:
    """A search that has begun and does not end."""
    frames = _around(_text(0, SAID_BEFORE), _searching(1))
    return Stream(frames=frames[:-2], then="hold")


ANTHROPIC_BLOCKS = [
    {"type": "text", "text": SAID_BEFORE},
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "tides"}},
    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": FOUND},
    {"type": "text", "text": SAID_AFTER, "citations": [CITED]},
]
"""What the provider gets back."""

SEARCHED = {"type": "search", "query": "tides"}
LINKED = "Twice a day (https://sea.example/tides)."
CITATION = {
    "type": "url_citation",
    "url": "https://sea.example/tides",
    "title": "Tides",
    "start_index": 12,
    "end_index": 39,
}


def responses_search() -> Stream:
    """Reasoning, a search, and a text with a citation, in the Responses API."""
    from tests.support import provider_wire as wires

    out = wires._Numbered()
    out.add("response.created", response=wires._response([], "in_progress"))
    output = [wires._reasoning(out, 0, Wired(thinking="Moon.", signature="c2lnLTE="))]
    begun = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "in_progress",
        "action": {"type": "search", "query": ""},
    }
    out.add("response.output_item.added", output_index=1, item=begun)
    for state in ("in_progress", "searching", "completed"):
        out.add(f"response.web_search_call.{state}", output_index=1, item_id="ws_1")
    output.append(begun | {"status": "completed", "action": SEARCHED})
    out.add("response.output_item.done", output_index=1, item=output[-1])
    output.append(_cited(out, 2))
    out.add("response.completed", response=wires._response(output, "completed"))
    return Stream(frames=out.frames)


RAN_AT_OPENAI = {"container_id": "cntr_1", "code": "print(6 * 7)"}


def responses_code() -> Stream:
    """Code that runs in a container, in the Responses API."""
    from tests.support import provider_wire as wires

    out = wires._Numbered()
    out.add("response.created", response=wires._response([], "in_progress"))
    begun = {"type": "code_interpreter_call", "id": "ci_1", "status": "in_progress", "outputs": None}
    begun |= {"container_id": "cntr_1", "code": ""}
    out.add("response.output_item.added", output_index=0, item=begun)
    where = {"item_id": "ci_1", "output_index": 0}
    for piece in pieces("print(6 * 7)"):
        out.add("response.code_interpreter_call_code.delta", delta=piece, **where)
    out.add("response.code_interpreter_call_code.done", code="print(6 * 7)", **where)
    outputs = [{"type": "logs", "logs": "42\n"}]
    done = begun | {"status": "completed", "code": "print(6 * 7)", "outputs": outputs}
    out.add("response.output_item.done", output_index=0, item=done)
    output = [done, wires._output_message(out, 1, "It is 42.")]
    out.add("response.completed", response=wires._response(output, "completed"))
    return Stream(frames=out.frames)


def _cited(out: Any, at: int) -> dict[str, Any]:
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "in_progress", "content": []}
    where = {"item_id": "msg_1", "output_index": at, "content_index": 0}
    part = {"type": "output_text", "text": "", "annotations": []}
    out.add("response.output_item.added", output_index=at, item=item)
    out.add("response.content_part.added", part=part, **where)
    for piece in pieces(LINKED):
        out.add("response.output_text.delta", delta=piece, logprobs=[], **where)
    out.add("response.output_text.annotation.added", annotation=CITATION, annotation_index=0, **where)
    out.add("response.output_text.done", text=LINKED, logprobs=[], **where)
    whole = item | {"status": "completed", "content": [part | {"text": LINKED, "annotations": [CITATION]}]}
    out.add("response.output_item.done", output_index=at, item=whole)
    return whole


def google_code() -> Stream:
    """Code that the provider runs, and what it says about the outcome."""
    parts: list[dict[str, Any]] = [
        {"executableCode": {"language": "PYTHON", "code": "print(6 * 7)"}, "thoughtSignature": "c2lnLTE="},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "42\n"}},
        *[{"text": piece} for piece in pieces("It is 42.")],
    ]
    frames = [data(_candidate([part])) for part in parts]
    usage = {"promptTokenCount": 45, "candidatesTokenCount": 13, "totalTokenCount": 58}
    return Stream(frames=[*frames, data(_candidate([], "STOP") | {"usageMetadata": usage})])


def google_search() -> Stream:
    """A text that the provider grounds in what it has searched for."""
    grounding = {
        "webSearchQueries": ["tides"],
        "groundingChunks": [{"web": {"uri": "https://sea.example/tides", "title": "Tides"}}],
        "groundingSupports": [
            {"segment": {"startIndex": 0, "endIndex": 9, "text": "High tide"}, "groundingChunkIndices": [0]}
        ],
    }
    frames = [data(_candidate([{"text": piece}])) for piece in pieces(SAID_AFTER)]
    last = _candidate([], "STOP")
    last["candidates"][0]["groundingMetadata"] = grounding
    usage = {"promptTokenCount": 45, "candidatesTokenCount": 13, "totalTokenCount": 58}
    return Stream(frames=[*frames, data(last | {"usageMetadata": usage})])


def _candidate(parts: list[dict[str, Any]], finish: str | None = None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], "modelVersion": "gemini-3-pro", "responseId": "resp_1"}
