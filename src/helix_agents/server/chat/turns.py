"""The current answer, read from the store: the messages of the current turn, and the stream position after them."""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any, Literal

from helix_agents.agent.names import COMPANION, SUBAGENT
from helix_agents.agent.registry import find_tool
from helix_agents.domain.chunks import StreamChunk
from helix_agents.domain.ids import RunId, SessionId, ToolCallId
from helix_agents.domain.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from helix_agents.domain.paging import MAX_LIMIT, whole_list
from helix_agents.domain.pending import OPEN, UNKNOWN_OUTCOME, PendingCall, PendingFilter
from helix_agents.domain.queued import asks_for_a_turn, was_taken_in
from helix_agents.domain.rendering import surviving
from helix_agents.domain.runs import SUSPENDED, RunRecord
from helix_agents.domain.sessions import SessionState
from helix_agents.domain.streams import StreamStatus
from helix_agents.domain.sub_sessions import SubSessionRef
from helix_agents.domain.transcript import not_executed, outcome_unknown
from helix_agents.engine.requests.snapshot import SessionSnapshot
from helix_agents.runtimes.executor.hosting import AgentExecutor
from helix_agents.server.chat.ui_messages import UIMessage, assistant_message
from helix_agents.server.chat.ui_parts import UIPart, UIStream, Version
from helix_agents.server.chat.user_messages import user_message

DELEGATING = (SUBAGENT, COMPANION)
AT_THE_CLIENT = ("client", "question")
MOST_TRIES = 8
_ANSWER = "msg_"
ALL_STATES = ("waiting", "answered", "expired", "consumed", "dropped")


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A user message and what followed it, including messages that its runs took in. `first` is its place in the
    transcript, counted from 0."""

    asked: UserMessage | None
    first: int
    messages: tuple[Message, ...]

    @property
    def asked_id(self) -> str | None:
        """The id of the user's message on a page; a message that came without an id is named after its place."""
        return None if self.asked is None else self.asked.id or f"user_{self.first}"

    @property
    def calls(self) -> dict[ToolCallId, str]:
        replies = (message for message in self.messages if isinstance(message, AssistantMessage))
        return {call.id: call.name for reply in replies for call in reply.tool_calls}

    def message_id(self, run: RunRecord | None) -> str:
        """The answer's id, which never changes while the answer is written or afterwards."""
        for place, message in enumerate(self.messages):
            if isinstance(message, AssistantMessage):
                return answer_id(run_of(message) or f"m{self.first + place}")
        return answer_id(run.run_id if run is not None else f"m{self.first}")

    def calls_before(self, run_id: RunId) -> dict[ToolCallId, str]:
        """The calls that earlier runs of this turn made."""
        replies = (message for message in self.messages if isinstance(message, AssistantMessage))
        earlier = (reply for reply in replies if not (reply.id or "").startswith(f"{run_id}."))
        return {call.id: call.name for reply in earlier for call in reply.tool_calls}


def run_of(reply: AssistantMessage) -> RunId:
    """The run that made a reply, taken from the reply's id."""
    return (reply.id or "").rpartition(".")[0]


def answer_id(first_run: str) -> str:
    """The id of the answer that started with this run."""
    return f"{_ANSWER}{first_run}"


def first_run_of(message_id: str) -> RunId | None:
    """The run that the answer with this id started with; None if it is not one of our ids."""
    return message_id[len(_ANSWER) :] if message_id.startswith(_ANSWER) else None


async def was_taken_back(executor: AgentExecutor, session_id: SessionId, run_id: RunId) -> bool:
    """Whether a run of the session left nothing in the transcript, because the session was rewound to before it."""
    sessions = executor.sessions
    runs = await whole_list(lambda offset: sessions.runs(session_id, offset=offset, limit=MAX_LIMIT))
    if run_id not in {run.run_id for run in runs[1:]}:
        return False
    stored = await whole_list(lambda offset: sessions.messages(session_id, offset=offset, limit=MAX_LIMIT))
    replies = (each.message for each in stored if isinstance(each.message, AssistantMessage))
    return all(run_of(reply) != run_id for reply in replies)


def split_turns(messages: Sequence[Message], entering: Iterable[UserMessage] = ()) -> list[Turn]:
    """A transcript as turns. Messages that the user sent while calls were open come after all of it."""
    turns: list[Turn] = []
    asked: UserMessage | None = None
    first, begin = 0, 0
    everything = (*messages, *entering)
    for place, message in enumerate(everything):
        if asks_for_a_turn(message):
            if place > begin or asked is not None:
                turns.append(Turn(asked=asked, first=first, messages=tuple(everything[begin:place])))
            asked, first, begin = message, place, place + 1
    turns.append(Turn(asked=asked, first=first, messages=tuple(everything[begin:])))
    return turns


@dataclass(frozen=True, kw_only=True)
class ChildCall:
    """A call of a child session that waits or waited for the user, the call that delegated to the child, and its
    result.

    `round` distinguishes calls that the user was asked about in different runs of the root.
    """

    row: PendingCall
    round: int
    delegated_by: ToolCallId | None
    result: ToolMessage | None

    @property
    def is_in_background(self) -> bool:
        """Whether no call of the root waits for it, and no run has taken an answer into account yet."""
        return self.delegated_by is None and self.row.state in OPEN


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """A session at one moment, as pages show it."""

    session: SessionState
    run: RunRecord | None
    turns: list[Turn]
    held: tuple[ToolMessage, ...]
    chunks: tuple[StreamChunk, ...]
    rows: dict[ToolCallId, PendingCall]
    children: tuple[ChildCall, ...]
    sequence: int
    stream_status: StreamStatus | None

    @property
    def turn(self) -> Turn:
        return self.turns[-1]

    @property
    def message_id(self) -> str:
        return self.turn.message_id(self.run)

    def replay(self, stream: UIStream) -> list[UIPart]:
        """The current answer so far, from its start; the stream then takes the chunks after `sequence`."""
        parts = self._committed(stream, self.turn, current=True)
        for chunk in surviving(self.chunks):
            parts += stream.feed(chunk)
        return parts

    def count_steps(self, shown: Sequence[Collection[str]]) -> int:
        """How many steps a page shows, given the calls in each. Calls that were made or asked together count as one
        step, though a page may have shown them in two."""
        replies = [message for message in self.turn.messages if isinstance(message, AssistantMessage)]
        made: dict[str, Any] = {call.id: place for place, reply in enumerate(replies) for call in reply.tool_calls}
        made |= {child.row.tool_call_id: (child.round,) for child in self.children}
        together = [{made[call_id] for call_id in calls if call_id in made} for calls in shown]
        return len(together) - sum(not before.isdisjoint(after) for before, after in pairwise(together))

    def ui_messages(self, new_stream: Callable[[], UIStream]) -> list[UIMessage]:
        """The whole conversation, including the current answer."""
        shown: list[UIMessage] = []
        for turn in self.turns:
            current = turn is self.turn
            if turn.asked is not None:
                shown.append(user_message(turn.asked, turn.asked_id or ""))
            stream = new_stream()
            parts = self.replay(stream) if current else self._committed(stream, turn, current=False)
            if parts:
                shown.append(assistant_message(turn.message_id(self.run if current else None), parts))
        return shown

    def _committed(self, stream: UIStream, turn: Turn, *, current: bool) -> list[UIPart]:
        parts: list[UIPart] = []
        for place, message in enumerate(turn.messages):
            match message:
                case AssistantMessage():
                    rows = [self.rows[call.id] for call in message.tool_calls if call.id in self.rows]
                    parts += stream.message(message, f"m{turn.first + place}", rows)
                    parts += self._below(stream, turn, message)
                case ToolMessage():
                    parts += stream.result(message)
                case UserMessage() if was_taken_in(message):
                    parts += stream.taken(message)
                case UserMessage():
                    pass
        for result in self.held if current else ():
            parts += stream.result(result)
        return parts + (self._asked_since(stream) if current else [])

    def _asked_since(self, stream: UIStream) -> list[UIPart]:
        """What companions in the background ask while the conversation itself rests. A page only answers what is in its
        last step, so this comes after everything that was said."""
        if not self._rests:
            return []
        parts = stream.next_round()
        for child in self.children:
            if child.is_in_background:
                parts += stream.waits(child.row, below=True)
        return parts

    @property
    def _rests(self) -> bool:
        """Whether the conversation neither runs nor waits for an answer itself."""
        return self.run is not None and self.run.status != "running" and self.run.status not in SUSPENDED

    def _below(self, stream: UIStream, turn: Turn, reply: AssistantMessage) -> list[UIPart]:
        """Calls of the children that this reply delegated to."""
        delegating = [call.id for call in reply.tool_calls if call.name.startswith(DELEGATING)]
        if not delegating or not self.children:
            return []
        last = _last_delegating(turn) is reply
        parts: list[UIPart] = []
        for _, together in groupby(
            (
                child
                for child in self.children
                if child.delegated_by in delegating or (child.delegated_by is None and last and turn is self.turn)
                if not (child.is_in_background and self._rests)
            ),
            key=lambda child: child.round,
        ):
            asked = list(together)
            apart = stream.apart(child.row for child in asked)
            for is_apart in (True, False):
                parts += stream.next_round()
                for child in asked:
                    if (child.row.tool_call_id in apart) == is_apart:
                        parts += stream.waits(child.row, below=True)
                        parts += [] if child.result is None else stream.result(child.result)
        return parts


def _last_delegating(turn: Turn) -> AssistantMessage | None:
    replies = [message for message in turn.messages if isinstance(message, AssistantMessage)]
    return next((r for r in reversed(replies) if any(c.name.startswith(DELEGATING) for c in r.tool_calls)), None)


async def read_conversation(executor: AgentExecutor, session_id: SessionId) -> Conversation:
    """Everything that a page needs to know about a session.

    Raises:
        SessionNotFoundError: there is no such session.
    """
    session, snapshot = await _at_one_moment(executor, session_id)
    entering = () if session.suspension_context is None else session.suspension_context.entry_messages
    turns = split_turns(snapshot.messages, entering)
    where = PendingFilter(root_session_id=session_id, states=ALL_STATES)
    listed = await whole_list(lambda offset: executor.list_pending(where, offset=offset, limit=MAX_LIMIT))
    history = await _history(executor, session_id, snapshot.messages) if listed else History()
    rows = {row.tool_call_id: row for row in listed}
    here = {call_id: row for call_id, row in rows.items() if row.session_id == session_id}
    below = [row for row in rows.values() if row.session_id != session_id]
    return Conversation(
        session=session,
        run=snapshot.run,
        turns=turns,
        held=snapshot.held,
        chunks=snapshot.chunks,
        rows={call_id: row for call_id, row in here.items() if not history.took_back(call_id, row.run_id)},
        children=await _children(executor, session, history, below),
        sequence=snapshot.sequence,
        stream_status=snapshot.stream_status,
    )


@dataclass(frozen=True, kw_only=True)
class History:
    """The runs of a session, oldest first, and which of them made each call in its transcript.

    A regenerated answer numbers its calls from the start again, so leftovers of the previous answer have the same ids.
    """

    runs: tuple[RunRecord, ...] = ()
    made_by: dict[ToolCallId, RunId] = field(default_factory=dict[ToolCallId, RunId])
    to_companions: tuple[ToolCallId, ...] = ()

    def took_back(self, call_id: ToolCallId, run_id: RunId | None) -> bool:
        """Whether what a run left for this call id belongs to an older call, and not to the one in the transcript."""
        made_by = self.made_by.get(call_id)
        if made_by in (None, run_id):
            return False
        places = self._places()
        return run_id in places and made_by in places and places[run_id] < places[made_by]

    def companion_spoken_to(self, round: int) -> ToolCallId | None:
        """The last call to a companion that was made in the first `round` runs."""
        places = self._places()
        calls = [call_id for call_id in self.to_companions if places.get(self.made_by[call_id], 0) < round]
        return calls[-1] if calls else None

    def _places(self) -> dict[RunId, int]:
        return {run.run_id: place for place, run in enumerate(self.runs)}


async def _history(executor: AgentExecutor, session_id: SessionId, messages: Iterable[Message]) -> History:
    sessions = executor.sessions
    runs = await whole_list(lambda offset: sessions.runs(session_id, offset=offset, limit=MAX_LIMIT))
    replies = [message for message in messages if isinstance(message, AssistantMessage)]
    calls = [(call, run_of(reply)) for reply in replies for call in reply.tool_calls]
    return History(
        runs=tuple(reversed(runs)),
        made_by={call.id: run_id for call, run_id in calls},
        to_companions=tuple(call.id for call, _ in calls if call.name.startswith(COMPANION)),
    )


async def _at_one_moment(executor: AgentExecutor, session_id: SessionId) -> tuple[SessionState, SessionSnapshot]:
    """The session and its snapshot from between the same two commits, unless commits come faster than it can be
    read."""
    session = await executor.sessions.get(session_id)
    for _ in range(MOST_TRIES):
        snapshot = await executor.sessions.snapshot(session_id)
        again = await executor.sessions.get(session_id)
        if again.version == session.version:
            return again, snapshot
        session = again
    return session, await executor.sessions.snapshot(session_id)


async def _children(
    executor: AgentExecutor, session: SessionState, history: History, rows: Sequence[PendingCall]
) -> tuple[ChildCall, ...]:
    if not rows:
        return ()
    refs = await executor.sessions.delegations(session.session_id)
    delegated = _delegating_calls(refs, session)
    taken_back = {
        ref.sub_session_id
        for ref in refs
        if ref.mode == "ephemeral" and history.took_back(ref.tool_call_id, ref.parent_run_id)
    }
    companions = {ref.sub_session_id for ref in refs if ref.mode == "persistent"}
    started = sorted(run.started_at for run in history.runs)
    results: dict[SessionId, dict[ToolCallId, ToolMessage]] = {}
    ended: set[SessionId] = set()
    tops: dict[SessionId, SessionId] = {}
    found: list[ChildCall] = []
    for row in sorted(rows, key=lambda row: (row.created_at, row.tool_call_id)):
        if row.session_id not in results:
            # The order matters: if a child had ended before this read, all the results it will ever have are found.
            ended |= {row.session_id} if await _is_at_its_end(executor, row.session_id) else set()
            results[row.session_id] = await _results_in(executor, row.session_id)
            tops[row.session_id] = await _right_below(executor, session.session_id, row.session_id)
        top = tops[row.session_id]
        if top in taken_back:
            continue
        result = results[row.session_id].get(row.tool_call_id)
        if result is None and row.session_id in ended:
            result = _left_open(row)
        asked_in = bisect_right(started, row.created_at)
        delegated_by = delegated.get(top)
        if top in companions and row.state not in OPEN:
            # A companion gets many messages, and what it asked earlier stays where it was asked.
            delegated_by = history.companion_spoken_to(asked_in)
        found.append(ChildCall(row=row, round=asked_in, delegated_by=delegated_by, result=result))
    return tuple(found)


def _delegating_calls(refs: Iterable[SubSessionRef], session: SessionState) -> dict[SessionId, ToolCallId]:
    """Which call of a session delegated to which child. A companion gets many calls, and waits for the last one."""
    made = {ref.sub_session_id: ref.tool_call_id for ref in refs if ref.mode == "ephemeral"}
    waits = {wait.child_session_id: call_id for call_id, wait in session.suspended_awaiting_children.items()}
    return made | waits


async def _right_below(executor: AgentExecutor, root: SessionId, session_id: SessionId) -> SessionId:
    """The session between the root and this one to which the root itself delegated."""
    above = await executor.sessions.find(session_id)
    while above is not None and above.parent_session_id not in (None, root):
        session_id = above.parent_session_id
        above = await executor.sessions.find(session_id)
    return session_id


async def _results_in(executor: AgentExecutor, session_id: SessionId) -> dict[ToolCallId, ToolMessage]:
    sessions = executor.sessions
    stored = await whole_list(lambda offset: sessions.messages(session_id, offset=offset, limit=MAX_LIMIT))
    messages = [each.message for each in stored]
    return {message.tool_call_id: message for message in messages if isinstance(message, ToolMessage)}


async def result_below(executor: AgentExecutor, row: PendingCall) -> ToolMessage | Literal["goes on", "waits"]:
    """The result of a child's call that was answered, or the state of the child if it has no result for it yet."""
    # The order matters: if a child was at rest before this read, all its results are found.
    runs = await executor.sessions.runs(row.session_id, limit=1)
    at_its_end = await _is_at_its_end(executor, row.session_id)
    found = (await _results_in(executor, row.session_id)).get(row.tool_call_id)
    if found is not None:
        return found
    if at_its_end:
        return _left_open(row)
    return "waits" if runs.items and runs.items[0].status in SUSPENDED else "goes on"


async def _is_at_its_end(executor: AgentExecutor, session_id: SessionId) -> bool:
    child = await executor.sessions.find(session_id)
    return child is None or child.status not in ("active", "paused")


def _left_open(row: PendingCall) -> ToolMessage:
    """What is shown for a call whose session ended without a result for it."""
    if row.state == "consumed" or row.reason == UNKNOWN_OUTCOME:
        return outcome_unknown(row.tool_call_id, row.tool_name)
    return not_executed([ToolCall(id=row.tool_call_id, name=row.tool_name)])[0]


def stream_for(executor: AgentExecutor, agent_type: str, version: Version = 6) -> UIStream:
    """A translator that knows which tools run at the client, of the agent and those that take over from it."""
    speakers = executor.agents.speakers_of(agent_type)

    def runs_here(name: str) -> bool:
        tool = find_tool(speakers, name)
        return tool is None or tool.kind not in AT_THE_CLIENT

    return UIStream(runs_here=runs_here, version=version)
