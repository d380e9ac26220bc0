"""Tasks, read from the store: a task is a user message and everything that followed from it until the next one.

Nothing is stored for a task. So it has the same state for every client and in every process, continues when a call is
answered in the console, and exists for conversations that started elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

from helix_agents.domain.chunks import StreamChunk, TextDelta
from helix_agents.domain.errors import SessionNotFoundError
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.messages import AssistantMessage, File, Image, Part, Text, UserMessage
from helix_agents.domain.paging import MAX_LIMIT, whole_list
from helix_agents.domain.parts import parts_of_output
from helix_agents.domain.pending import PendingCall
from helix_agents.domain.queued import QueuedTurn, was_taken_in
from helix_agents.domain.records import JSON
from helix_agents.domain.rendering import surviving
from helix_agents.domain.runs import SUSPENDED, RunRecord
from helix_agents.engine.requests.snapshot import SessionSnapshot
from helix_agents.engine.steps.corrections import replies_that_count
from helix_agents.engine.steps.step_work import CANCELLED
from helix_agents.server.a2a.errors import RPCError
from helix_agents.server.a2a.protocol import OVER, TASK_NOT_FOUND, TaskState
from helix_agents.server.calls import Call
from helix_agents.server.chat.turns import MOST_TRIES, Turn, run_of, split_turns
from helix_agents.server.errors import sentence_for

Plain: TypeAlias = dict[str, Any]
Place: TypeAlias = tuple[int, str]
"""When a task last changed, and its id; a page token names this pair."""


def task_id(session_id: SessionId, asked_id: str) -> str:
    """The id of a task, made of its context and its message, so that both can be found from it."""
    return f"{quote(session_id, safe='')}:{quote(asked_id, safe='')}"


def names_in(given: str) -> tuple[SessionId, str]:
    """The session and the message that a task's id names.

    Raises:
        RPCError: it is not the id of a task.
    """
    session_id, found, asked_id = given.partition(":")
    if not found or not session_id or not asked_id:
        raise no_such_task(given)
    return unquote(session_id), unquote(asked_id)


def no_such_task(given: str) -> RPCError:
    """The error for a task that does not exist or that belongs to another user."""
    return RPCError(TASK_NOT_FOUND, f"There is no task {given[:200]!r}.")


def queued_id(turn: QueuedTurn) -> str:
    """The id that names the task of a queued turn; a message that came without an id is named after its run."""
    return turn.messages[-1].id or turn.run_id


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task at one moment. `turn` is its place in the conversation, None while it is queued."""

    session_id: SessionId
    asked: UserMessage
    asked_id: str
    state: TaskState
    run: RunRecord | None = None
    turn: Turn | None = None
    waiting: tuple[PendingCall, ...] = ()
    partial: tuple[StreamChunk, ...] = ()
    changed_at: int = 0
    note: str | None = None

    @property
    def id(self) -> str:
        return task_id(self.session_id, self.asked_id)

    @property
    def place(self) -> "Place":
        """Its place in a listing, in which the task that changed last comes first."""
        return self.changed_at, self.id

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    @property
    def rests(self) -> bool:
        """Whether nothing more happens by itself: the task is over, or needs input."""
        return self.is_over or self.state == "TASK_STATE_INPUT_REQUIRED"

    @property
    def is_held(self) -> bool:
        """Whether it waits behind a task that needs input."""
        return self.state == "TASK_STATE_SUBMITTED" and self.note is not None

    def taken_back(self) -> "Task":
        """The task as it is reported once after it was taken out of the queue; it is no longer stored."""
        return replace(self, state="TASK_STATE_CANCELED", note="This was taken back before its turn came.")

    def shown(self, *, history: int | None = None, artifacts: bool = True) -> Plain:
        """The task as its client reads it."""
        task: Plain = {"id": self.id, "contextId": self.session_id, "status": self.status()}
        if artifacts and (made := self.artifacts()):
            task["artifacts"] = made
        if history != 0:
            task["history"] = [self._said()]
        return task

    def status(self) -> Plain:
        """Its state, since when, and a message about it if there is one."""
        status: Plain = {"state": self.state, "timestamp": _time(self.changed_at)}
        parts = self._told()
        if parts:
            status["message"] = {
                "messageId": f"{self.id}:{self.state.removeprefix('TASK_STATE_').lower()}",
                "contextId": self.session_id,
                "taskId": self.id,
                "role": "ROLE_AGENT",
                "parts": parts,
            }
        return status

    def artifacts(self) -> list[Plain]:
        """What the agent said, message by message, and its typed output last."""
        texts: dict[str, str] = {}
        for place, reply in enumerate(self._replies()):
            if reply.text:
                texts[reply.id or f"m{place}"] = reply.text
        for chunk in surviving(self.partial):
            if isinstance(chunk, TextDelta) and chunk.parent_tool_call_id is None:
                texts[artifact_of(chunk)] = texts.get(artifact_of(chunk), "") + chunk.delta
        return [*(text_artifact(name, text) for name, text in texts.items()), *self.output()]

    def output(self) -> list[Plain]:
        """The agent's typed output, once it exists."""
        output = self.typed_output
        if self.run is None or output is None:
            return []
        shown = [_part(part) for part in self.output_parts]
        parts = shown or [{"data": output, "mediaType": "application/json"}]
        return [{"artifactId": f"{self.run.run_id}.output", "name": "output", "parts": parts}]

    @property
    def output_parts(self) -> tuple[Part, ...]:
        """The texts, images and files that a tool made the typed output of; empty if it is something else."""
        return parts_of_output(self.typed_output, () if self.turn is None else self.turn.messages)

    @property
    def typed_output(self) -> JSON:
        """What the agent produced, if that is more than what it said last; None before it is over."""
        output = self.run.output if self.run is not None and self.state == "TASK_STATE_COMPLETED" else None
        replies = self._replies()
        return None if replies and output == replies[-1].text else output

    @property
    def last_text(self) -> str:
        """What the agent said last, in a message that is complete."""
        return next((reply.text for reply in reversed(self._replies()) if reply.text), "")

    def _replies(self) -> list[AssistantMessage]:
        return [] if self.turn is None else replies_that_count(self.turn.messages)

    def _said(self) -> Plain:
        content = self.asked.content
        parts = [{"text": content}] if isinstance(content, str) else [_part(part) for part in content]
        said = {"messageId": self.asked_id, "contextId": self.session_id, "taskId": self.id}
        return {**said, "role": "ROLE_USER", "parts": parts}

    def _told(self) -> list[Plain]:
        if self.note is not None:
            return [{"text": self.note}]
        if self.state == "TASK_STATE_INPUT_REQUIRED":
            return [part for row in self.waiting for part in _question(row)]
        if self.state == "TASK_STATE_FAILED" and self.run is not None:
            return [{"text": sentence_for(self.run.completion_reason or "failed")}]
        return []


def artifact_of(chunk: StreamChunk) -> str:
    """The id of the artifact that a chunk is a piece of; the finished message has the same id."""
    return f"{chunk.run_id}.{chunk.step}"


def text_artifact(name: str, text: str) -> Plain:
    """Something the agent said."""
    return {"artifactId": name, "name": "text", "parts": [{"text": text}]}


@dataclass(frozen=True, kw_only=True)
class Context:
    """A session at one moment, as the tasks it is made of. `unanswered` are the runs of past turns in which the agent
    said nothing, by the place of their message."""

    agent_type: str
    snapshot: SessionSnapshot
    turns: tuple[Turn, ...]
    queued: tuple[QueuedTurn, ...]
    waiting: tuple[PendingCall, ...]
    runs: dict[RunId, RunRecord]
    unanswered: dict[int, RunRecord]

    def tasks(self) -> list[Task]:
        """All tasks, newest first; queued tasks are the newest."""
        found = [task for place in range(len(self.turns)) if (task := self._of_turn(place)) is not None]
        return [*reversed([*found, *map(self._of_queued, self.queued)])]

    def find(self, asked_id: str) -> Task | None:
        """The task of a message. A message that a run took in has the task of that run's turn, under its own id."""
        found = next((task for task in self.tasks() if task.asked_id == asked_id), None)
        if found is not None:
            return found
        for place, turn in enumerate(self.turns):
            for message in turn.messages:
                if isinstance(message, UserMessage) and was_taken_in(message) and message.id == asked_id:
                    task = self._of_turn(place)
                    return None if task is None else replace(task, asked=message, asked_id=asked_id)
        return None

    def _of_turn(self, place: int) -> Task | None:
        turn = self.turns[place]
        if turn.asked is None or turn.asked_id is None:
            return None
        known: dict[str, Any] = {
            "session_id": self.snapshot.session_id,
            "asked": turn.asked,
            "asked_id": turn.asked_id,
            "turn": turn,
        }
        if place < len(self.turns) - 1:
            return _past(known, self._last_run_of(turn))
        run = self.snapshot.run
        if run is None:
            return _past(known, None)
        state = _state_of(run)
        waiting = self.waiting if state == "TASK_STATE_INPUT_REQUIRED" else ()
        partial = self.snapshot.chunks if state == "TASK_STATE_WORKING" else ()
        changed = run.ended_at or run.started_at
        return Task(**known, state=state, run=run, waiting=waiting, partial=partial, changed_at=changed)

    def _last_run_of(self, turn: Turn) -> RunRecord | None:
        """The run of the last reply; if nothing was said, the run that the message came with."""
        replies = _replies_in(turn)
        return self.runs.get(run_of(replies[-1])) if replies else self.unanswered.get(turn.first)

    def _of_queued(self, turn: QueuedTurn) -> Task:
        asked = turn.messages[-1]
        behind = self.snapshot.run
        waits_for_somebody = behind is not None and behind.status in SUSPENDED
        return Task(
            session_id=turn.session_id,
            asked=asked,
            asked_id=queued_id(turn),
            state="TASK_STATE_SUBMITTED",
            changed_at=turn.queued_at,
            note="This waits behind a task that needs input." if waits_for_somebody else None,
        )


async def read_context(call: Call, session_id: SessionId) -> Context:
    """Everything about a session's tasks.

    Raises:
        SessionNotFoundError: there is no such session, or it belongs to another user.
    """
    session = await call.session(session_id)
    sessions = call.executor.sessions
    # The order matters: a turn that starts in between has left the queue, and is in the transcript by then.
    queued = await sessions.queued(session_id)
    snapshot = await sessions.snapshot(session_id)
    turns = split_turns(snapshot.messages, snapshot.entering)
    begun = {turn.asked_id for turn in turns}
    runs = (
        ()
        if len(turns) == 1
        else await whole_list(lambda start: sessions.runs(session_id, offset=start, limit=MAX_LIMIT))
    )
    suspended = snapshot.run is not None and snapshot.run.status in SUSPENDED
    return Context(
        agent_type=session.agent_type,
        snapshot=snapshot,
        turns=tuple(turns),
        queued=tuple(turn for turn in queued if queued_id(turn) not in begun),
        waiting=await call.waiting(session_id) if suspended else (),
        runs={run.run_id: run for run in runs},
        unanswered=await _unanswered(call, snapshot, turns[:-1], runs),
    )


async def _unanswered(
    call: Call, snapshot: SessionSnapshot, turns: Sequence[Turn], runs: Sequence[RunRecord]
) -> dict[int, RunRecord]:
    """The runs that ended before they said anything: no reply names them, but each of them started when its message was
    stored."""
    found: dict[int, RunRecord] = {}
    for turn in turns:
        if not _replies_in(turn) and turn.first < len(snapshot.messages):
            stored_at = await _stored_at(call, snapshot, turn.first + 1)
            run = next((run for run in runs if run.started_at <= stored_at), None)
            found |= {} if run is None else {turn.first: run}
    return found


async def read_task(call: Call, given: str) -> tuple[Context, Task]:
    """A task of the caller, and its context.

    Raises:
        RPCError: there is no such task, or it belongs to another user.
    """
    session_id, asked_id = names_in(given)
    try:
        context = await read_context(call, call.checked(session_id))
    except SessionNotFoundError:
        raise no_such_task(given) from None
    task = context.find(asked_id)
    if task is None:
        raise no_such_task(given)
    return context, task


async def look_again(call: Call, last: Task) -> tuple[Context | None, Task]:
    """A task after its last state, and its context; one that waited for its turn may have been taken back since.

    Raises:
        RPCError: there is no such task any more.
    """
    try:
        return await read_task(call, last.id)
    except RPCError:
        if last.turn is not None:
            raise
        return None, last.taken_back()


async def _stored_at(call: Call, snapshot: SessionSnapshot, sequence: int) -> int:
    """When a message was stored. Listings count from the newest message, and more may have come since the snapshot."""
    newer = len(snapshot.messages) - sequence
    for _ in range(MOST_TRIES):
        page = await call.executor.sessions.messages(snapshot.session_id, offset=newer, limit=1)
        ahead = page.items[0].sequence - sequence if page.items else 0
        if ahead == 0:
            return page.items[0].created_at if page.items else 0
        newer = max(0, newer + ahead)
    return 0


def _replies_in(turn: Turn) -> list[AssistantMessage]:
    return [message for message in turn.messages if isinstance(message, AssistantMessage)]


def _past(known: dict[str, Any], run: RunRecord | None) -> Task:
    """A task that was followed by others: whatever it waited for, it no longer does."""
    if run is None:
        return Task(**known, state="TASK_STATE_FAILED")
    state = _state_of(run)
    return Task(
        **known,
        state=state if state in OVER else "TASK_STATE_CANCELED",
        run=run,
        changed_at=run.ended_at or run.started_at,
    )


def _state_of(run: RunRecord) -> TaskState:
    match run.status:
        case "running":
            return "TASK_STATE_WORKING"
        case "completed":
            return "TASK_STATE_COMPLETED"
        case "interrupted":
            return "TASK_STATE_CANCELED"
        case "failed":
            return "TASK_STATE_CANCELED" if run.completion_reason == CANCELLED else "TASK_STATE_FAILED"
        case _:
            return "TASK_STATE_INPUT_REQUIRED"


def _question(row: PendingCall) -> list[Plain]:
    """What a waiting call needs to know: a sentence for people, and data for programs."""
    asked: Plain = {
        "toolCallId": row.tool_call_id,
        "toolName": row.tool_name,
        "kind": row.kind,
        "input": row.input,
        "preview": row.preview,
        "reason": row.reason,
        "expiresAt": None if row.deadline is None else _time(row.deadline),
    }
    if row.approval_id is not None:
        sentence, answered = f"May {row.tool_name} run? Answer with data:", '"approved": true'
    else:
        sentence, answered = f"{_asked_in(row)} Answer with text, or data:", '"result": …'
    said = f'{sentence} {{"toolCallId": "{row.tool_call_id}", {answered}}}'
    return [{"text": said}, {"data": {name: value for name, value in asked.items() if value is not None}}]


def _asked_in(row: PendingCall) -> str:
    """A question in its own words; a call of a client tool has none."""
    match row.input:
        case {"question": str() as question} if row.kind == "question":
            return question
        case _:
            return f"{row.tool_name} needs an answer."


def _part(part: Part) -> Plain:
    match part:
        case Text(text=text):
            return {"text": text}
        case Image(url=url, media_type=kind, filename=name) | File(url=url, media_type=kind, filename=name):
            head, found, data = url.partition(";base64,")
            shown: Plain = {"raw": data} if found and head.startswith("data:") else {"url": url}
            declared = head[len("data:") :] if found else None
            more = {"mediaType": kind or declared, "filename": name}
            return {**shown, **{key: value for key, value in more.items() if value is not None}}


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
