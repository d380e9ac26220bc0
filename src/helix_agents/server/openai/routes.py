"""OpenAI's Responses API over the same sessions: each request becomes one entry of the engine.

A conversation is a session, and a response one of its runs. A request that names the latest response continues its
session; one that names an older response starts a branch there, so that nothing that was said is lost or said twice.
"""

import asyncio
from contextlib import suppress
from hashlib import sha256
from typing import Any

import msgspec

from helix_agents.agent.agent import AnyAgent
from helix_agents.domain.errors import (
    AgentAlreadyRunningError,
    HelixError,
    NothingToResumeError,
    SessionNotFoundError,
    StillWaitingError,
)
from helix_agents.domain.ids import CheckpointId, RunId, SessionId
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.pending import ApprovalAnswer, PendingCall, ToolAnswer
from helix_agents.domain.queued import QueuedTurnDropped
from helix_agents.domain.runs import SUSPENDED, RunRecord
from helix_agents.domain.sessions import BranchPoint
from helix_agents.runtimes.executor.hosting import HostedRun
from helix_agents.server.bodies import ApprovalResponse, ToolResult, read_body
from helix_agents.server.calls import SLASH, Call, json_response
from helix_agents.server.errors import RefusedError
from helix_agents.server.executor_routes import submit_one_of
from helix_agents.server.openai.inputs import (
    BadParameterError,
    CallOutput,
    CreateResponse,
    Decision,
    Given,
    check_settings,
    given_of,
)
from helix_agents.server.openai.sources import ResponseSource, WhenDone, conversation_of, tell
from helix_agents.server.openai.stored import NOTE, Conversation, place_of, response_id, response_of, run_said_with

IDEMPOTENCY_KEY = "idempotency-key"
# How long a caller waits for a run to notice the stop; then it gets the response in its current state.
CANCEL_SECONDS = 5.0
MOST_ITEMS = 100


async def create_response(call: Call) -> Any:
    """Send a message, or answer waiting calls, as an OpenAI client.

    With `stream`, returns a stream of events; with `background`, the response as it starts; otherwise, the response as
    it ends. In every case the response continues without its reader. With an `Idempotency-Key`, repeating the request
    returns the response that it started.
    """
    sent = await call.json()
    body: CreateResponse = read_body(sent, CreateResponse)
    agent = _agent(call, body.model)
    check_settings(body, sent, agent, call.executor.agents.speakers_of(agent.name))
    given = given_of(body)
    key = _key(call)
    if body.background and not body.stream:
        call.gate.check_open()
    else:
        call.gate.check_stream(call.principal)
    run = await _begun(call, agent, body, given, key)
    if body.stream:
        return call.stream(ResponseSource(call, run), run=run)
    if body.background:
        return await tell(call, run.session_id, run.run_id)
    return call.gate.counted(call.principal, WhenDone(call, run), run)


async def get_response(call: Call) -> Any:
    """The current state of a response; with `stream`, its events after `starting_after`."""
    conversation, run_id = await _response(call)
    after = call.number("starting_after", -1)
    if call.query("stream") not in ("true", "1"):
        return json_response(await response_of(call.executor, conversation, run_id))
    call.gate.check_stream(call.principal)
    run = await call.executor.get_handle(call.agent_of(conversation.session), conversation.session_id, run_id)
    if run is None:
        raise _unknown(call.request.path_params["response_id"])
    return call.stream(ResponseSource(call, run, after=None if after < 0 else after), run=run)


async def cancel_response(call: Call) -> Any:
    """Stop a response, and keep what it said. A response that has ended is returned unchanged."""
    conversation, run_id = await _response(call)
    session_id, run = conversation.session_id, conversation.run(run_id)
    if run is None and isinstance(await call.executor.sessions.drop_queued(session_id, run_id), QueuedTurnDropped):
        response = await response_of(call.executor, conversation, run_id)
        return json_response({**response, "status": "cancelled"})
    handle = await call.executor.get_handle(call.agent_of(conversation.session), session_id, run_id)
    if handle is not None and (run is None or run.status == "running"):
        await handle.interrupt("cancelled")
        with suppress(TimeoutError, HelixError):
            async with asyncio.timeout(CANCEL_SECONDS):
                await handle.result()
    return await tell(call, session_id, run_id)


async def delete_response(call: Call) -> Any:
    """Delete a response that is the only one of its conversation.

    If there are others, it is refused, because they build on what it said. `DELETE /sessions/{sessionId}` deletes all
    of them.
    """
    conversation, run_id = await _response(call)
    if conversation.queued or conversation.total_runs != 1 or conversation.run(run_id) is None:
        raise RefusedError(409, "response_in_use", "Other responses of this conversation build on this one.")
    await call.executor.sessions.delete(conversation.session_id, unless_running=True)
    return json_response({"id": _given_id(call), "object": "response", "deleted": True})


async def list_input_items(call: Call) -> Any:
    """The input items of a response, newest first unless `order` says otherwise."""
    # An answer to a question from long before the response started is an input item too.
    conversation, run_id = await _response(call, all_rows=True)
    order = call.query("order") or "desc"
    if order not in ("asc", "desc"):
        raise BadParameterError("order", "order must be asc or desc.")
    limit = call.number("limit", 20)
    if not 1 <= limit <= MOST_ITEMS:
        raise BadParameterError("limit", f"limit must be from 1 to {MOST_ITEMS}.")
    items = conversation.input(run_id)
    items = items if order == "asc" else items[::-1]
    ids = [item["id"] for item in items]
    after = call.query("after")
    if after is not None and after not in ids:
        raise BadParameterError("after", "after must be the id of an item in this list.")
    first = 0 if after is None else ids.index(after) + 1
    page = items[first : first + limit]
    ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return json_response({"object": "list", "data": page, **ends, "has_more": first + limit < len(items)})


async def list_models(call: Call) -> Any:
    """The agents that callers may talk to."""
    return json_response({"object": "list", "data": [_model(name) for name in sorted(call.entry_agents)]})


async def get_model(call: Call) -> Any:
    """One agent that callers may talk to."""
    return json_response(_model(_agent(call, call.request.path_params["model"].replace(SLASH, "/")).name))


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "helix"}


def _agent(call: Call, name: str) -> AnyAgent:
    if name not in call.entry_agents:
        raise BadParameterError("model", f"This server has no agent {name[:80]!r}.", status=404, code="model_not_found")
    return call.executor.agents.get(name)


def _key(call: Call) -> str | None:
    key = call.request.headers.get(IDEMPOTENCY_KEY)
    return None if key is None else call.checked(key, "idempotency key")


# -- which response


def _given_id(call: Call) -> str:
    return call.request.path_params["response_id"].replace(SLASH, "/")


def _unknown(given: str) -> RefusedError:
    return BadParameterError("response_id", f"There is no response {given[:80]!r}.", status=404, code="not_found")


async def _response(call: Call, *, all_rows: bool = False) -> tuple[Conversation, RunId]:
    """The response that the path names, if it belongs to the caller."""
    found = await _find(call, _given_id(call), all_rows=all_rows)
    if found is None:
        raise _unknown(_given_id(call))
    return found


async def _find(call: Call, given: str, *, all_rows: bool = False) -> tuple[Conversation, RunId] | None:
    place = place_of(given)
    if place is None:
        return None
    session_id, run_id = place
    try:
        conversation = await conversation_of(call, call.checked(session_id), run_id, all_rows=all_rows)
    except SessionNotFoundError:
        return None
    if conversation.has(run_id):
        return conversation, run_id
    # A message that waited may have been given to the run in progress; then that response answers it.
    run = await call.executor.get_handle(call.agent_of(conversation.session), conversation.session_id, run_id)
    if run is None or run.run_id == run_id:
        return None
    conversation = await conversation_of(call, conversation.session_id, run.run_id, all_rows=all_rows)
    return (conversation, run.run_id) if conversation.has(run.run_id) else None


# -- how it begins


async def _begun(call: Call, agent: AnyAgent, body: CreateResponse, given: Given, key: str | None) -> HostedRun:
    """The run that the request starts, or started when it was sent before."""
    if body.previous_response_id is not None:
        found = await _find(call, body.previous_response_id)
        if found is None:
            detail = f"There is no response {body.previous_response_id[:80]!r}."
            raise BadParameterError("previous_response_id", detail, code="previous_response_not_found")
        conversation, run_id = found
        entry = Entry(call, agent, body, given, key, conversation)
        return await entry.go_on_from(run_id)
    session_id = body.conversation_id
    if session_id is None and key is not None:
        # The same request, sent again, finds the session that it started.
        session_id = _session_for(call, key)
    session = None if session_id is None else await call.find_session(call.checked(session_id))
    conversation = None if session is None else await conversation_of(call, session.session_id)
    return await Entry(call, agent, body, given, key, conversation).at_the_end(session_id)


def _session_for(call: Call, *names: str) -> SessionId:
    """A session id derived from what identifies a request."""
    known_by = "\x1f".join((call.principal.user_id or "", *names))
    return f"conv_{sha256(known_by.encode()).hexdigest()[:32]}"


class Entry:
    """A request on its way into a conversation; None stands for a conversation that is yet to start."""

    def __init__(
        self,
        call: Call,
        agent: AnyAgent,
        body: CreateResponse,
        given: Given,
        key: str | None,
        conversation: Conversation | None,
    ) -> None:
        self._call = call
        self._agent = agent
        self._body = body
        self._given = given
        self._key = key
        self._conversation = conversation
        if conversation is not None and conversation.session.agent_type != agent.name:
            raise BadParameterError("model", f"This conversation belongs to agent {conversation.session.agent_type!r}.")

    async def at_the_end(self, session_id: SessionId | None) -> HostedRun:
        """Continue from where the conversation is, or start it."""
        conversation = self._conversation
        if conversation is not None and (joined := await self._joined(conversation)) is not None:
            return joined
        current = None if conversation is None else conversation.current
        if conversation is None or current is None:
            return await self._say(session_id)
        if self._given.answers or current.status in SUSPENDED:
            return await self._answer(conversation, current)
        return await self._say(conversation.session_id)

    async def go_on_from(self, run_id: RunId) -> HostedRun:
        """Continue from this response: in its session if it is the latest, otherwise in a branch of the session."""
        conversation = self._conversation
        assert conversation is not None
        if (joined := await self._joined(conversation)) is not None:
            return joined
        run = conversation.run(run_id)
        if run is None or run.status == "running":
            raise RefusedError(
                409, "agent_already_running", "The previous response is still being written.", retryable=True
            )
        if self._given.answers or (run.status in SUSPENDED and run is conversation.current):
            return await self._answer(conversation, run)
        if run is conversation.current:
            return await self._say(conversation.session_id)
        return await self._branch(conversation, run)

    async def _joined(self, conversation: Conversation) -> HostedRun | None:
        """The run that the same request started before."""
        run_id = None if self._key is None else await run_said_with(self._call.executor, conversation, self._key)
        if run_id is None:
            return None
        return await self._call.executor.get_handle(self._agent, conversation.session_id, run_id)

    def _messages(self, previous: str | None = None) -> tuple[UserMessage, ...]:
        """What the user says, together with the sender's notes about the response, and recognisable if it is sent
        again."""
        note: dict[str, Any] = {} if not self._body.metadata else {"metadata": self._body.metadata}
        if previous is not None:
            note["previous_response_id"] = previous
        *before, last = self._given.messages
        noted = {NOTE: note} if note else {}
        return (*before, msgspec.structs.replace(last, id=self._key, metadata=noted))

    async def _say(
        self, session_id: SessionId | None, *, branch: BranchPoint | None = None, previous: str | None = None
    ) -> HostedRun:
        if self._given.answers:
            raise _nothing_asked(self._given.answers[0])
        messages = self._messages(previous)
        owner = self._call.owner()
        is_new = self._key is None and (self._conversation is None or branch is not None)
        return await self._call.begin(
            lambda: self._call.executor.execute(
                self._agent,
                messages,
                session_id,
                branch=branch,
                user_id=owner,
                idempotency_key=self._key,
                only_new=is_new,
                only_own=True,
                if_running="enqueue" if self._body.background and self._body.conversation is not None else "reject",
            ),
            within=None if self._conversation is None or branch is not None else self._conversation.session,
        )

    async def _branch(self, conversation: Conversation, run: RunRecord) -> HostedRun:
        """Say it in a new session that has everything up to the end of an older response."""
        if run.status in SUSPENDED:
            raise BadParameterError(
                "input", "The previous response has been answered already; continue from the response that followed it."
            )
        checkpoint_id = await self._checkpoint_of(conversation.session_id, run)
        if checkpoint_id is None:
            detail = "The previous response has no checkpoint to continue from."
            raise RefusedError(409, "checkpoint_not_found", detail)
        previous = response_id(conversation.session_id, run.run_id)
        session_id = None if self._key is None else _session_for(self._call, self._key, previous)
        if session_id is not None and await self._call.find_session(session_id) is not None:
            self._conversation = await conversation_of(self._call, session_id)
            joined = await self._joined(self._conversation)
            if joined is not None:
                return joined
        point = BranchPoint(from_session_id=conversation.session_id, checkpoint_id=checkpoint_id)
        return await self._say(session_id, branch=point, previous=previous)

    async def _checkpoint_of(self, session_id: SessionId, run: RunRecord) -> CheckpointId | None:
        """The checkpoint at which a run left its session."""
        offset = 0
        while True:
            page = await self._call.executor.sessions.checkpoints(session_id, offset=offset, limit=200)
            for checkpoint in page.items:
                if checkpoint.run_id == run.run_id:
                    return checkpoint.checkpoint_id
            if not page.has_more:
                return None
            offset += len(page.items)

    # -- answers

    async def _answer(self, conversation: Conversation, run: RunRecord) -> HostedRun:
        """Store the answers and continue. As OpenAI's clients expect, a request has to bring all the missing
        answers."""
        asked = [(given, _row_for(conversation, given)) for given in self._given.answers]
        if run is not conversation.current or run.status not in SUSPENDED:
            return await self._answered_before(conversation, run, asked)
        answered = {row.tool_call_id for _, row in asked}
        missing = [row for row in conversation.rows if row.state == "waiting" and row.tool_call_id not in answered]
        if missing:
            raise _unanswered(missing[0])
        for given, row in asked:
            await self._submit(conversation.session_id, given, row)
        return await self._resume(conversation.session_id)

    async def _submit(self, session_id: SessionId, given: CallOutput | Decision, row: PendingCall) -> None:
        call_id = row.tool_call_id
        if isinstance(given, Decision):
            approval_id, reason = given.approval_id, given.reason
            bodies: tuple[ApprovalResponse | ToolResult, ...] = (
                ApprovalResponse(tool_call_id=call_id, approval_id=approval_id, approved=given.approved, reason=reason),
            )
        else:
            bodies = tuple(ToolResult(tool_call_id=call_id, result=value) for value in given.readings)
        try:
            outcome = await submit_one_of(self._call, session_id, bodies)
        except RefusedError as refusal:
            raise BadParameterError(given.param, refusal.detail, status=refusal.status, code=refusal.code) from refusal
        if outcome.outcome != "accepted" and not _says(given, row):
            raise _answered(given, outcome.outcome)

    async def _resume(self, session_id: SessionId) -> HostedRun:
        call, agent = self._call, self._agent
        messages = self._messages() if self._given.messages else None
        mode = "continue" if messages is None else "with_message"
        try:
            return await call.begin(lambda: call.executor.resume(agent, session_id, mode=mode, message=messages))
        except StillWaitingError:
            raise RefusedError(409, "still_waiting", "Other calls still wait for an answer.", retryable=True) from None
        except (AgentAlreadyRunningError, NothingToResumeError):
            # Another request continued with the answers first; the other messages of this request did not get in.
            run = await call.executor.get_handle(agent, session_id)
            if messages is not None or run is None:
                raise
            return run

    async def _answered_before(
        self, conversation: Conversation, run: RunRecord, asked: list[tuple[CallOutput | Decision, PendingCall]]
    ) -> HostedRun:
        """The response to the same answers, if they were sent before."""
        for given, row in asked:
            if not _says(given, row):
                raise _answered(given, "already_completed")
        # If only the conversation was named, the current response is the one that continued with them.
        went_on = run if self._body.previous_response_id is None else conversation.after(run)
        handle = None
        if went_on is not None:
            handle = await self._call.executor.get_handle(self._agent, conversation.session_id, went_on.run_id)
        if handle is None:
            raise RefusedError(409, "nothing_to_resume", "No call of the previous response waits for an answer.")
        return handle


def _row_for(conversation: Conversation, given: CallOutput | Decision) -> PendingCall:
    for row in reversed(conversation.rows):
        named = row.approval_id if isinstance(given, Decision) else row.tool_call_id
        if named == (given.approval_id if isinstance(given, Decision) else given.call_id):
            return row
    raise _nothing_asked(given)


def _nothing_asked(given: CallOutput | Decision) -> RefusedError:
    if isinstance(given, Decision):
        detail = f"No approval request found for approval response with id {given.approval_id[:80]!r}."
    else:
        detail = f"No tool call found for function call output with call_id {given.call_id[:80]!r}."
    return BadParameterError(given.param, detail)


def _unanswered(row: PendingCall) -> RefusedError:
    if row.approval_id is not None:
        return BadParameterError("input", f"No approval response found for approval request {row.approval_id}.")
    return BadParameterError("input", f"No tool output found for function call {row.tool_call_id}.")


def _answered(given: CallOutput | Decision, code: str) -> RefusedError:
    detail = "This call was answered before, or the run continued without an answer."
    return BadParameterError(given.param, detail, status=409, code=code)


def _says(given: CallOutput | Decision, row: PendingCall) -> bool:
    """Whether an answer is the same as the stored one."""
    match row.answer, given:
        case ApprovalAnswer(approved=approved), Decision():
            return approved == given.approved
        case ToolAnswer(result=result, error=None), CallOutput():
            return result in given.readings
        case _:
            return False
