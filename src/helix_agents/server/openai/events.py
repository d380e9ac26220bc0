"""The chunk log as events of an OpenAI response: a pure translation, one run at a time.

The number of an event follows from the chunk that makes it, counted from the start of the run, and from the event's
place among the events of that chunk. So every reader of the same log, in whichever process, gives each event the same
number, and "everything after n" needs no stored state. When a step is done again, the numbers keep rising, because no
two chunks have the same number. The items that a reader saw of the discarded step are closed as incomplete, and come
again under another index and id.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast

from helix_agents.domain.chunks import (
    Output,
    ProviderToolEnd,
    ProviderToolInput,
    ProviderToolStart,
    RunPaused,
    SourceChunk,
    StepCommitted,
    StepDiscarded,
    StreamChunk,
    SubagentStart,
    TextDelta,
    ThinkingChunk,
    ToolApprovalRequest,
    ToolArgStreamDelta,
    ToolArgStreamStart,
    ToolEnd,
    ToolError,
    ToolStart,
)
from helix_agents.domain.errors import SessionCorruptError
from helix_agents.domain.ids import ToolCallId
from helix_agents.domain.messages import says_nothing
from helix_agents.domain.records import JSON, decode_json
from helix_agents.ports.llm import FINISH_TOOL
from helix_agents.server.openai.items import (
    Item,
    Status,
    annotation,
    approval_item,
    function_call_item,
    message_id,
    message_item,
    output_id,
    reasoning_id,
    reasoning_item,
    text_part,
    tool_call_id,
    tool_call_item,
)
from helix_agents.server.wire import as_text

Event: TypeAlias = dict[str, Any]

STRIDE = 1_000
"""How many numbers are reserved for each chunk; no chunk makes as many events."""
CREATED, QUEUED, IN_PROGRESS = 0, 1, 2
"""The numbers reserved for the events before the first chunk."""


@dataclass(frozen=True, kw_only=True)
class KnownCall:
    """A call as the transcript has it; with an `approval_id`, an approval was requested for it."""

    name: str
    arguments: JSON
    approval_id: str | None = None


@dataclass(slots=True)
class _Open:
    """An item that is being sent: the chunk it started with, and what was sent of it so far."""

    item_id: str
    index: int
    since: int
    pieces: list[str] = field(default_factory=list[str])

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def place(self, **more: Any) -> dict[str, Any]:
        return {"item_id": self.item_id, "output_index": self.index, **more}


@dataclass(slots=True)
class _OpenCall:
    """A call that is still running."""

    at: _Open
    call: KnownCall


class ResponseStream:
    """Translates one run.

    `label` names whose tools they are, `at_client` tells whether the client runs a tool, and `known` are the calls that
    earlier runs left to this one. `start` is the chunk before the run's first.
    """

    def __init__(
        self,
        label: str,
        *,
        start: int,
        at_client: Callable[[str], bool] = lambda _: False,
        known: Mapping[ToolCallId, KnownCall] | None = None,
    ) -> None:
        self._label = label
        self._start = start
        self._at_client = at_client
        self._known = dict(known or {})
        self._written: dict[ToolCallId, tuple[str, list[str]]] = {}
        self._below: dict[ToolCallId, KnownCall] = {}
        self._items: list[tuple[int, int]] = []
        self._next = 0
        self._text: _Open | None = None
        self._reasoning: _Open | None = None
        self._calls: dict[ToolCallId, _OpenCall] = {}
        self._asked: set[str] = set()
        self._annotations: list[Item] = []
        self._blocks = 0
        self._said = ""
        self._again = ""
        self.last = start

    def feed(self, chunk: StreamChunk) -> list[Event]:
        """The events that one more chunk produces. Of a child's work, only what waits for the client is sent."""
        self.last = chunk.sequence
        events = self._told(chunk) if chunk.parent_tool_call_id is None else self._told_below(chunk)
        return self._numbered(events, chunk.sequence)

    def close(self, last: Iterable[Event], *, whole: bool) -> list[Event]:
        """The run has ended, or waits: close the open items, then say how it ended."""
        status: Status = "completed" if whole else "incomplete"
        events = [*self._end_reasoning(status), *self._end_text(status)]
        for open_ in tuple(self._calls.values()):
            events += self._end_call(open_, "incomplete")
        self._calls.clear()
        return self._numbered([*events, *last], self.last + 1)

    def _numbered(self, events: Iterable[Event], sequence: int) -> list[Event]:
        first = (sequence - self._start) * STRIDE
        return [{**event, "sequence_number": first + place} for place, event in enumerate(events)]

    def _told(self, chunk: StreamChunk) -> list[Event]:
        step = f"{chunk.run_id}.{chunk.step}"
        match chunk:
            case TextDelta(delta=delta):
                return self._say(message_id(step), delta)
            case ThinkingChunk(content=content, is_complete=ends):
                return self._think(step, content, ends=ends)
            case ToolArgStreamStart(tool_call_id=call_id, tool_name=name):
                self._written[call_id] = (name, [])
                return []
            case ToolArgStreamDelta(tool_call_id=call_id, delta=delta):
                if call_id in self._written:
                    self._written[call_id][1].append(delta)
                return []
            case ToolStart(tool_call_id=call_id, tool_name=name, arguments=given):
                return self._start_call(call_id, name, given)
            case SubagentStart(tool_call_id=call_id):
                return self._begin_call(call_id, self._made(call_id, chunk.child_agent_type))
            case ToolApprovalRequest():
                return self._ask_approval(chunk)
            case ToolEnd(tool_call_id=call_id, tool_name=name, result=result):
                return self._settle(call_id, name, "completed", output=as_text(result))
            case ToolError(tool_call_id=call_id, tool_name=name, error=error):
                return self._settle(call_id, name, "failed", error=error)
            case ProviderToolStart(tool_call_id=call_id, tool_name=name):
                self._known[call_id] = KnownCall(name=name, arguments={})
                return self._end_reasoning()
            case ProviderToolInput(tool_call_id=call_id, tool_name=name, arguments=given):
                return self._begin_beside(call_id, KnownCall(name=name, arguments=given))
            case ProviderToolEnd():
                return self._settle_beside(chunk)
            case SourceChunk():
                return self._refer_to(chunk)
            case Output(output=output):
                return self._show_output(chunk.run_id, output)
            case StepCommitted():
                return self._leave_step()
            case StepDiscarded():
                return self._discard(chunk)
            case _:
                return []

    def _told_below(self, chunk: StreamChunk) -> list[Event]:
        match chunk:
            case ToolStart(tool_call_id=call_id, tool_name=name, arguments=given):
                self._below[call_id] = KnownCall(name=name, arguments=given)
                return []
            case ToolApprovalRequest():
                return self._ask_approval(chunk)
            case RunPaused(tool_call_ids=waiting):
                known = [(call_id, self._below[call_id]) for call_id in waiting if call_id in self._below]
                return [event for call_id, call in known for event in self._ask(call_id, call.name, call.arguments)]
            case StepDiscarded():
                return self._discard(chunk)
            case _:
                return []

    # -- text and reasoning

    def _say(self, item_id: str, delta: str) -> list[Event]:
        events = self._end_reasoning()
        if self._text is None:
            self._text = self._begin(item_id + self._again)
            part = {"type": "response.content_part.added", "part": text_part("")}
            events += [
                self._added(self._text, message_item(self._text.item_id, None, "in_progress")),
                {**part, **self._text.place(content_index=0)},
            ]
        self._text.pieces.append(delta)
        told: Event = {"type": "response.output_text.delta", "delta": delta, "logprobs": []}
        return [*events, {**told, **self._text.place(content_index=0)}]

    def _end_text(self, status: Status = "completed") -> list[Event]:
        if self._text is None:
            return []
        open_, self._text = self._text, None
        annotations, self._annotations = self._annotations, []
        self._said = text = open_.text
        place = open_.place(content_index=0)
        return [
            {"type": "response.output_text.done", "text": text, "logprobs": [], **place},
            {"type": "response.content_part.done", "part": text_part(text, annotations), **place},
            self._done(open_, message_item(open_.item_id, text, status, annotations)),
        ]

    def _refer_to(self, source: SourceChunk) -> list[Event]:
        if self._text is None:
            return []
        made = annotation(source, self._text.text)
        self._annotations.append(made)
        place = self._text.place(content_index=0, annotation_index=len(self._annotations) - 1)
        return [{"type": "response.output_text.annotation.added", "annotation": made, **place}]

    def _think(self, step: str, content: str, *, ends: bool) -> list[Event]:
        events: list[Event] = []
        if self._reasoning is None:
            self._blocks += 1
            self._reasoning = self._begin(reasoning_id(step, self._blocks) + self._again)
            part = {"type": "response.reasoning_summary_part.added", "part": {"type": "summary_text", "text": ""}}
            events = [
                self._added(self._reasoning, reasoning_item(self._reasoning.item_id, None, "in_progress")),
                {**part, **self._reasoning.place(summary_index=0)},
            ]
        if content:
            self._reasoning.pieces.append(content)
            told = {"type": "response.reasoning_summary_text.delta", "delta": content}
            events.append({**told, **self._reasoning.place(summary_index=0)})
        return [*events, *self._end_reasoning()] if ends else events

    def _end_reasoning(self, status: Status = "completed") -> list[Event]:
        if self._reasoning is None:
            return []
        open_, self._reasoning = self._reasoning, None
        text, place = open_.text, open_.place(summary_index=0)
        part = {"type": "summary_text", "text": text}
        return [
            {"type": "response.reasoning_summary_text.done", "text": text, **place},
            {"type": "response.reasoning_summary_part.done", "part": part, **place},
            self._done(open_, reasoning_item(open_.item_id, text, status)),
        ]

    def _show_output(self, run_id: str, output: JSON) -> list[Event]:
        """The run's output, unless it is what the model has just said."""
        events = [*self._end_reasoning(), *self._end_text()]
        if output is None or output == self._said:
            return events
        events += self._say(output_id(run_id), as_text(output))
        return [*events, *self._end_text()]

    # -- calls

    def _start_call(self, call_id: ToolCallId, name: str, given: JSON) -> list[Event]:
        if self._at_client(name):
            return self._ask(call_id, name, given)
        return self._begin_call(call_id, self._made(call_id, name, given))

    def _made(self, call_id: ToolCallId, name: str, given: JSON = None) -> KnownCall:
        """A call as the model wrote it, in this run or in an earlier one."""
        if call_id in self._written:
            written, pieces = self._written[call_id]
            return KnownCall(name=written, arguments=_as_stored("".join(pieces)))
        return self._known.get(call_id, KnownCall(name=name, arguments=given or {}))

    def _begin_call(self, call_id: ToolCallId, call: KnownCall) -> list[Event]:
        if call_id in self._calls or call.name == FINISH_TOOL:
            return []
        return [*self._end_reasoning(), *self._end_text(), *self._begin_beside(call_id, call)]

    def _begin_beside(self, call_id: ToolCallId, call: KnownCall) -> list[Event]:
        """A call begins while the text goes on, as calls of the model's provider do."""
        at = self._begin(tool_call_id(call_id) + self._again)
        self._calls[call_id] = _OpenCall(at, call)
        arguments, place = as_text(call.arguments), at.place()
        return [
            self._added(at, self._call_item(at, KnownCall(name=call.name, arguments="", approval_id=call.approval_id))),
            {"type": "response.mcp_call.in_progress", **place},
            {"type": "response.mcp_call_arguments.delta", "delta": arguments, **place},
            {"type": "response.mcp_call_arguments.done", "arguments": arguments, **place},
        ]

    def _settle(
        self,
        call_id: ToolCallId,
        name: str,
        status: Literal["completed", "failed"],
        *,
        output: str | None = None,
        error: str | None = None,
    ) -> list[Event]:
        if name == FINISH_TOOL or self._at_client(name):
            return []
        begun = self._begin_call(call_id, self._made(call_id, name))
        open_ = self._calls.pop(call_id)
        told = {"type": f"response.mcp_call.{status}", **open_.at.place()}
        return [*begun, told, *self._end_call(open_, status, output=output, error=error)]

    def _settle_beside(self, chunk: ProviderToolEnd) -> list[Event]:
        known = self._known.get(chunk.tool_call_id, KnownCall(name=chunk.tool_name, arguments={}))
        begun = [] if chunk.tool_call_id in self._calls else self._begin_beside(chunk.tool_call_id, known)
        open_, result = self._calls.pop(chunk.tool_call_id), as_text(chunk.result)
        status: Literal["completed", "failed"] = "failed" if chunk.error else "completed"
        outcome = {"error" if chunk.error else "output": result}
        told = {"type": f"response.mcp_call.{status}", **open_.at.place()}
        return [*begun, told, *self._end_call(open_, status, **outcome)]

    def _end_call(
        self, open_: _OpenCall, status: Literal["completed", "failed", "incomplete"], **result: str | None
    ) -> list[Event]:
        return [self._done(open_.at, self._call_item(open_.at, open_.call, status=status, **result))]

    def _call_item(self, at: _Open, call: KnownCall, **more: Any) -> Item:
        return tool_call_item(at.item_id, self._label, call.name, call.arguments, approval_id=call.approval_id, **more)

    def _ask(self, call_id: ToolCallId, name: str, given: JSON) -> list[Event]:
        """A call that the client answers. It is sent only once a run waits for the answer."""
        if call_id in self._asked:
            return []
        self._asked.add(call_id)
        events = [*self._end_reasoning(), *self._end_text()]
        item = function_call_item(call_id, name, given)
        at = self._begin(item["id"])
        place, arguments = at.place(), item["arguments"]
        return [
            *events,
            self._added(at, function_call_item(call_id, name, given, "in_progress", begins=True)),
            {"type": "response.function_call_arguments.delta", "delta": arguments, **place},
            {"type": "response.function_call_arguments.done", "name": name, "arguments": arguments, **place},
            self._done(at, item),
        ]

    def _ask_approval(self, chunk: ToolApprovalRequest) -> list[Event]:
        if chunk.approval_id in self._asked:
            return []
        self._asked |= {chunk.approval_id, chunk.tool_call_id}
        # A call that started earlier and whose outcome is unknown does not continue.
        open_ = self._calls.pop(chunk.tool_call_id, None)
        events = [*self._end_reasoning(), *self._end_text()]
        events += [] if open_ is None else self._end_call(open_, "incomplete")
        item = approval_item(chunk.approval_id, self._label, chunk.tool_name, chunk.input)
        at = self._begin(item["id"])
        return [*events, self._added(at, item), self._done(at, item)]

    # -- items and steps

    def _begin(self, item_id: str) -> _Open:
        at = _Open(item_id, self._next, self.last)
        self._items.append((self.last, self._next))
        self._next += 1
        return at

    def _added(self, at: _Open, item: Item) -> Event:
        return {"type": "response.output_item.added", "output_index": at.index, "item": item}

    def _done(self, at: _Open, item: Item) -> Event:
        return {"type": "response.output_item.done", "output_index": at.index, "item": item}

    def _leave_step(self) -> list[Event]:
        events = [*self._end_reasoning(), *self._end_text()]
        self._blocks, self._said, self._again = 0, "", ""
        return events

    def _discard(self, chunk: StepDiscarded) -> list[Event]:
        """Nothing sent since then happened. The indexes skip as many places as there can have been items, so that a
        reader who did not see those items arrives at the same count."""
        gone = range(chunk.from_sequence, chunk.to_sequence + 1)
        events: list[Event] = []
        if self._reasoning is not None and self._reasoning.since in gone:
            events += self._end_reasoning("incomplete")
        if self._text is not None and self._text.since in gone:
            events += self._end_text("incomplete")
        for call_id, open_ in tuple(self._calls.items()):
            if open_.at.since in gone:
                events += self._end_call(self._calls.pop(call_id), "incomplete")
        first = next((index for since, index in self._items if since in gone), self._next)
        self._items = [(since, index) for since, index in self._items if since not in gone]
        self._next = max(self._next, first + len(gone))
        self._blocks, self._said, self._again = 0, "", f"_{chunk.sequence - self._start}"
        return events


def _as_stored(arguments: str) -> JSON:
    """The arguments that a model wrote for a call, as the transcript has them."""
    if says_nothing(arguments):
        return {}
    try:
        value = decode_json(arguments)
    except SessionCorruptError:
        return arguments
    return cast("JSON", value) if isinstance(value, dict) else arguments
