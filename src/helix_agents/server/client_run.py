"""A run behind an agent server, as a client sees it: read it, wait for it, stop it."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, Generic
from urllib.parse import quote, urlencode

from helix_agents.agent.growing_output import growing_output
from helix_agents.agent.output import OutputT, OutputType
from helix_agents.domain.chunks import StreamChunk, TextDelta
from helix_agents.domain.errors import RemoteProtocolError, RemoteRefusedError, RemoteUnavailableError
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.records import JSON, Record
from helix_agents.domain.results import Completed, Failed, Interrupted, RunResult, Suspended
from helix_agents.domain.sessions import InterruptOutcome, InterruptSet, NothingRunning
from helix_agents.domain.usage import UsageRollup
from helix_agents.runtimes.executor.handle import output_of
from helix_agents.server.answers import RunOutcome, Stopped
from helix_agents.server.connection import Connection
from helix_agents.server.remote_http import OPENED
from helix_agents.server.remote_wire import Event, read_chunk, read_json, read_whole

WAIT_SECONDS = 25
"""How long one request waits for a run to end. Proxies cut off what is silent for a minute or so."""


class ClientRun(Generic[OutputT]):
    """One run of a session behind an agent server. `execute`, `resume`, `retry` and `get_handle` of an `AgentClient`
    return one.

    The run does not depend on this object, nor on the connection. If the server's instance goes away, reading and
    waiting continue with the next one.
    """

    def __init__(
        self,
        connection: Connection,
        session_id: SessionId,
        run_id: RunId,
        load: Callable[[JSON], OutputT],
        type_of: Callable[[str], OutputType[Any] | None],
    ) -> None:
        self.session_id = session_id
        self.run_id = run_id
        self._connection = connection
        self._load = load
        self._type_of = type_of

    async def stream(self, *, from_sequence: int | None = None) -> AsyncGenerator[StreamChunk, None]:
        """The run's chunks, from its start or after a sequence: each exactly once, whatever happens to connections.
        Ends when the run does, and does not raise because the run failed.

        Raises:
            RemoteUnavailableError: the server did not answer for as long as the client is patient.
        """
        reading = _Reading(self._connection.url, from_sequence)
        patience = self._connection.patience()
        while not reading.at_end:
            try:
                async with aclosing(self._connection.events(self._path("/sse", **reading.begin()))) as events:
                    async for event in events:
                        if event is OPENED:
                            patience.connected()
                        chunk = self._connection.http.read(partial(reading.take, event))
                        if chunk is not None:
                            patience.renew()
                            yield chunk
                        if reading.at_end or reading.is_sent_away:
                            break
                if not reading.at_end:
                    raise RemoteUnavailableError(self._connection.url, "the stream ended before the run did")
            except RemoteUnavailableError as problem:
                await patience.wait(problem)

    async def text(self) -> AsyncGenerator[str, None]:
        """The text of the answer as it is written, piece by piece."""
        async for chunk in self.stream():
            if isinstance(chunk, TextDelta) and chunk.session_id == self.session_id:
                yield chunk.delta

    def partial_output(self) -> AsyncGenerator[Any, None]:
        """The output while the model writes it: each time as much as can be read, and at last all of it.

        It is a text, or plain JSON under the names that the model uses, and only the last one was validated. It starts
        again if the model does.
        """
        return growing_output(self.stream(), self.session_id, self._type_of)

    async def result(self) -> RunResult[OutputT]:
        """Wait for the run to end or to need an answer, and return which.

        Raises:
            ToolOutputError: the output is not of the type that the client expects.
        """
        while True:
            path = self._path("/result", wait=WAIT_SECONDS)
            outcome = await self._connection.ask(RunOutcome, "GET", path, waits=WAIT_SECONDS)
            if outcome.status not in ("queued", "running"):
                return self._result(outcome)

    async def output(self) -> OutputT:
        """Wait for the run to complete, and return its output.

        Raises:
            RunNotCompletedError: it ended in another way.
        """
        return output_of(await self.result())

    async def interrupt(self, reason: str | None = None) -> InterruptOutcome:
        """Ask the run to stop soon, keeping what it did; `resume` continues it. A run that waits for its turn is taken
        back. Other runs of the session are left alone."""
        return await self._stop("/interrupt", reason)

    async def abort(self, reason: str | None = None) -> InterruptOutcome:
        """Fail the run for good."""
        return await self._stop("/abort", reason)

    async def usage(self) -> UsageRollup:
        """What the session and everything below it have used so far."""
        return await self._connection.ask(UsageRollup, "GET", session_path(self.session_id, "/usage"))

    def _result(self, outcome: RunOutcome) -> RunResult[OutputT]:
        # A message that the run in progress took in is answered by that run.
        about: dict[str, Any] = {"session_id": self.session_id, "run_id": outcome.run_id}
        match outcome.status:
            case "completed":
                return Completed(output=self._load(outcome.output), reason=outcome.reason or "finished", **about)
            case "interrupted":
                return Interrupted(reason=outcome.reason, **about)
            case "failed":
                code, error = outcome.code or "failed", outcome.error or "The run failed."
                return Failed(code=code, error=error, retryable=outcome.retryable, **about)
            case "queued" | "running":
                raise RemoteProtocolError(self._connection.url, "it said that a run which is not over is over")
            case kind:
                waits_for = {"pending": outcome.pending, "children": outcome.children}
                return Suspended(kind=kind, step_id=outcome.step_id or "", **waits_for, **about)

    async def _stop(self, path: str, reason: str | None) -> InterruptOutcome:
        return await stop(self._connection, path, {"sessionId": self.session_id, "runId": self.run_id}, reason)

    def _path(self, route: str, **query: int) -> str:
        return f"{route}?{urlencode({'sessionId': self.session_id, 'runId': self.run_id, **query})}"


class _Reading:
    """How far a reader has come in a run's stream, and whether the server has said how to go on."""

    def __init__(self, url: str, after: int | None) -> None:
        self._url = url
        self._after = after
        self.at_end = False
        self.is_sent_away = False

    def begin(self) -> dict[str, int]:
        """Where the next connection continues."""
        self.is_sent_away = False
        return {} if self._after is None else {"fromSequence": self._after}

    def take(self, event: Event) -> StreamChunk | None:
        """The chunk in an event, if it has one.

        Raises:
            RemoteRefusedError: the stream is broken for good.
        """
        match event.name:
            case "message":
                chunk = read_chunk(event)
                self._after = int(event.id or 0)
                return chunk
            case "end":
                self.at_end = True
            case "reconnect":
                self.is_sent_away = True
            case "error":
                told = read_whole(read_json(event.data), _Trouble)
                if not told.retryable:
                    raise RemoteRefusedError(self._url, 500, told.code, told.error)
                self.is_sent_away = True
            case _:
                pass
        return None


class _Trouble(Record):
    """Why the server cannot go on with a stream."""

    error: str
    code: str
    retryable: bool = False


def session_path(session_id: SessionId, rest: str = "") -> str:
    """The path of a session's route."""
    return f"/sessions/{quote(session_id, safe='')}{rest}"


async def stop(connection: Connection, path: str, body: dict[str, JSON], reason: str | None) -> InterruptOutcome:
    """Ask for a stop, durably."""
    stopped = await connection.ask(Stopped, "POST", path, body if reason is None else {**body, "reason": reason})
    if stopped.outcome == "interrupt_set" and stopped.run_id is not None:
        return InterruptSet(run_id=stopped.run_id)
    return NothingRunning()
