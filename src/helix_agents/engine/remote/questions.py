"""What a remote child waits for: the same calls wait here, and answers given here are passed on."""

from collections.abc import Iterable
from typing import get_args

from helix_agents.agent.remote_agents import RemoteAgentTool
from helix_agents.domain.chunks import StreamChunk, ToolEnd, ToolError
from helix_agents.domain.errors import (
    InvalidIdError,
    RemoteProtocolError,
    RemoteRefusedError,
    RemoteSubAgentClientToolUnsupportedError,
)
from helix_agents.domain.ids import ToolCallId, check_id
from helix_agents.domain.messages import ToolMessage
from helix_agents.domain.paging import MAX_LIMIT, whole_list
from helix_agents.domain.pending import (
    OPEN,
    READY,
    UNKNOWN_OUTCOME,
    Answer,
    ApprovalAnswer,
    PendingCall,
    PendingFilter,
    PendingState,
    ToolAnswer,
)
from helix_agents.domain.records import encode
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.sessions import SessionState
from helix_agents.engine.log import log_event
from helix_agents.engine.remote.chunks import Names
from helix_agents.engine.remote.rest import ERROR_CHARACTERS
from helix_agents.engine.remote.stops import as_remote
from helix_agents.engine.scope import step_id_of
from helix_agents.ports.remote_agents import RemoteAnswerRefusedError, RemoteSession
from helix_agents.ports.state_store import SessionStateStore

# For a call that timed out here while it still waits there, because the clocks differ: it is looked at again soon.
_ASK_AGAIN_MS = 60_000
_NO_ROUTE = (404, 405, 501)
NOBODY = "Nobody answered this call in time."
_ALL: frozenset[PendingState] = frozenset(get_args(PendingState))


class RemoteQuestions:
    """The calls of one remote child, as they wait in its session here."""

    def __init__(
        self,
        store: SessionStateStore,
        tool: RemoteAgentTool,
        run: RunRecord,
        session: SessionState,
        names: Names,
        *,
        step: int,
        result_bytes: int,
        deadline_ms: int | None,
    ) -> None:
        self._store = store
        self._tool = tool
        self._transport = tool.transport
        self._run = run
        self._session_id = session.session_id
        self._root_session_id = session.root_session_id
        self._remote = as_remote(session)
        self._names = names
        self._step = step
        self._result_bytes = result_bytes
        self._deadline_ms = deadline_ms
        self._refused: dict[ToolCallId, str] = {}
        self._asked: set[ToolCallId] = set()
        self._results: dict[ToolCallId, ToolMessage] = {}

    def found(self, remote: RemoteSession) -> None:
        """Take in where the session is at the other service."""
        self._remote = remote

    async def rows(self, waiting: tuple[PendingCall, ...]) -> tuple[PendingCall, ...]:
        """The calls that wait there, as rows that wait here.

        Raises:
            RemoteSubAgentClientToolUnsupportedError: the other service cannot take answers.
            RemoteProtocolError: they are too many, or are not valid calls.
        """
        url = self._transport.url
        if not self._transport.routes_answers:
            raise RemoteSubAgentClientToolUnsupportedError(url, self._session_id)
        if len(waiting) > self._tool.limits.pending:
            raise RemoteProtocolError(
                url, f"{len(waiting)} calls are waiting, but at most {self._tool.limits.pending} may"
            )
        try:
            rows = tuple([await self._row(call) for call in waiting])
        except InvalidIdError as problem:
            raise RemoteProtocolError(url, str(problem)) from problem
        self._asked.update(row.tool_call_id for row in rows)
        return rows

    async def route(self, waiting: tuple[PendingCall, ...]) -> tuple[ToolCallId, ...]:
        """Pass answers given here to the calls that wait there, and let the child continue; returns which calls.

        The other service stores an answer once, so repeating this after a crash does no harm. A call that no longer
        waits there was answered there.
        """
        ready = await self._calls(READY)
        if not ready:
            return ()
        known_as = self._known_as(waiting)
        for row in ready:
            there = known_as.get(row.tool_call_id)
            answer = self._answer_to(row)
            if there is not None and answer is not None:
                await self._submit(there, row, answer)
        await self._transport.resume(self._remote)
        return tuple(row.tool_call_id for row in ready)

    async def open_calls(self) -> tuple[ToolCallId, ...]:
        """The calls that wait here, and those whose answers have not been passed on yet."""
        return tuple(call.tool_call_id for call in await self._calls(OPEN))

    async def remember(self) -> None:
        """Take in the calls that an earlier follower asked about."""
        self._asked.update(call.tool_call_id for call in await self._calls(_ALL))

    def hear(self, chunk: StreamChunk) -> None:
        """Keep the result of a call that was asked about here, so that a page can show it beside the question."""
        match chunk:
            case ToolEnd(tool_call_id=call_id, tool_name=name, result=content, in_parts=in_parts):
                result = ToolMessage(tool_call_id=call_id, tool_name=name, content=content, in_parts=in_parts)
            case ToolError(tool_call_id=call_id, tool_name=name, error=error, code=code):
                result = ToolMessage(tool_call_id=call_id, tool_name=name, content=error, error=True, code=code)
            case _:
                return
        if call_id in self._asked and len(encode(result.content)) <= self._result_bytes:
            self._results[call_id] = result

    def take_results(self, waiting: Iterable[PendingCall]) -> list[ToolMessage]:
        """The results that arrived since the last time; a call that waits again has no result yet."""
        for call in waiting:
            self._results.pop(call.tool_call_id, None)
        taken, self._results = list(self._results.values()), {}
        return taken

    async def _calls(self, states: frozenset[PendingState]) -> list[PendingCall]:
        """The child's calls in one of these states, each once: an answer may arrive between two pages."""
        where = PendingFilter(session_id=self._session_id, states=tuple(states))
        store = self._store
        listed = await whole_list(lambda offset: store.list_pending(where, offset=offset, limit=MAX_LIMIT))
        return list({call.tool_call_id: call for call in listed}.values())

    def _answer_to(self, row: PendingCall) -> Answer | None:
        """The answer to pass on. A call that was answered there is not answered again, even if it waits once more. A
        call without an answer timed out here; the other service has its own deadline, or is told that nobody answers.
        """
        match row.answer:
            case ToolAnswer() | ApprovalAnswer():
                return row.answer
            case None if not self._transport.keeps_deadlines:
                return (
                    ApprovalAnswer(approved=False, reason=NOBODY)
                    if row.kind == "approval"
                    else ToolAnswer(error=NOBODY)
                )
            case _:
                return None

    async def _submit(self, there: ToolCallId, row: PendingCall, answer: Answer) -> None:
        try:
            await self._transport.submit(self._remote, there, answer, approval_id=row.approval_id)
        except RemoteAnswerRefusedError as refused:
            self._refused[row.tool_call_id] = str(refused)[:ERROR_CHARACTERS]
            log_event("client_tool.validation_failed", tool_call_id=row.tool_call_id, reason=str(refused))
        except RemoteRefusedError as refused:
            if refused.status not in _NO_ROUTE:
                raise
            raise RemoteSubAgentClientToolUnsupportedError(self._transport.url, self._session_id) from refused

    async def _row(self, call: PendingCall) -> PendingCall:
        """The call as it waits here: under its own name, with the time it has left there."""
        call_id = self._names.call_here(call.tool_call_id)
        size, most = len(encode((call.input, call.preview))), self._tool.limits.input_bytes
        if size > most:
            raise RemoteProtocolError(
                self._transport.url, f"a waiting call has {size} bytes, but at most {most} are allowed"
            )
        if call.kind == "approval":
            check_id(call.approval_id or "", "approval id")
        now = self._store.now_ms()
        left = None if call.deadline is None else max(call.deadline - call.created_at, 1_000)
        if left is None and not self._transport.keeps_deadlines:
            left = self._deadline_ms
        known = await self._store.get_pending_call(self._session_id, call_id)
        if left is not None and known is not None and known.expired_at is not None:
            left = min(left, _ASK_AGAIN_MS)
        unknown = call.reason == UNKNOWN_OUTCOME
        reason = None if call.reason is None else call.reason[:ERROR_CHARACTERS]
        return PendingCall(
            tool_call_id=call_id,
            kind=call.kind,
            session_id=self._session_id,
            root_session_id=self._root_session_id,
            run_id=self._run.run_id,
            step_id=step_id_of(self._run.run_id, self._step),
            tool_name=check_id(call.tool_name, "tool name"),
            input=call.input,
            preview=call.preview,
            approval_id=call.approval_id if call.kind == "approval" else None,
            reason=UNKNOWN_OUTCOME if unknown else self._refused.get(call_id, reason),
            created_at=now,
            deadline=None if left is None else now + left,
            on_deadline=call.on_deadline,
        )

    def _known_as(self, waiting: tuple[PendingCall, ...]) -> dict[ToolCallId, ToolCallId]:
        """Calls that wait there, by their ids here."""
        try:
            return {self._names.call_here(call.tool_call_id): call.tool_call_id for call in waiting}
        except InvalidIdError as problem:
            raise RemoteProtocolError(self._transport.url, str(problem)) from problem
