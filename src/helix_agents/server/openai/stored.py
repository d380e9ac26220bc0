"""Responses as they are stored: a session is a conversation, each of its runs a response, and nothing else is kept.

What a response said and did is read from the transcript. What was asked, and by which run, is read from the rows of
pending calls. What a run was given is read from the messages that came with it.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count
from typing import Any

import msgspec

from helix_agents.domain.ids import RunId, SessionId, ToolCallId
from helix_agents.domain.messages import (
    HELD_SINCE,
    AssistantMessage,
    ProviderCall,
    StoredMessage,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
    in_spoken_order,
)
from helix_agents.domain.paging import MAX_LIMIT, whole_list
from helix_agents.domain.pending import ApprovalAnswer, PendingCall, PendingFilter, ToolAnswer
from helix_agents.domain.queued import QueuedTurn, asks_for_a_turn
from helix_agents.domain.records import JSON
from helix_agents.domain.runs import SUSPENDED, RunRecord
from helix_agents.domain.sessions import SessionState, SessionSummary
from helix_agents.domain.usage import TokenCount, UsageFilter
from helix_agents.engine.steps.corrections import replies_that_count
from helix_agents.engine.steps.step_work import CANCELLED
from helix_agents.ports.llm import FINISH_TOOL
from helix_agents.runtimes.executor.hosting import AgentExecutor
from helix_agents.server.chat.turns import ALL_STATES, AT_THE_CLIENT
from helix_agents.server.errors import sentence_for
from helix_agents.server.openai.backwards import Backwards
from helix_agents.server.openai.events import KnownCall
from helix_agents.server.openai.items import (
    Item,
    annotation,
    approval_item,
    function_call_item,
    input_message_item,
    message_id,
    message_item,
    output_id,
    provider_call_item,
    reasoning_id,
    reasoning_item,
    tool_call_id,
    tool_call_item,
)
from helix_agents.server.wire import as_text

NOTE = "response"
"""The metadata key in a user's message under which the sender's notes about the response are stored."""

_RESPONSE = "resp_"
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
# The failure reasons of a model that OpenAI's clients know; to them, any other reason is a server error.
_CODES = {"provider_rate_limited": "rate_limit_exceeded", "context_too_long": "invalid_prompt"}


def response_id(session_id: SessionId, run_id: RunId) -> str:
    """The public id of a run, which contains all that is needed to find it again."""
    return f"{_RESPONSE}{run_id}.{session_id}"


def place_of(given: str) -> tuple[SessionId, RunId] | None:
    """The session and the run that a response's id names; None if it is not one of our ids."""
    run_id, dot, session_id = given.removeprefix(_RESPONSE).partition(".")
    return (session_id, run_id) if given.startswith(_RESPONSE) and run_id and dot and session_id else None


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """A session at one moment, as the responses it consists of, as far back as one of them needs; everything is in
    chronological order.

    `runs`, `stored` and `rows` are the latest ones, without a gap; `total_runs` counts all of them. The rows include
    everything that waits for an answer, however old it is.
    """

    session: SessionState | SessionSummary
    runs: tuple[RunRecord, ...]
    total_runs: int
    queued: tuple[QueuedTurn, ...]
    stored: tuple[StoredMessage, ...]
    held: tuple[ToolMessage, ...]
    rows: tuple[PendingCall, ...]
    client_tools: frozenset[str]

    @property
    def session_id(self) -> SessionId:
        return self.session.session_id

    @property
    def current(self) -> RunRecord | None:
        return self.runs[-1] if self.runs else None

    def run(self, run_id: RunId) -> RunRecord | None:
        return next((run for run in self.runs if run.run_id == run_id), None)

    def waiting_turn(self, run_id: RunId) -> QueuedTurn | None:
        return next((turn for turn in self.queued if turn.run_id == run_id), None)

    def has(self, run_id: RunId) -> bool:
        """Whether there is such a response; a response that the session was rewound past no longer exists."""
        run = self.run(run_id)
        if run is None:
            return self.waiting_turn(run_id) is not None
        return run.status != "completed" or any(True for _ in self._replies(run))

    def waits_with(self, key: str) -> RunId | None:
        """The run that a message with this id will start, if the message is queued."""
        waiting = (turn for turn in self.queued if any(message.id == key for message in turn.messages))
        return next((turn.run_id for turn in waiting), None)

    def after(self, run: RunRecord) -> RunRecord | None:
        """The run that continued what this one left."""
        return next((each for each in self.runs if each.previous_run_id == run.run_id), None)

    def is_at_client(self, name: str) -> bool:
        return name in self.client_tools

    def calls_before(self, run: RunRecord) -> dict[ToolCallId, KnownCall]:
        """The calls that earlier runs made, for a run that continues them."""
        return {
            call.id: KnownCall(name=call.name, arguments=call.arguments, approval_id=self._approval_of(call.id))
            for each in self.stored
            if isinstance(each.message, AssistantMessage) and not _is_of(each.message, run)
            for call in each.message.tool_calls
        }

    # -- what came out

    def output(self, run: RunRecord) -> list[Item]:
        """The items of a response, in the order in which they come in its stream."""
        replies = list(self._replies(run))
        items = list(self._taken_up(run))
        for reply in replies:
            items += self._said(reply)
            items += [self._tool_call(call, run, run) for call in reply.tool_calls if self._runs_here(call, run)]
        items += [self._asked(row) for row in self._rows_of(run)]
        if run.output is not None and run.status == "completed" and not (replies and replies[-1].text == run.output):
            items.append(message_item(output_id(run.run_id), as_text(run.output)))
        return items

    def _replies(self, run: RunRecord) -> Iterator[AssistantMessage]:
        return (each for each in replies_that_count([each.message for each in self.stored]) if _is_of(each, run))

    def _said(self, reply: AssistantMessage) -> Iterator[Item]:
        step = reply.id or ""
        number = count(1)
        for said in in_spoken_order(reply):
            match said:
                case Thinking(text=thought):
                    yield reasoning_item(reasoning_id(step, next(number)), thought)
                case ProviderCall():
                    yield provider_call_item(said, self.session.agent_type)
                case str():
                    sources = (annotation(each, said) for each in reply.sources)
                    status = "incomplete" if reply.interrupted else "completed"
                    yield message_item(message_id(step), said, status, sources)

    def _runs_here(self, call: ToolCall, run: RunRecord) -> bool:
        """Whether a call was carried out in the run that made it, as far as that is known. If the client was asked
        about the call first, it sees the question instead."""
        if call.name == FINISH_TOOL or self.is_at_client(call.name):
            return False
        asked = any(row.tool_call_id == call.id and row.session_id == self.session_id for row in self._rows_of(run))
        return not asked

    def _taken_up(self, run: RunRecord) -> Iterator[Item]:
        """Calls that an earlier run left open and that this one carried out."""
        for each in self.stored:
            reply = each.message
            if not isinstance(reply, AssistantMessage) or _is_of(reply, run):
                continue
            made_in = self.run(_run_of(reply))
            for call in reply.tool_calls:
                if call.name == FINISH_TOOL or self.is_at_client(call.name) or made_in is None:
                    continue
                if self._settled_in(call, made_in) == run.run_id:
                    yield self._tool_call(call, made_in, run)

    def _settled_in(self, call: ToolCall, made_in: RunRecord) -> RunId | None:
        """The run in which a call got its result."""
        if call.id not in self._results:
            return None
        if made_in.status not in SUSPENDED:
            return made_in.run_id
        at, result = self._results[call.id]
        since = result.metadata.get(HELD_SINCE, at)
        run = self._run_at(since if isinstance(since, int) else at)
        return None if run is None else run.run_id

    def _tool_call(self, call: ToolCall, made_in: RunRecord, run: RunRecord) -> Item:
        """A call as the response of a run shows it: with its result, if that came in this run."""
        result = self._results[call.id][1] if self._settled_in(call, made_in) == run.run_id else None
        item = tool_call_item(
            tool_call_id(call.id),
            self.session.agent_type,
            call.name,
            call.arguments,
            approval_id=self._approval_of(call.id),
            status="in_progress" if run.status == "running" else "incomplete",
        )
        if result is None:
            return item
        text = as_text(result.content)
        outcome = {"status": "failed", "error": {"type": "mcp_tool_execution_error", "content": text}}
        return item | (outcome if result.error else {"status": "completed", "output": text})

    def _asked(self, row: PendingCall) -> Item:
        if row.approval_id is not None:
            return approval_item(row.approval_id, self.session.agent_type, row.tool_name, row.input)
        return function_call_item(row.tool_call_id, row.tool_name, row.input)

    def _rows_of(self, run: RunRecord) -> list[PendingCall]:
        """What was asked in a run, by the session itself or by a session below it."""
        return [row for row in self.rows if self._asking_run(row) == run.run_id]

    def _asking_run(self, row: PendingCall) -> RunId | None:
        if row.session_id == self.session_id:
            return row.run_id
        run = self._run_at(row.created_at)
        return None if run is None else run.run_id

    def _approval_of(self, call_id: ToolCallId) -> str | None:
        here = (row for row in self.rows if row.tool_call_id == call_id and row.session_id == self.session_id)
        return next((row.approval_id for row in here), None)

    @cached_property
    def _results(self) -> dict[ToolCallId, tuple[int, ToolMessage]]:
        """Results by their calls, and when each became known."""
        known = {
            each.message.tool_call_id: (each.created_at, each.message)
            for each in self.stored
            if isinstance(each.message, ToolMessage)
        }
        now = self.session.updated_at
        return {result.tool_call_id: (now, result) for result in self.held} | known

    # -- what went in

    def input(self, run_id: RunId) -> list[Item]:
        """The input of a response: answers to calls, and then messages."""
        turn = self.waiting_turn(run_id)
        if turn is not None:
            return [input_message_item(_said_id(place, each), each) for place, each in enumerate(turn.messages)]
        run = self.run(run_id)
        answered = [row for row in self.rows if row.consumed_at is not None]
        items = [_answer(row) for row in answered if self._run_at(row.consumed_at or 0) == run]
        said = self._said_in(run)
        return [item for item in items if item is not None] + [
            input_message_item(_said_id(place, each), each) for place, each in said
        ]

    def _said_in(self, run: RunRecord | None) -> list[tuple[int, UserMessage]]:
        return [
            (each.sequence, each.message)
            for each in self.stored
            if isinstance(each.message, UserMessage)
            and not each.message.hidden
            and self._run_at(each.created_at) == run
        ]

    def note(self, run: RunRecord | None) -> "_Note":
        """The notes that came with a response's message; if the response only answers calls, the notes of the turn."""
        while run is not None:
            said = [message for _, message in self._said_in(run) if asks_for_a_turn(message)]
            if said:
                return _note(said[-1])
            run = None if run.previous_run_id is None else self.run(run.previous_run_id)
        return _Note()

    def _run_at(self, at: int) -> RunRecord | None:
        """The run that was current in the session at a time; None before the first run, as in the past of a branch."""
        place = bisect_right(self._started, at)
        return self.runs[place - 1] if place else None

    @cached_property
    def _started(self) -> list[int]:
        return [run.started_at for run in self.runs]


async def read_conversation(
    executor: AgentExecutor,
    session: SessionState | SessionSummary,
    run_id: RunId | None = None,
    *,
    all_rows: bool = False,
) -> Conversation:
    """The session as far back as this response, or the latest one, needs; with `all_rows`, everything ever asked.

    The states of the runs are read first, so that everything they had said by then is found.
    """
    sessions, session_id = executor.sessions, session.session_id
    queued = await sessions.queued(session_id)
    runs = Backwards(partial(sessions.runs, session_id))
    messages = Backwards(partial(sessions.messages, session_id))
    where = PendingFilter(root_session_id=session_id, states=ALL_STATES)
    rows = Backwards(partial(executor.list_pending, where))
    is_queued = any(turn.run_id == run_id for turn in queued)
    named = await runs.until(lambda each: is_queued or run_id in (None, each.run_id))
    stored: list[StoredMessage] = []
    asked: list[PendingCall] = []
    if named is not None:
        first = await _first_of_the_step(runs, named)
        is_older = _asked_before(runs, first)
        asked = await rows.newer_than(lambda row: not all_rows and is_older(row))
        stored = await _said_since(messages, runs, first)
    if not rows.is_whole:
        still = msgspec.structs.replace(where, states=("waiting",))
        waiting = await whole_list(lambda offset: executor.list_pending(still, offset=offset, limit=MAX_LIMIT))
        asked = [*asked, *(row for row in waiting if row not in asked)]
    waits = bool(runs.items) and runs.items[0].status in SUSPENDED
    tools = [tool for agent in executor.agents.speakers_of(session.agent_type) for tool in agent.all_tools]
    return Conversation(
        session=session,
        runs=tuple(reversed(runs.items)),
        total_runs=runs.total or 0,
        queued=queued,
        stored=tuple(reversed(stored)),
        held=await sessions.held(session_id) if waits else (),
        rows=tuple(sorted(asked, key=lambda row: (row.created_at, row.tool_call_id))),
        client_tools=frozenset(tool.name for tool in tools if tool.kind in AT_THE_CLIENT),
    )


async def _before(runs: Backwards[RunRecord], run: RunRecord) -> RunRecord | None:
    if run.previous_run_id is None:
        return None
    return await runs.until(lambda each: each.run_id == run.previous_run_id)


async def _first_of_the_step(runs: Backwards[RunRecord], run: RunRecord) -> RunRecord:
    """The run that made the calls which this one, and perhaps others before it, continued."""
    while (before := await _before(runs, run)) is not None and before.status in SUSPENDED:
        run = before
    return run


def _known(runs: Backwards[RunRecord], first: RunRecord) -> frozenset[RunId]:
    """The runs from this one on."""
    return frozenset(run.run_id for run in runs.items[: runs.items.index(first) + 1])


async def _said_since(
    messages: Backwards[StoredMessage], runs: Backwards[RunRecord], first: RunRecord
) -> list[StoredMessage]:
    """The messages of a run and of everything that followed it, back to the last user message before them, which holds
    the notes about the response."""
    while True:
        found = await messages.newer_than(partial(_is_reply_of_others, _known(runs, first)))
        has_user = any(asks_for_a_turn(each.message) for each in found)
        before = None if has_user else await _before(runs, first)
        if before is None:
            return found
        first = before


def _is_reply_of_others(known: frozenset[RunId], each: StoredMessage) -> bool:
    """Whether a run other than these said it. Replies name their runs, so no two clocks are compared."""
    return isinstance(each.message, AssistantMessage) and _run_of(each.message) not in known


def _asked_before(runs: Backwards[RunRecord], first: RunRecord) -> Callable[[PendingCall], bool]:
    """Whether a call was asked before a run started; for a session below, only the time can tell."""
    known = _known(runs, first)

    def is_older(row: PendingCall) -> bool:
        return row.run_id not in known if row.session_id == first.session_id else row.created_at < first.started_at

    return is_older


async def run_said_with(executor: AgentExecutor, conversation: Conversation, key: str) -> RunId | None:
    """The run that a message with this id started, or will start, however long ago it was sent."""
    waiting = conversation.waits_with(key)
    if waiting is not None:
        return waiting
    sessions, session_id = executor.sessions, conversation.session_id
    messages = Backwards(partial(sessions.messages, session_id))
    said = await messages.until(lambda each: isinstance(each.message, UserMessage) and each.message.id == key)
    if said is None:
        return None
    runs = Backwards(partial(sessions.runs, session_id))
    run = await runs.until(lambda each: each.started_at <= said.created_at)
    return None if run is None else run.run_id


def status_of(run: RunRecord | None) -> str:
    """The status of a response; a response without a run waits for its turn. A run that waits for an answer has said
    all it can: what follows the answer is another response."""
    if run is None:
        return "queued"
    if run.status == "running":
        return "in_progress"
    if run.status in SUSPENDED:
        return "completed"
    if run.status == "completed":
        return "incomplete" if run.completion_reason in _INCOMPLETE else "completed"
    return "cancelled" if run.status == "interrupted" or run.completion_reason == CANCELLED else "failed"


async def response_of(
    executor: AgentExecutor, conversation: Conversation, run_id: RunId, *, begins: bool = False
) -> dict[str, Any]:
    """A response in its current state, or as it was at its start if that is wanted."""
    run, turn = conversation.run(run_id), conversation.waiting_turn(run_id)
    note = _note(turn.messages[-1]) if turn is not None else conversation.note(run)
    ended = None if begins or run is None or run.status == "running" else run
    status = ("queued" if run is None else "in_progress") if begins else status_of(run)
    began = run.started_at if run is not None else turn.queued_at if turn is not None else 0
    reason = run.completion_reason if run is not None else None
    before = run.previous_run_id if run is not None else None
    previous = None if before is None else response_id(conversation.session_id, before)
    return {
        "id": response_id(conversation.session_id, run_id),
        "object": "response",
        "created_at": began / 1000,
        "completed_at": None if ended is None or ended.ended_at is None else ended.ended_at / 1000,
        "status": status,
        "error": _error(reason) if status == "failed" else None,
        "incomplete_details": {"reason": _INCOMPLETE[reason or ""]} if status == "incomplete" else None,
        "model": conversation.session.agent_type,
        "conversation": {"id": conversation.session_id},
        "previous_response_id": note.previous_response_id or previous,
        "metadata": note.metadata,
        "output": [] if run is None or begins else conversation.output(run),
        "usage": await _usage(executor, conversation.session_id, ended) if ended is not None else None,
        "background": None,
        "instructions": None,
        "max_output_tokens": None,
        "parallel_tool_calls": True,
        "reasoning": {"effort": None, "summary": None},
        "store": True,
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "truncation": "disabled",
    }


async def _usage(executor: AgentExecutor, session_id: SessionId, run: RunRecord) -> dict[str, Any]:
    """What a run used, together with everything that worked for it in that time. Its own usage is found by its id,
    which tells two runs apart that meet in one millisecond."""
    tokens = await _tokens(executor, UsageFilter(run_id=run.run_id))
    if await executor.sessions.delegations(session_id):
        times: dict[str, Any] = {"recorded_from": run.started_at, "recorded_to": run.ended_at}
        everything = await _tokens(executor, UsageFilter(root_session_id=session_id, **times))
        itself = await _tokens(executor, UsageFilter(session_id=session_id, **times))
        tokens += everything - itself
    return {
        "input_tokens": tokens.prompt,
        "input_tokens_details": {"cached_tokens": tokens.cached, "cache_write_tokens": 0},
        "output_tokens": tokens.completion,
        "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
        "total_tokens": tokens.total,
    }


async def _tokens(executor: AgentExecutor, where: UsageFilter) -> TokenCount:
    days = await executor.usage_by_day(msgspec.structs.replace(where, source_type="tokens"))
    return sum((day.tokens for day in days), TokenCount())


def _error(reason: str | None) -> dict[str, str]:
    reason = reason or "failed"
    return {"code": _CODES.get(reason, "server_error"), "message": f"{sentence_for(reason)} ({reason})"}


def _run_of(reply: AssistantMessage) -> RunId:
    return (reply.id or "").rpartition(".")[0]


def _is_of(reply: AssistantMessage, run: RunRecord) -> bool:
    return _run_of(reply) == run.run_id


def _said_id(place: int, message: UserMessage) -> str:
    return message.id or f"user_{place}"


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    """What the sender of a message noted about its response. On other routes, a message may have any metadata."""

    metadata: dict[str, str] = {}
    previous_response_id: str | None = None


def _note(message: UserMessage) -> _Note:
    try:
        return msgspec.convert(message.metadata.get(NOTE, {}), _Note)
    except msgspec.ValidationError:
        return _Note()


def _answer(row: PendingCall) -> Item | None:
    match row.answer:
        case ApprovalAnswer(approved=approved, reason=reason):
            told = {"type": "mcp_approval_response", "id": f"mcpr_{row.tool_call_id}"}
            return {**told, "approval_request_id": row.approval_id, "approve": approved, "reason": reason}
        case ToolAnswer(result=result, error=error):
            output: JSON = result if error is None else error
            told = {"type": "function_call_output", "id": f"fco_{row.tool_call_id}", "call_id": row.tool_call_id}
            return {**told, "output": as_text(output), "status": "completed"}
        case _:
            return None
