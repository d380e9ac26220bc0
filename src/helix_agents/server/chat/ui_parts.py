"""The chunk log as a Vercel AI SDK UI message stream: a pure translation, one answer at a time.

An answer is everything said after one user message, across all the runs it took. The same methods make the parts of the
stored transcript and the parts of the chunks after it, so a page that was connected from the start and a page that came
back midway hold the same message.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast

from helix_agents.domain.chunks import (
    Custom,
    ProviderToolEnd,
    ProviderToolInput,
    ProviderToolStart,
    RunPaused,
    RunResumed,
    RunStarted,
    SourceChunk,
    StatePatch,
    StepCommitted,
    StepDiscarded,
    StreamChunk,
    SubagentEnd,
    SubagentStart,
    TextDelta,
    ThinkingChunk,
    ToolApprovalRequest,
    ToolArgStreamDelta,
    ToolArgStreamEnd,
    ToolArgStreamStart,
    ToolEnd,
    ToolError,
    ToolStart,
)
from helix_agents.domain.errors import SessionCorruptError
from helix_agents.domain.ids import ToolCallId
from helix_agents.domain.messages import (
    AssistantMessage,
    ProviderCall,
    Source,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
    in_spoken_order,
)
from helix_agents.domain.pending import PendingCall, ToolAnswer
from helix_agents.domain.records import JSON, decode_json, encode
from helix_agents.engine.steps.answers import DENIAL, NOT_APPROVED, answered_message, decision_on
from helix_agents.ports.llm import FINISH_TOOL
from helix_agents.server.chat.user_messages import user_message
from helix_agents.server.errors import sentence_for
from helix_agents.server.wire import as_text

UIPart: TypeAlias = dict[str, Any]
Version: TypeAlias = Literal[6, 7]
"""Which chunk set the client knows. An unknown type kills its stream, so the older set is the default."""

_BY_PROVIDER = {"providerExecuted": True, "dynamic": True}
"""No tool of the agent has the name of such a call, so a page cannot know it beforehand."""

TAKEN_BACK = "This call was taken back; it is made again."

# The finish reason that a page sees for a completed run, by its reason; any other, such as a reason that `stop_when`
# gave, is `other`.
_FINISH_REASONS = {None: "stop", "finished": "stop", "length": "length", "content_filter": "content-filter"}


@dataclass(slots=True)
class _Call:
    """A call as the message shows it so far. `step` is the step that made it; a child's call has none.

    `given` is what the model wrote, `input` what the client was shown. A call that was asked about is `decided` once
    the client knows the outcome.
    """

    name: str
    step: str | None
    pieces: list[str] = field(default_factory=list[str])
    given: JSON = None
    input: JSON = None
    has_input: bool = False
    approval_id: str | None = None
    decided: bool = False
    done: bool = False


class UIStream:
    """Translates one answer. `runs_here` tells whether the server, rather than the client, runs a tool."""

    def __init__(self, *, runs_here: Callable[[str], bool] = lambda _: True, version: Version = 6) -> None:
        self._runs_here = runs_here
        self._version: Version = version
        self._calls: dict[ToolCallId, _Call] = {}
        self._below: dict[ToolCallId, tuple[str, JSON]] = {}
        self._step: str | None = None
        self._step_is_open = False
        self._step_of_children = False
        self._text: str | None = None
        self._reasoning: str | None = None
        self._blocks = 0
        self._shown: list[int] = []
        self._sources: list[str] = []

    # -- what was committed

    def message(self, message: AssistantMessage, place: str, rows: Sequence[PendingCall] = ()) -> list[UIPart]:
        """A reply of the transcript, and what its calls wait or waited for; `place` names its step if the reply itself
        does not."""
        step = message.id or place
        parts: list[UIPart] = []
        for said in in_spoken_order(message):
            parts += self._enter(step, 0)
            match said:
                case Thinking(text=thought):
                    parts += self._think(thought, ends=True)
                case ProviderCall():
                    parts += self._whole_provider_call(said)
                case str():
                    parts += self._say(said)
        for source in message.sources:
            parts += self._refer_to(source)
        apart = self.apart(rows)
        for call in message.tool_calls:
            if call.id in apart:
                parts += self._enter(step, 0)
                parts += self._whole_call(call)
        parts += [part for row in rows if row.tool_call_id in apart for part in self.waits(row, below=False)]
        if apart:
            parts += [*self._end_blocks(), {"type": "finish-step"}, {"type": "start-step"}]
        for call in message.tool_calls:
            parts += self._enter(step, 0)
            parts += self._whole_call(call)
        parts += self._leave_step()
        return parts + [part for row in rows if row.tool_call_id not in apart for part in self.waits(row, below=False)]

    def result(self, result: ToolMessage) -> list[UIPart]:
        """A result of the transcript, or one that is held while its step waits for an answer."""
        if result.error:
            return self._fail(result.tool_call_id, str(result.content), result.code)
        return self._settle(result.tool_call_id, result.content)

    def waits(self, row: PendingCall, *, below: bool) -> list[UIPart]:
        """A call that waits or waited for an answer, here or in a child session, as it was shown to the user."""
        if row.approval_id is not None:
            return self._waits_for_approval(row, row.approval_id, below=below)
        if row.state in ("waiting", "expired"):
            return self._ask(row.tool_call_id, row.tool_name, row.input, below=below)
        return [*self._asked(row, below=below), *self._given(row)]

    def apart(self, rows: Iterable[PendingCall]) -> frozenset[ToolCallId]:
        """Which of the calls that are made together need a separate step: approved calls that have not started, while
        the user is asked about others.

        The older chunk set cannot express a decision. A page looks only at its last step, and would not send its
        answers to the other calls while the step has a call that is neither asked about nor done.
        """
        if self._version == 7:
            return frozenset()
        approvals = [row for row in rows if row.approval_id is not None]
        if all(row.state not in ("waiting", "expired") for row in approvals):
            return frozenset()
        return frozenset(row.tool_call_id for row in approvals if row.state == "answered" and _goes_on(row))

    def next_round(self) -> list[UIPart]:
        """What children wait for next was asked later than what they waited for before."""
        return self._leave_step() if self._step_of_children else []

    def know(self, calls: Iterable[tuple[ToolCallId, str]]) -> None:
        """Register calls that the client already shows, so that it is sent what becomes of them."""
        for call_id, name in calls:
            self._calls.setdefault(call_id, _Call(name=name, step=None, has_input=True))

    # -- what is said now

    def feed(self, chunk: StreamChunk) -> list[UIPart]:
        """The parts that one more chunk produces."""
        if chunk.parent_tool_call_id is not None:
            return self._feed_below(chunk)
        match chunk:
            case TextDelta(delta=delta):
                return [*self._at(chunk), *self._say(delta)]
            case ThinkingChunk(content=content, is_complete=ends):
                return [*self._at(chunk), *self._think(content, ends=ends)]
            case ToolArgStreamStart(tool_call_id=call_id, tool_name=name):
                return [*self._at(chunk), *self._begin_call(call_id, name)]
            case ToolArgStreamDelta(tool_call_id=call_id, delta=delta):
                return self._more_input(call_id, delta)
            case ToolArgStreamEnd(tool_call_id=call_id):
                return self._end_input(call_id)
            case ToolStart(tool_call_id=call_id, tool_name=name, arguments=given):
                opening = [] if call_id in self._calls else self._at(chunk)
                if not self._runs_here(name):
                    return [*opening, *self._ask(call_id, name, given, below=False)]
                return [*opening, *self._start(call_id, name, given)]
            case ToolApprovalRequest(tool_call_id=call_id, tool_name=name, approval_id=approval_id, input=given):
                return self._ask_approval(call_id, name, given, approval_id, below=False)
            case ToolEnd(tool_call_id=call_id, result=result):
                return self._settle(call_id, result)
            case ToolError(tool_call_id=call_id, error=error, code=code):
                return self._fail(call_id, error, code)
            case ProviderToolStart(tool_call_id=call_id, tool_name=name):
                return [*self._at(chunk), *self._begin_provider_call(call_id, name)]
            case ProviderToolInput(tool_call_id=call_id, tool_name=name, arguments=given):
                return self._provider_input(call_id, name, given)
            case ProviderToolEnd(tool_call_id=call_id, result=result, error=failed):
                return self._end_provider_call(call_id, result, failed=failed)
            case SourceChunk():
                return self._refer_to(chunk)
            case StepCommitted(taken=taken):
                return [*self._leave_step(), *(part for each in taken for part in self.taken(each))]
            case RunStarted(taken=taken) | RunResumed(taken=taken):
                return [part for each in taken for part in self.taken(each)]
            case StepDiscarded(from_sequence=first, to_sequence=last):
                return self._discard(first, last)
            case _:
                return self._aside(chunk)

    def taken(self, message: UserMessage) -> list[UIPart]:
        """A message that the run took in; it stays where the answer was when it did."""
        if message.hidden:
            return []
        said = user_message(message, "")
        return [*self._leave_step(), {"type": "data-steered", "id": said["id"], "data": said}]

    def finish(self, how: Literal["completed", "suspended", "interrupted"], reason: str | None = None) -> list[UIPart]:
        """The answer ends here, or waits for the user; `reason` says why."""
        parts = self._leave_step()
        if how == "completed":
            return [*parts, {"type": "finish", "finishReason": _FINISH_REASONS.get(reason, "other")}]
        if how == "suspended":
            return [*parts, {"type": "finish", "finishReason": "tool-calls"}]
        abort = {"type": "abort"} if reason is None else {"type": "abort", "reason": reason}
        finished = "other" if self._version == 6 else "interrupted"
        return [*parts, abort, {"type": "finish", "finishReason": finished}]

    def fail(self, code: str, *, retryable: bool = False) -> list[UIPart]:
        """The answer broke, or the way to it: the user gets a sentence, the page gets the code."""
        told = {"type": "data-error", "data": {"code": code, "retryable": retryable}, "transient": True}
        error = {"type": "error", "errorText": sentence_for(code)}
        return [*self._leave_step(), told, error, {"type": "finish", "finishReason": "error"}]

    # -- steps

    def _at(self, chunk: StreamChunk) -> list[UIPart]:
        return self._enter(f"{chunk.run_id}.{chunk.step}", chunk.sequence)

    def _enter(self, step: str, sequence: int) -> list[UIPart]:
        self._shown.append(sequence)
        if self._step == step:
            return []
        left = self._leave_step()
        self._step, self._step_is_open, self._blocks, self._shown = step, True, 0, [sequence]
        self._sources = []
        return [*left, {"type": "start-step"}]

    def _leave_step(self) -> list[UIPart]:
        ended = self._end_blocks()
        if not self._step_is_open:
            return ended
        self._step_is_open = self._step_of_children = False
        return [*ended, {"type": "finish-step"}]

    def _end_blocks(self) -> list[UIPart]:
        parts: list[UIPart] = []
        if self._reasoning is not None:
            parts.append({"type": "reasoning-end", "id": self._reasoning})
        if self._text is not None:
            parts.append({"type": "text-end", "id": self._text})
        self._reasoning = self._text = None
        return parts

    def _discard(self, first: int, last: int) -> list[UIPart]:
        """The current step never happened. Clients that can take its parts back are told to do so; others are told that
        the parts are void, and see the step again as the next one."""
        if not any(first <= sequence <= last for sequence in self._shown):
            return []
        ended = self._end_blocks()
        made = [call_id for call_id, call in self._calls.items() if call.step == self._step]
        open_calls = [call_id for call_id in made if not self._calls[call_id].done]
        for call_id in made:
            del self._calls[call_id]
        self._shown, self._sources = [], []
        if self._version == 7:
            return [*ended, {"type": "reset-step"}]
        void = [{"type": "tool-output-error", "toolCallId": call_id, "errorText": TAKEN_BACK} for call_id in open_calls]
        told = {"type": "data-step-discarded", "data": {"toolCallIds": made}, "transient": True}
        parts = [*ended, *void, told, *self._leave_step()]
        self._step = None
        return parts

    # -- text and reasoning: one text for each step, as the transcript has it

    def _say(self, delta: str) -> list[UIPart]:
        parts: list[UIPart] = []
        if self._reasoning is not None:
            parts.append({"type": "reasoning-end", "id": self._reasoning})
            self._reasoning = None
        if self._text is None:
            self._text = f"{self._step}:text"
            parts.append({"type": "text-start", "id": self._text})
        return [*parts, {"type": "text-delta", "id": self._text, "delta": delta}]

    def _think(self, content: str, *, ends: bool) -> list[UIPart]:
        parts: list[UIPart] = []
        if self._reasoning is None:
            self._blocks += 1
            self._reasoning = f"{self._step}:reasoning-{self._blocks}"
            parts.append({"type": "reasoning-start", "id": self._reasoning})
        if content:
            parts.append({"type": "reasoning-delta", "id": self._reasoning, "delta": content})
        if ends:
            parts.append({"type": "reasoning-end", "id": self._reasoning})
            self._reasoning = None
        return parts

    # -- what the provider does itself

    def _begin_provider_call(self, call_id: ToolCallId, name: str) -> list[UIPart]:
        ended = [] if self._reasoning is None else [{"type": "reasoning-end", "id": self._reasoning}]
        self._reasoning = None
        self._calls[call_id] = _Call(name=name, step=self._step)
        start = {"type": "tool-input-start", "toolCallId": call_id, "toolName": name}
        return [*ended, {**start, **_BY_PROVIDER}]

    def _provider_input(self, call_id: ToolCallId, name: str, given: JSON) -> list[UIPart]:
        call = self._calls.get(call_id)
        if call is None or call.has_input:
            return []
        call.has_input = True
        told = {"type": "tool-input-available", "toolCallId": call_id, "toolName": name, "input": given}
        return [{**told, **_BY_PROVIDER}]

    def _end_provider_call(self, call_id: ToolCallId, result: JSON, *, failed: bool) -> list[UIPart]:
        call = self._calls.get(call_id)
        if call is None or call.done:
            return []
        given = self._provider_input(call_id, call.name, {})
        call.done = True
        if failed:
            told = {"type": "tool-output-error", "toolCallId": call_id, "errorText": as_text(result)}
        else:
            told = {"type": "tool-output-available", "toolCallId": call_id, "output": result}
        return [*given, {**told, **_BY_PROVIDER}]

    def _whole_provider_call(self, made: ProviderCall) -> list[UIPart]:
        if made.id in self._calls:
            return []
        return [
            *self._begin_provider_call(made.id, made.name),
            *self._provider_input(made.id, made.name, made.arguments),
            *self._end_provider_call(made.id, made.result, failed=made.error),
        ]

    def _refer_to(self, source: Source | SourceChunk) -> list[UIPart]:
        """Something that the text refers to, once for each step however often the text does."""
        key = source.url or source.document_id or source.title
        if key is None or key in self._sources:
            return []
        self._sources.append(key)
        part: UIPart = {"sourceId": f"{self._step}:source-{len(self._sources)}"}
        if source.title is not None:
            part["title"] = source.title
        if source.url is not None:
            return [{"type": "source-url", **part, "url": source.url}]
        return [{"type": "source-document", "title": key, **part, "mediaType": "application/octet-stream"}]

    # -- calls

    def _begin_call(self, call_id: ToolCallId, name: str, *, runs_here: bool | None = None) -> list[UIPart]:
        self._calls[call_id] = _Call(name=name, step=self._step)
        if name == FINISH_TOOL:
            return []
        return [self._about({"type": "tool-input-start", "toolCallId": call_id, "toolName": name}, runs_here)]

    def _more_input(self, call_id: ToolCallId, delta: str) -> list[UIPart]:
        call = self._calls.get(call_id)
        if call is None or call.has_input:
            return []
        call.pieces.append(delta)
        if call.name == FINISH_TOOL:
            return []
        return [{"type": "tool-input-delta", "toolCallId": call_id, "inputTextDelta": delta}]

    def _end_input(self, call_id: ToolCallId) -> list[UIPart]:
        call = self._calls.get(call_id)
        if call is None or call.has_input:
            return []
        call.given = _parsed("".join(call.pieces))
        return self._show_given(call_id, call)

    def _whole_call(self, made: ToolCall) -> list[UIPart]:
        if made.id in self._calls:
            return []
        begun = self._begin_call(made.id, made.name)
        call = self._calls[made.id]
        call.given = made.arguments
        return self._show_given(made.id, call) or begun

    def _show_given(self, call_id: ToolCallId, call: _Call) -> list[UIPart]:
        """Show what the model wrote as the input, unless the input is still to come: arguments that are not an object
        are about to be refused, and a client must not start its tools before a run waits for their results."""
        if (
            isinstance(call.given, str)
            or call.given is None
            or not (call.name == FINISH_TOOL or self._runs_here(call.name))
        ):
            return []
        return self._set_input(call_id, call, call.given)

    def _start(self, call_id: ToolCallId, name: str, given: JSON) -> list[UIPart]:
        call = self._calls.setdefault(call_id, _Call(name=name, step=self._step))
        return [] if call.has_input else self._set_input(call_id, call, given)

    def _ask(self, call_id: ToolCallId, name: str, given: JSON, *, below: bool) -> list[UIPart]:
        """Show the client a call that it has to run, with the validated input."""
        opening = self._begin_step_below(call_id, below=below)
        call = self._calls.setdefault(call_id, _Call(name=name, step=None if below else self._step))
        return [] if call.done else [*opening, *self._set_input(call_id, call, given, runs_here=False)]

    def _asked(self, row: PendingCall, *, below: bool) -> list[UIPart]:
        """Show a call that was answered. Its input is sent in pieces, because a whole input would make the client run
        it."""
        begun = self._begin_step_below(row.tool_call_id, below=below)
        if row.tool_call_id not in self._calls:
            begun += self._begin_call(row.tool_call_id, row.tool_name, runs_here=False)
        call = self._calls[row.tool_call_id]
        if call.has_input:
            return begun
        call.has_input, call.input = True, row.input
        text = encode(row.input).decode()
        return [*begun, {"type": "tool-input-delta", "toolCallId": row.tool_call_id, "inputTextDelta": text}]

    def _ask_approval(
        self, call_id: ToolCallId, name: str, given: JSON, approval_id: str, *, below: bool
    ) -> list[UIPart]:
        opening = self._begin_step_below(call_id, below=below)
        call = self._calls.setdefault(call_id, _Call(name=name, step=None if below else self._step))
        if call.done or call.approval_id == approval_id:
            return []
        call.approval_id = approval_id
        asked = {"type": "tool-approval-request", "approvalId": approval_id, "toolCallId": call_id}
        return [*opening, *self._set_input(call_id, call, given, runs_here=True), asked]

    def _waits_for_approval(self, row: PendingCall, approval_id: str, *, below: bool) -> list[UIPart]:
        """Show a call that was asked about, together with the decision. If no decision was made, or the client cannot
        be told, the call is shown without the question once the question is settled."""
        call_id, decision = row.tool_call_id, decision_on(row)
        is_open = row.state in ("waiting", "expired")
        if not is_open and (decision is None or (decision.approved and self._version == 6)):
            return [*self._unasked(row, approval_id, below=below), *self._given(row)]
        asked = self._ask_approval(call_id, row.tool_name, row.input, approval_id, below=below)
        if not asked or is_open or decision is None:
            return asked
        if self._version == 7:
            return [*asked, *self._decided(call_id, approved=decision.approved, reason=decision.reason)]
        return [*asked, *self._fail(call_id, DENIAL, NOT_APPROVED)]

    def _unasked(self, row: PendingCall, approval_id: str, *, below: bool) -> list[UIPart]:
        opening = self._begin_step_below(row.tool_call_id, below=below)
        step = None if below else self._step
        call = self._calls.setdefault(row.tool_call_id, _Call(name=row.tool_name, step=step))
        call.approval_id, call.decided = approval_id, True
        return [*opening, *self._set_input(row.tool_call_id, call, row.input, runs_here=True)]

    def _decided(self, call_id: ToolCallId, *, approved: bool, reason: str | None) -> list[UIPart]:
        """The decision about a call that the client was asked about, if the client does not know it and can be told."""
        call = self._calls[call_id]
        if self._version == 6 or call.approval_id is None or call.decided:
            return []
        call.decided = True
        told: UIPart = {"type": "tool-approval-response", "approvalId": call.approval_id, "approved": approved}
        return [{**told, "reason": reason} if reason else told]

    def _given(self, row: PendingCall) -> list[UIPart]:
        """The result that was given to a call, before a run takes it into account. A page continues by itself when
        every call of a step has its result, including this one."""
        if row.state != "answered" or not isinstance(row.answer, ToolAnswer):
            return []
        return self.result(answered_message(row, row.answer))

    def _begin_step_below(self, call_id: ToolCallId, *, below: bool) -> list[UIPart]:
        """Start a step for the calls that children wait for at the same time, unless it has started.

        A page sends its answers when every call of the last step has one, and the call that delegated to a child has
        none before the child ends.
        """
        if not below or call_id in self._calls or self._step_of_children:
            return []
        left = self._leave_step()
        self._step_is_open = self._step_of_children = True
        return [*left, {"type": "start-step"}]

    def _set_input(
        self, call_id: ToolCallId, call: _Call, given: JSON, *, runs_here: bool | None = None
    ) -> list[UIPart]:
        if call.has_input and call.input == given:
            return []
        call.has_input, call.input = True, given
        if call.name == FINISH_TOOL:
            return []
        return [self._about(_whole_input(call_id, call.name, given), runs_here)]

    def _about(self, part: UIPart, runs_here: bool | None = None) -> UIPart:
        """Clients answer only what they have to run themselves, so all other calls are marked as the server's."""
        if runs_here if runs_here is not None else self._runs_here(part["toolName"]):
            part["providerExecuted"] = True
        return part

    def _settle(self, call_id: ToolCallId, result: JSON) -> list[UIPart]:
        call = self._calls.get(call_id)
        if call is None or call.done:
            return []
        call.done = True
        if call.name == FINISH_TOOL:
            return [{"type": "data-output", "id": "output", "data": call.input}]
        shown = [] if call.has_input else self._set_input(call_id, call, call.given)
        return [*shown, {"type": "tool-output-available", "toolCallId": call_id, "output": result}]

    def _fail(self, call_id: ToolCallId, error: str, code: str | None) -> list[UIPart]:
        call = self._calls.get(call_id)
        if call is None or call.done:
            return []
        call.done = True
        if call.name == FINISH_TOOL:
            return []
        if code == NOT_APPROVED:
            reason = error.removeprefix(DENIAL).removeprefix(": ")
            decided = self._decided(call_id, approved=False, reason=reason)
            return [*decided, {"type": "tool-output-denied", "toolCallId": call_id}]
        if not call.has_input:
            about = {"type": "tool-input-error", "toolCallId": call_id, "toolName": call.name}
            return [self._about({**about, "input": call.given, "errorText": error})]
        return [{"type": "tool-output-error", "toolCallId": call_id, "errorText": error}]

    # -- what is no part of the message

    def _feed_below(self, chunk: StreamChunk) -> list[UIPart]:
        """Of a child's work, the page shows only what waits for the user; the native stream has all of it."""
        match chunk:
            case ToolStart(tool_call_id=call_id, tool_name=name, arguments=given):
                self._below[call_id] = (name, given)
                return []
            case ToolApprovalRequest(tool_call_id=call_id, tool_name=name, approval_id=approval_id, input=given):
                return self._ask_approval(call_id, name, given, approval_id, below=True)
            case ToolEnd(tool_call_id=call_id, result=result):
                return self._settle(call_id, result)
            case ToolError(tool_call_id=call_id, error=error, code=code):
                return self._fail(call_id, error, code)
            case RunPaused(tool_call_ids=waiting) if waiting:
                known = ((call_id, *self._below[call_id]) for call_id in waiting if call_id in self._below)
                return [part for call_id, name, given in known for part in self._ask(call_id, name, given, below=True)]
            case _:
                return self._aside(chunk)

    def _aside(self, chunk: StreamChunk) -> list[UIPart]:
        """Transient events: pages receive them, but messages do not keep them."""
        match chunk:
            case Custom(name=name, data=data):
                return [{"type": f"data-{name}", "data": data, "transient": True}]
            case StatePatch(patch=patch) if chunk.parent_tool_call_id is None:
                return [{"type": "data-state-patch", "data": patch, "transient": True}]
            case SubagentStart(tool_call_id=call_id, child_agent_type=agent):
                told = {"toolCallId": call_id, "agent": agent, "status": "running"}
                return [{"type": "data-subagent", "data": told, "transient": True}]
            case SubagentEnd(tool_call_id=call_id, child_agent_type=agent, status=status):
                told = {"toolCallId": call_id, "agent": agent, "status": status}
                return [{"type": "data-subagent", "data": told, "transient": True}]
            case _:
                return []


def _goes_on(row: PendingCall) -> bool:
    """Whether an answered call is still to run."""
    decision = decision_on(row)
    return not isinstance(row.answer, ToolAnswer) and (decision is None or decision.approved)


def _whole_input(call_id: ToolCallId, name: str, given: JSON) -> UIPart:
    return {"type": "tool-input-available", "toolCallId": call_id, "toolName": name, "input": given}


def _parsed(text: str) -> JSON:
    """The arguments as an object, or as the original text."""
    try:
        value = decode_json(text)
    except SessionCorruptError:
        return text
    return cast("JSON", value) if isinstance(value, dict) else text
