"""Conversations over plain HTTP: say something, in a new session or an existing one, and ask what came of it."""

from contextlib import suppress
from hashlib import sha256
from typing import Any

from starlette.responses import Response

from helix_agents.agent.agent import AnyAgent
from helix_agents.domain.errors import QueuedTurnDroppedError, RunNotFoundError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.results import Completed, Failed, Interrupted, Suspended
from helix_agents.domain.sessions import SessionState, SessionSummary
from helix_agents.runtimes.executor.hosting import HostedRun
from helix_agents.server.answers import RunOutcome
from helix_agents.server.bodies import ExecuteBody, messages_of
from helix_agents.server.calls import Call, json_response
from helix_agents.server.errors import invalid
from helix_agents.server.executor_routes import entry_agent, metadata_of_new, started

LONGEST_WAIT = 60
"""How many seconds a request for an outcome may wait for it."""


async def execute(call: Call) -> Response:
    """Say something to an agent: in a new session, or as the next turn of an existing one.

    Repeating the call with the same `idempotencyKey`, and the same `sessionId` if there is one, returns the run that
    the first call started. If a run of the session is running, `ifRunning` decides: the message is refused, waits in
    the store until it can be answered, is taken in by the run with its next step, or stops the run. `state`, `metadata`
    and `tags` apply only to a new session.
    """
    body: ExecuteBody = await call.body(ExecuteBody)
    given = _session_id(call, body)
    session = None if given is None else await call.find_session(given)
    agent = _agent_for(call, body, session)
    messages = call.checked_messages(messages_of(body.message))
    metadata = metadata_of_new(call, body.metadata)
    owner = call.owner()
    run = await call.begin(
        lambda: call.executor.execute(
            agent,
            messages,
            given,
            state=body.state,
            user_id=owner,
            tags=body.tags,
            metadata=metadata,
            idempotency_key=body.idempotency_key,
            only_own=True,
            if_running=body.if_running,
        ),
        within=session,
    )
    return json_response(started(run))


async def result(call: Call) -> Response:
    """What became of a run: how it ended, what it waits for, or that it is not over yet.

    With `wait`, the response comes once the run has ended or waits for an answer, but at most after so many seconds.
    Without `runId`, it is about the session's current run.
    """
    session = await call.session(call.query_id())
    run_id, seconds = call.query_run_id(), call.number("wait", 0)
    if seconds > LONGEST_WAIT:
        raise invalid(f"wait can be at most {LONGEST_WAIT} seconds.")
    run = await call.executor.get_handle(call.agent_of(session), session.session_id, run_id)
    if run is None:
        raise RunNotFoundError(run_id or session.session_id)
    asked = Asked(call, session, run)
    so_far = await asked.so_far()
    if so_far is not None and seconds:
        so_far = await asked.wait(seconds)
    return json_response(so_far or await asked.outcome())


def _session_id(call: Call, body: ExecuteBody) -> SessionId | None:
    """The session of a request. A new one that has to be recognised gets an id that follows from the request."""
    key = body.idempotency_key
    if key is not None:
        call.checked(key, "idempotency key")
    if body.session_id is not None:
        return call.checked(body.session_id)
    if key is None:
        return None
    known_by = "\x1f".join((call.principal.user_id or "", body.agent_type or "", key))
    return f"session_{sha256(known_by.encode()).hexdigest()[:32]}"


def _agent_for(call: Call, body: ExecuteBody, session: SessionState | None) -> AnyAgent:
    if body.agent_type is not None:
        return entry_agent(call, body.agent_type)
    if session is not None:
        return call.agent_of(session)
    if len(call.entry_agents) != 1:
        raise invalid("This server has several agents; name one as agentType.")
    return entry_agent(call, next(iter(call.entry_agents)))


class Asked:
    """A run whose outcome a caller asks for."""

    def __init__(self, call: Call, session: SessionSummary, run: HostedRun) -> None:
        self._call = call
        self._run = run
        self._session = session

    @property
    def _about(self) -> dict[str, Any]:
        session, run = self._session, self._run
        return {
            "session_id": run.session_id,
            "agent_type": session.agent_type,
            "held_by": session.held_by,
            "run_id": run.run_id,
        }

    async def so_far(self) -> RunOutcome | None:
        """The state of a run that is not over; None if it is over, or was taken back before it started."""
        # In this order, because the run may start between the two looks.
        queued = await self._call.executor.sessions.queued(self._run.session_id)
        if any(turn.run_id == self._run.run_id for turn in queued):
            return RunOutcome(status="queued", **self._about)
        with suppress(QueuedTurnDroppedError):
            # Another run may have taken the message in.
            self._run = await self._run.begun()
        record = await self._call.run(self._run.session_id, self._run.run_id)
        return (
            RunOutcome(status="running", **self._about) if record is not None and record.status == "running" else None
        )

    async def wait(self, seconds: int) -> RunOutcome | None:
        """Wait until the run is over, time is up, this instance has to leave or nobody waits any more; returns what
        `so_far` would."""
        over = await self._call.outwait(self._run.result, self._run, seconds=seconds)
        return await self.so_far() if over is None else None

    async def outcome(self) -> RunOutcome:
        """How a run ended that is over."""
        # The run itself: a message that waited may have been taken in by another one.
        self._run = await self._run.begun()
        match await self._run.result():
            case Completed(reason=reason):
                # As it is stored: the agent's type has made a Python object of it.
                record = await self._call.run(self._run.session_id, self._run.run_id)
                output = None if record is None else record.output
                return RunOutcome(status="completed", output=output, reason=reason, **self._about)
            case Suspended(kind=kind, step_id=step_id, pending=pending, children=children):
                waits_for = {"step_id": step_id, "pending": pending, "children": children}
                return RunOutcome(status=kind, **waits_for, **self._about)
            case Interrupted(reason=reason):
                return RunOutcome(status="interrupted", reason=reason, **self._about)
            case Failed(code=code, error=error, retryable=retryable):
                return RunOutcome(status="failed", code=code, error=error, retryable=retryable, **self._about)
            case other:
                raise TypeError(f"an executor returned {other!r} as the outcome of a run")
