"""A client of an agent server, with the calls of an executor."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Generic, Self, TypeAlias, cast, overload
from urllib.parse import urlencode
from uuid import uuid4

from typing_extensions import TypeForm

from helix_agents.agent.agent import Agent
from helix_agents.agent.handoffs import circle_of
from helix_agents.agent.headers import Headers
from helix_agents.agent.output import OutputT, OutputType
from helix_agents.domain.errors import AgentMismatchError, RemoteRefusedError, RemoteUnavailableError, ToolOutputError
from helix_agents.domain.ids import CheckpointId, RunId, SessionId, ToolCallId, check_id
from helix_agents.domain.paging import DEFAULT_LIMIT, Page
from helix_agents.domain.pending import Answer, ApprovalAnswer, PendingCall, ToolAnswer
from helix_agents.domain.records import JSON
from helix_agents.domain.sessions import InterruptOutcome
from helix_agents.engine.requests.going_on import ResumeMode
from helix_agents.engine.requests.submitting import checked_answer
from helix_agents.runtimes.executor.inputs import IfRunning, Input, messages_of
from helix_agents.server.answers import PendingPage, RunOutcome, Started, Status, Submitted
from helix_agents.server.client_run import ClientRun, stop
from helix_agents.server.client_sessions import ClientSessions, page_of, spoken
from helix_agents.server.connection import Connection
from helix_agents.server.remote_http import RemoteHttp


class ServedAgent(Generic[OutputT]):
    """An agent of a server, for programs that do not have its definition: its name, and the type of its output.

    Without `output`, the output is a text.
    """

    @overload
    def __init__(self: "ServedAgent[str]", name: str) -> None: ...
    @overload
    def __init__(self, name: str, *, output: TypeForm[OutputT]) -> None: ...
    def __init__(self, name: str, *, output: Any = None) -> None:
        self.name = name
        self._form = output
        _ = self.output_type

    def load_output(self, stored: JSON) -> OutputT:
        """An output as the server sent it, as an object of its type.

        Raises:
            ToolOutputError: it is not of this type.
        """
        if self.output_type is not None:
            return self.output_type.load(stored)
        if isinstance(stored, str):
            return cast("OutputT", stored)
        raise ToolOutputError(self.name, "it is not a text; say what it is with ServedAgent(name, output=…)")

    @cached_property
    def output_type(self) -> OutputType[OutputT] | None:
        """How the agent's output is read back; None when it is a text."""
        return None if self._form is None else OutputType[OutputT](self._form, f"ServedAgent {self.name!r}")


SomeAgent: TypeAlias = Agent[Any, OutputT, Any] | ServedAgent[OutputT]


class AgentClient:
    """Talks to the agents of an agent server, with the calls of an executor.

    Runs do not depend on the client: they continue when it leaves, and any client of the same user can follow them. A
    request that gets no answer, because an instance restarts for example, is sent again for `patience` seconds; nothing
    happens twice because of that.

    Args:
        url: The address of the server.
        token: Sent as `Authorization: Bearer …`.
        headers: Sent with every request: a dict, or an async function that returns one.
        patience: For how many seconds to try to reach a server that does not answer.

    Raises:
        DefinitionError: the address or a header cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        headers: Headers | None = None,
        patience: float = 60.0,
        connect_seconds: float = 5.0,
        answer_seconds: float = 30.0,
        silence_seconds: float = 60.0,
        answer_bytes: int = 64_000_000,
        event_bytes: int = 16_000_000,
    ) -> None:
        http = RemoteHttp(
            "AgentClient",
            url,
            token=token,
            headers=headers,
            connect_seconds=connect_seconds,
            answer_seconds=answer_seconds,
            answer_bytes=answer_bytes,
        )
        self._connection = Connection(
            http,
            patience=patience,
            answer_seconds=answer_seconds,
            silence_seconds=silence_seconds,
            event_bytes=event_bytes,
        )

    @property
    def sessions(self) -> ClientSessions:
        """The caller's stored conversations."""
        return ClientSessions(self._connection)

    async def __aenter__(self) -> Self:
        await self._connection.http.open_pool()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.http.close_pool()

    async def run(
        self,
        agent: SomeAgent[OutputT],
        input: Input,
        session_id: SessionId | None = None,
        *,
        state: dict[str, JSON] | None = None,
    ) -> OutputT:
        """Run a turn and return its output: `execute`, and then `output` of its handle.

        Raises:
            RunNotCompletedError: the turn failed, was stopped or waits for an answer; the session is stored as it is.
        """
        return await (await self.execute(agent, input, session_id, state=state)).output()

    async def execute(
        self,
        agent: SomeAgent[OutputT],
        input: Input,
        session_id: SessionId | None = None,
        *,
        state: dict[str, JSON] | None = None,
        tags: Sequence[str] = (),
        metadata: dict[str, str] | None = None,
        idempotency_key: str | None = None,
        if_running: IfRunning = "reject",
    ) -> ClientRun[OutputT]:
        """Start a turn: in a new session, or as the next turn of an existing session.

        The turn is stored when this returns. It is started once, however often the request has to be sent; with an
        `idempotency_key` of your own, also if your program repeats the call. `state`, `tags` and `metadata` apply only
        to a new session. If a turn is running, `if_running` decides whether the new message is refused, waits, is taken
        in by it, or stops it.

        Raises:
            InvalidInputError: a message is not valid.
            RemoteRefusedError: the server refused it; `refusal` is the code, such as `agent_already_running`.
            RemoteUnavailableError: the server did not answer.
        """
        messages = messages_of(input)
        body: dict[str, JSON] = {
            "agentType": agent.name,
            "message": spoken(messages),
            "sessionId": f"session_{uuid4().hex}" if session_id is None else check_id(session_id),
            "idempotencyKey": idempotency_key or messages[-1].id or f"once_{uuid4().hex}",
            "ifRunning": if_running,
            "tags": list(tags),
            "metadata": dict(metadata or {}),
        }
        if state is not None:
            body["state"] = state
        return self._run(agent, await self._connection.ask(Started, "POST", "/execute", body))

    async def resume(
        self,
        agent: SomeAgent[OutputT],
        session_id: SessionId,
        *,
        mode: ResumeMode = "continue",
        message: Input | None = None,
        checkpoint_id: CheckpointId | None = None,
    ) -> ClientRun[OutputT]:
        """Continue what a session left open: answered calls, an interrupted turn, or an earlier checkpoint.

        Raises:
            RemoteRefusedError: there is nothing to continue, or it still waits.
            RemoteUnavailableError: the server did not answer.
        """
        body: dict[str, JSON] = {"mode": mode}
        if message is not None:
            body["message"] = spoken(messages_of(message))
        if checkpoint_id is not None:
            body["checkpointId"] = checkpoint_id
        return await self._go_on("/resume", agent, session_id, body)

    async def retry(self, agent: SomeAgent[OutputT], session_id: SessionId) -> ClientRun[OutputT]:
        """Continue a failed turn from its last commit, with a fresh budget.

        Raises:
            RemoteRefusedError: there is nothing to retry.
            RemoteUnavailableError: the server did not answer.
        """
        return await self._go_on("/retry", agent, session_id, {})

    async def get_handle(
        self, agent: SomeAgent[OutputT], session_id: SessionId, run_id: RunId | None = None
    ) -> ClientRun[OutputT] | None:
        """The session's current run, or the run with this id, even if it waits for its turn; None if there is none.

        Raises:
            AgentMismatchError: the session belongs to another agent.
        """
        found = await self._find_run(session_id, run_id)
        if found is None:
            return None
        if agent.name not in (found.agent_type, found.held_by):
            raise AgentMismatchError(session_id, found.agent_type, agent.name)
        return self._run(agent, Started(session_id=session_id, stream_id=session_id, run_id=found.run_id))

    async def submit_tool_result(
        self, session_id: SessionId, tool_call_id: ToolCallId, answer: Answer, *, approval_id: str | None = None
    ) -> Submitted:
        """Store an answer to a waiting call; the first answer counts. This resumes nothing; `continuation` says what is
        needed next.

        Raises:
            InvalidInputError: it is not an answer, or contradicts itself.
            RemoteRefusedError: it does not fit the call, or no such call waits.
            RemoteUnavailableError: the server did not answer.
        """
        body: dict[str, JSON] = {"sessionId": session_id, "toolCallId": tool_call_id}
        match cast("Answer", checked_answer(answer)):
            case ToolAnswer(result=result, error=None):
                body |= {"kind": "client-tool-result", "result": result}
            case ToolAnswer(error=error):
                body |= {"kind": "client-tool-result", "error": error}
            case ApprovalAnswer(approved=approved, reason=reason, edited_input=edited):
                approval_id = approval_id or await self._approval_of(session_id, tool_call_id)
                body |= {"kind": "approval-response", "approvalId": approval_id, "approved": approved}
                body |= {} if reason is None else {"reason": reason}
                body |= {} if edited is None else {"editedInput": edited}
        return await self._connection.ask(Submitted, "POST", "/submit-tool-result", body)

    async def interrupt(self, session_id: SessionId, reason: str | None = None) -> InterruptOutcome:
        """Ask the session's current run to stop soon, keeping what it did."""
        return await stop(self._connection, "/interrupt", await self._current_run(session_id), reason)

    async def abort(self, session_id: SessionId, reason: str | None = None) -> InterruptOutcome:
        """Fail the session's current run for good."""
        return await stop(self._connection, "/abort", await self._current_run(session_id), reason)

    async def list_pending(self, *, offset: int = 0, limit: int = DEFAULT_LIMIT) -> Page[PendingCall]:
        """All calls of the caller's sessions that wait for an answer, newest first; for an operator, everybody's."""
        path = f"/pending?{urlencode({'offset': offset, 'limit': limit})}"
        return page_of(await self._connection.ask(PendingPage, "GET", path))

    async def _go_on(
        self, path: str, agent: SomeAgent[OutputT], session_id: SessionId, body: dict[str, JSON]
    ) -> ClientRun[OutputT]:
        """The run that continues a session. If the answer to the first request was lost, the second one is refused,
        because that run has followed the one to be continued."""
        asked: dict[str, JSON] = {**await self._current_run(session_id), "agentType": agent.name, **body}
        patience, is_repeated = self._connection.patience(), False
        while True:
            try:
                return self._run(agent, await self._connection.ask_once(Started, "POST", path, asked))
            except RemoteUnavailableError as problem:
                await patience.wait(problem)
                is_repeated = True
            except RemoteRefusedError as refused:
                if not is_repeated or refused.refusal not in ("agent_already_running", "run_conflict"):
                    raise
                running = await self.get_handle(agent, session_id)
                if running is None:
                    raise
                return running

    async def _current_run(self, session_id: SessionId) -> dict[str, JSON]:
        """What names the session's current run in a request, so that a repeated request cannot mean a later one."""
        found = await self._find_run(session_id, None)
        return {"sessionId": session_id} if found is None else {"sessionId": session_id, "runId": found.run_id}

    async def _find_run(self, session_id: SessionId, run_id: RunId | None) -> RunOutcome | None:
        query = {"sessionId": check_id(session_id), **({} if run_id is None else {"runId": run_id})}
        try:
            return await self._connection.ask(RunOutcome, "GET", f"/result?{urlencode(query)}")
        except RemoteRefusedError as refused:
            if refused.status == 404:
                return None
            raise

    async def _approval_of(self, session_id: SessionId, tool_call_id: ToolCallId) -> str:
        """The id of the approval that a call waits for; any, if it waits for none, which the server then says."""
        path = f"/status?{urlencode({'sessionId': session_id})}"
        status = await self._connection.ask(Status, "GET", path)
        waiting = (call.approval_id for call in status.pending if call.tool_call_id == tool_call_id)
        return next(waiting, None) or "none"

    def _run(self, agent: SomeAgent[OutputT], run: Started) -> ClientRun[OutputT]:
        speakers = circle_of(agent) if isinstance(agent, Agent) else {}

        def type_of(name: str) -> OutputType[Any] | None:
            return speakers[name].output_type if name in speakers else agent.output_type

        return ClientRun(self._connection, run.session_id, run.run_id, agent.load_output, type_of)
