"""The executor's operations over HTTP: start, resume, follow, look, stop, answer."""

from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from starlette.responses import Response

from helix_agents.agent.agent import AnyAgent
from helix_agents.domain.chunks import StreamChunk, StreamResync, Truncated
from helix_agents.domain.errors import (
    AgentAlreadyRunningError,
    AgentMismatchError,
    HelixError,
    NothingToResumeError,
    RunNotFoundError,
    SessionAlreadyExistsError,
    WorkspaceFileError,
)
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.pending import (
    OPEN,
    AnswerAccepted,
    AnswerAlreadyCompleted,
    AnswerLate,
    AnswerNotFound,
    AnswerRefused,
    ApprovalAnswer,
    PendingCall,
    ToolAnswer,
    accepted,
)
from helix_agents.domain.runs import SUSPENDED, RunRecord
from helix_agents.domain.sessions import OUR_METADATA, InterruptOutcome, InterruptSet, SessionState, SessionSummary
from helix_agents.domain.traces import IN_TRACE, TRACE, read_trace_place
from helix_agents.engine.scope import DEPTH
from helix_agents.runtimes.executor.hosting import HostedRun
from helix_agents.server.answers import Started, Status, Stopped, Submitted, WorkspaceListing
from helix_agents.server.bodies import (
    ApprovalResponse,
    BranchBody,
    ResumeBody,
    RetryBody,
    RewindBody,
    StartBody,
    StopBody,
    SubmitBody,
    messages_of,
)
from helix_agents.server.calls import Call, json_response, whole_number
from helix_agents.server.errors import RefusedError, invalid, passes, sentence_for, status_of
from helix_agents.server.sse import frame
from helix_agents.server.wire import to_json

MOST_LISTED = 1_000
"""How many entries of a workspace one response lists."""


RUN_CONFLICT = "run_conflict"


async def start(call: Call) -> Response:
    """Start a session with its first message.

    Repeating the call with the same `sessionId` returns the current run while the session is active or paused, and 409
    after that.
    """
    body: StartBody = await call.body(StartBody)
    agent = entry_agent(call, body.agent_type)
    session_id = None if body.session_id is None else call.checked(body.session_id)
    session = None if session_id is None else await call.find_session(session_id)
    if session is not None:
        return json_response(_as_it_is(session, agent))
    messages = call.checked_messages(messages_of(body.message))
    metadata = metadata_of_new(call, body.metadata)
    owner = call.owner()
    try:
        run = await call.begin(
            lambda: call.executor.execute(
                agent,
                messages,
                session_id,
                state=body.state,
                user_id=owner,
                tags=body.tags,
                metadata=metadata,
                only_new=True,
            )
        )
    except (AgentAlreadyRunningError, SessionAlreadyExistsError):
        # Of two concurrent calls, the other one started the session, and it may belong to another user.
        session = await call.find_session(session_id or "")
        if session is None:
            raise
        return json_response(_as_it_is(session, agent))
    return json_response(started(run))


async def resume(call: Call) -> Response:
    """Continue what a session left open."""
    body: ResumeBody = await call.body(ResumeBody)
    session = await call.session(call.checked(body.session_id))
    mode = body.mode or ("with_message" if body.message is not None else "continue")
    if mode == "with_message" and body.message is None:
        raise invalid("Mode with_message needs a message.")
    if (mode == "from_checkpoint") != (body.checkpoint_id is not None):
        raise invalid("Mode from_checkpoint needs a checkpointId, and checkpointId needs this mode.")
    messages = None if body.message is None else call.checked_messages(messages_of(body.message))
    agent, checkpoint_id = _agent_meant(call, session, body), body.checkpoint_id
    try:
        run = await call.begin(
            lambda: call.executor.resume(
                agent, session.session_id, mode=mode, message=messages, checkpoint_id=checkpoint_id
            )
        )
    except NothingToResumeError as reason:
        if session.status != "completed":
            raise
        raise RefusedError(409, "already_completed", str(reason)) from None
    return json_response(started(run))


async def retry(call: Call) -> Response:
    """Continue a failed run from its last commit, with a fresh budget."""
    body: RetryBody = await call.body(RetryBody)
    session = await call.session(call.checked(body.session_id))
    agent = _agent_meant(call, session, body)
    return json_response(started(await call.begin(lambda: call.executor.retry(agent, session.session_id))))


async def rewind(call: Call) -> Response:
    """Take a session back to a checkpoint, or to its `beginning`, and leave it there, interrupted."""
    body: RewindBody = await call.body(RewindBody)
    session = await call.session(call.checked(body.session_id))
    await call.executor.rewind(session.session_id, call.checked(body.checkpoint_id, "checkpoint id"))
    return json_response(await call.session(session.session_id))


async def branch(call: Call) -> Response:
    """Create a session with the messages and state that another session has, or had at a checkpoint."""
    body: BranchBody = await call.body(BranchBody)
    session = await call.session(call.checked(body.session_id))
    checkpoint_id = None if body.checkpoint_id is None else call.checked(body.checkpoint_id, "checkpoint id")
    new = call.checked(body.new_session_id)
    await call.executor.sessions.branch(session.session_id, new, checkpoint_id=checkpoint_id)
    return json_response(await call.session(new))


async def follow(call: Call) -> Any:
    """The session's chunks as server-sent events: those stored so far, then live ones, until the run ends or waits.

    With `runId`, only the chunks of this run, from its start, even if it is still waiting for its turn. Chunks are
    events without a name, with their sequence as id. Events with a name are about the stream: `end` is the
    last one and says how the run ended (`status`, and `output` if it completed); `reconnect` says that another
    instance continues; `error` says what broke.
    """
    session = await call.session(call.query_id())
    cursor, run_id = cursor_of(call), call.query_run_id()
    call.gate.check_stream(call.principal)
    run = await call.executor.get_handle(call.agent_of(session), session.session_id, run_id)
    if run is None:
        raise RunNotFoundError(run_id or session.session_id)
    return call.stream(ChunkSource(call, run, cursor, is_alone=run_id is not None), run=run)


async def status(call: Call) -> Response:
    """The status of a session, and what it waits for."""
    session = await call.whole_session(call.query_id())
    run = await call.current_run(session.session_id)
    if run is not None and run.status != "running" and session.status == "active":
        # It may have come to rest between the two reads, and then the session has the outcome.
        session = await call.whole_session(session.session_id)
    return json_response(status_of_session(session, run))


async def interrupt(call: Call) -> Response:
    """Ask the run to stop soon, and keep what it did."""
    body: StopBody = await call.body(StopBody)
    session = await call.session(call.checked(body.session_id))
    run = await _run_meant(call, session, body.run_id)
    if run is not None:
        return json_response(stopped(await run.interrupt(body.reason)))
    return json_response(stopped(await call.executor.interrupt(session.session_id, body.reason)))


async def abort(call: Call) -> Response:
    """Fail the run for good."""
    body: StopBody = await call.body(StopBody)
    session = await call.session(call.checked(body.session_id))
    run = await _run_meant(call, session, body.run_id)
    if run is not None:
        return json_response(stopped(await run.abort(body.reason)))
    return json_response(stopped(await call.executor.abort(session.session_id, body.reason)))


async def submit_tool_result(call: Call) -> Response:
    """Store an answer to a waiting call. This is a durable write and does not resume the run.

    If the call's `reason` is `unknown_outcome`, the call was started, and it is not known whether it took effect. An
    approval runs it a second time, a denial tells the model that the outcome is unknown, and a `client-tool-result`
    says what happened.
    """
    body: SubmitBody = await call.body(SubmitBody)
    if body.session_id is None:
        raise invalid("The body needs a sessionId.")
    session = await call.session(call.checked(body.session_id))
    return json_response(await submit(call, session.session_id, body))


async def workspace(call: Call) -> Response:
    """The contents of the session's workspace, or of a folder in it."""
    session = await call.session(call.query_id())
    speakers = call.executor.agents.speakers_of(call.agent_of(session).name)
    declared = next((each.workspace for each in speakers if each.workspace is not None), None)
    if declared is None:
        raise RefusedError(404, "workspace_not_configured", "The agent of this session has no workspace.")
    path = call.query("path") or ""
    files = await call.executor.sessions.workspace(session.session_id)
    try:
        found = () if files is None else await files.list(path, most=MOST_LISTED + 1)
    except WorkspaceFileError as refused:
        raise RefusedError(404, refused.code, str(refused)) from None
    listing = WorkspaceListing(
        session_id=session.session_id,
        provider_id=declared.provider.provider_id,
        capabilities=tuple(declared.capabilities),
        opened=files is not None,
        path=path,
        entries=tuple(found[:MOST_LISTED]),
        has_more=len(found) > MOST_LISTED,
    )
    return json_response(listing)


async def submit(call: Call, session_id: SessionId, body: SubmitBody) -> Submitted:
    """Pass an answer to the engine, and report the outcome.

    Raises:
        RefusedError: it does not fit the call, or there is no such call.
    """
    call.checked(body.tool_call_id, "tool call id")
    if isinstance(body, ApprovalResponse):
        answer = ApprovalAnswer(approved=body.approved, reason=body.reason, edited_input=body.edited_input)
        approval_id = call.checked(body.approval_id, "approval id")
    else:
        answer, approval_id = ToolAnswer(result=body.result, error=body.error), None
    outcome = await call.executor.submit_tool_result(session_id, body.tool_call_id, answer, approval_id=approval_id)
    match outcome:
        case AnswerAccepted(next=continuation, still_waiting=count):
            return Submitted(outcome="accepted", continuation=continuation, still_waiting=count)
        case AnswerAlreadyCompleted(call=row):
            return await _answered_before(call, row)
        case AnswerLate():
            return Submitted(outcome="late_answer_after_timeout", continuation="nothing")
        case AnswerRefused(reason=reason):
            raise invalid(reason)
        case AnswerNotFound():
            raise RefusedError(404, "not_found", f"No call {body.tool_call_id!r} waits in this session.")


async def _answered_before(call: Call, row: PendingCall) -> Submitted:
    """The outcome for a call that has its answer. Whoever gave it may have got no response, and asks again what is
    needed next."""
    if row.state != "answered":
        return Submitted(outcome="already_completed", continuation="nothing")
    run = await call.current_run(row.root_session_id)
    waiting = len(await call.waiting(row.root_session_id))
    running = run is not None and run.status == "running"
    following = accepted(row, running=running, still_waiting=waiting)
    return Submitted(outcome="already_completed", continuation=following.next, still_waiting=waiting)


async def submit_one_of(call: Call, session_id: SessionId, readings: Sequence[SubmitBody]) -> Submitted:
    """Pass an answer that can be read in several ways: as the first of them that fits the call.

    Raises:
        RefusedError: none does; this is the reason why the first does not.
    """
    refused: RefusedError | None = None
    for reading in readings:
        try:
            return await submit(call, session_id, reading)
        except RefusedError as refusal:
            if refusal.status != 400:
                raise
            refused = refused or refusal
    assert refused is not None
    raise refused


def entry_agent(call: Call, name: str) -> AnyAgent:
    """An agent that callers may talk to: one that was registered, not one that another agent delegates to."""
    if name not in call.entry_agents:
        there_are = ", ".join(sorted(call.entry_agents)) or "none"
        raise RefusedError(404, "unknown_agent", f"This server has no agent {name[:80]!r}; there are: {there_are}.")
    return call.executor.agents.get(name)


def cursor_of(call: Call) -> int:
    """The reader's position: what its browser reports when it reconnects, or else what it asks for.

    An empty id counts as none, as it does for browsers.
    """
    asked = call.number("fromSequence", 0)
    given = call.request.headers.get("last-event-id")
    if not given:
        return asked
    cursor = whole_number(given)
    if cursor is None:
        raise invalid(f"Last-Event-ID must be an id of this stream, not {given[:80]!r}.")
    return cursor


def started(run: HostedRun) -> Started:
    """A run as shown to its caller."""
    return Started(session_id=run.session_id, stream_id=run.session_id, run_id=run.run_id)


def stopped(outcome: InterruptOutcome) -> Stopped:
    """A stop request's outcome as shown to its caller."""
    if isinstance(outcome, InterruptSet):
        return Stopped(outcome="interrupt_set", run_id=outcome.run_id)
    return Stopped(outcome="nothing_running")


def status_of_session(session: SessionState, run: RunRecord | None) -> Status:
    """A session and its current run as shown to a reader."""
    waiting = tuple(call for call in session.pending_client_tool_calls.values() if call.state in OPEN)
    suspended = run is not None and run.status in SUSPENDED
    context = session.interrupt_context
    return Status(
        session_id=session.session_id,
        agent_type=session.agent_type,
        held_by=session.held_by,
        status=session.status,
        run_id=session.current_run_id,
        run_status=run.status if run is not None else None,
        turn=run.turn if run is not None else 0,
        attempt=run.attempt if run is not None else 0,
        step_count=session.step_count,
        awaiting_client_tool=suspended and any(call.state == "waiting" for call in waiting),
        pending=waiting,
        output=session.output,
        error=session.error,
        failure_reason=session.failure_reason,
        interrupt_reason=context.reason if context is not None else None,
        stream_id=session.stream_id or session.session_id,
        updated_at=session.updated_at,
    )


def metadata_of_new(call: Call, given: dict[str, str]) -> dict[str, str]:
    """The metadata of a new session, with its place in the trace of a service that delegates to this one.

    Raises:
        RefusedError: some of it is reserved for the engine.
    """
    check_metadata(given)
    trace = read_trace_place(call.request.headers.get(IN_TRACE))
    return given if trace is None else {**given, TRACE: str(trace)}


def check_metadata(metadata: dict[str, str]) -> None:
    """Refuse metadata reserved for the engine, except the depth at which a caller delegates.

    Raises:
        RefusedError: there is other reserved metadata.
    """
    ours = [key for key in metadata if key.startswith(OUR_METADATA) and key != DEPTH]
    if ours:
        raise invalid(f"Metadata keys that start with {OUR_METADATA!r} are reserved for the engine: {ours[0][:80]!r}.")


def _agent_meant(call: Call, session: SessionSummary, body: ResumeBody | RetryBody) -> AnyAgent:
    """The session's agent, if the caller means this agent and this run.

    Raises:
        AgentMismatchError, RefusedError: the caller named another one.
    """
    if body.agent_type is not None and body.agent_type not in (session.agent_type, session.worked_by):
        raise AgentMismatchError(session.session_id, session.agent_type, body.agent_type[:80])
    if body.run_id is not None and call.checked(body.run_id, "run id") != session.current_run_id:
        raise RefusedError(409, RUN_CONFLICT, "Another run has followed the one that was to be continued.")
    return call.agent_of(session)


async def _run_meant(call: Call, session: SessionSummary, run_id: RunId | None) -> HostedRun | None:
    """The run that a caller named; None if it named none.

    Raises:
        RunNotFoundError: the session has no such run.
    """
    if run_id is None:
        return None
    run = await call.executor.get_handle(call.agent_of(session), session.session_id, call.checked(run_id, "run id"))
    if run is None:
        raise RunNotFoundError(run_id)
    return run


def _as_it_is(session: SessionState, agent: AnyAgent) -> Started:
    """A session that was started before.

    Raises:
        AgentMismatchError: it was started with another agent.
        RefusedError: it is over.
    """
    if session.agent_type != agent.name:
        raise AgentMismatchError(session.session_id, session.agent_type, agent.name)
    if session.current_run_id is None or session.status not in ("active", "paused"):
        raise RefusedError(
            409, "already_completed", f"This session is already {session.status}; /start only starts a new session."
        )
    return Started(
        session_id=session.session_id,
        stream_id=session.stream_id or session.session_id,
        run_id=session.current_run_id,
    )


_frames: OrderedDict[tuple[str, int, int], bytes] = OrderedDict()
FRAMES_KEPT = 4_096
FRAME_BYTES_KEPT = 4_096


def chunk_frame(chunk: StreamChunk) -> bytes:
    """A chunk as an event. Readers of one stream want the same chunks at the same time, so the latest are cached.

    A run never uses a number twice, unless its stream was lost; then the timestamp tells the two apart. Frames made for
    one reader alone, and large ones, are not cached, so that the cache stays within some megabytes.
    """
    if isinstance(chunk, Truncated | StreamResync):
        return frame(to_json(chunk), id=chunk.sequence)
    key = (chunk.run_id, chunk.sequence, chunk.timestamp)
    known = _frames.get(key)
    if known is None:
        known = frame(to_json(chunk), id=chunk.sequence)
        if len(known) <= FRAME_BYTES_KEPT:
            _frames[key] = known
        if len(_frames) > FRAMES_KEPT:
            _frames.popitem(last=False)
    return known


class ChunkSource:
    """A session's chunks, each with its sequence as id, and then the outcome of its current run; or, `is_alone`, only
    the chunks of one run.

    Events named `end`, `error` and `reconnect` are about the stream; everything else is a chunk.
    """

    def __init__(self, call: Call, run: HostedRun, cursor: int, *, is_alone: bool = False) -> None:
        self._call = call
        self._run = run
        self._cursor = cursor
        self._is_alone = is_alone

    async def frames(self) -> AsyncGenerator[bytes, None]:
        # Without a cursor, a reader of the session sees all of its stream, and a reader of one run sees the run.
        begin = None if self._is_alone and not self._cursor else self._cursor
        try:
            async with aclosing(self._run.stream(from_sequence=begin)) as chunks:
                async for chunk in chunks:
                    self._cursor = chunk.sequence
                    yield chunk_frame(chunk)
            run = await self._followed()
        except HelixError as problem:
            sentence = sentence_for(problem.code, status_of(problem))
            told = {"error": sentence, "code": problem.code, "retryable": passes(problem)}
            yield frame(to_json(told), event="error")
            return
        if run is None or run.status == "running" or run.run_id != self._run.run_id:
            yield self.farewell()
            return
        yield frame(to_json(_end(run, self._cursor)), id=self._cursor, event="end")

    async def _followed(self) -> RunRecord | None:
        if self._is_alone:
            # While it was waited for, another run may have taken the message in.
            self._run = await self._run.begun()
            return await self._call.run(self._run.session_id, self._run.run_id)
        return await self._call.current_run(self._run.session_id)

    def farewell(self) -> bytes:
        wait = self._call.gate.limits.retry_after_seconds
        told = {"lastEventId": self._cursor, "retryAfterSeconds": wait}
        return b"retry: %d\n%s" % (wait * 1000, frame(to_json(told), id=self._cursor, event="reconnect"))


def _end(run: RunRecord, sequence: int) -> dict[str, Any]:
    """A run's outcome, for a reader that has to act on it; a failed run is never reported as completed."""
    told: dict[str, Any] = {"runId": run.run_id, "status": run.status, "turn": run.turn, "sequence": sequence}
    if run.status == "completed":
        told["output"] = run.output
    if run.status == "failed":
        told |= {"code": run.completion_reason or "failed", "error": sentence_for(run.completion_reason or "failed")}
    return told
