"""Following a child behind another service: its chunks and questions come here, and its end settles the call.

A session here stands for the child, with a run that is followed instead of driven, the calls that it waits for, its
output, state and usage. So everything that holds for a local child holds for it.

| what the other service says                 | what follows                                                    |
|---------------------------------------------|-----------------------------------------------------------------|
| no such session                             | it is started; one that was there before is lost                |
| its run is in progress                      | its chunks are read on from the last one that is here           |
| it waits for an answer                      | the same calls wait here, and an answer given here goes there   |
| it is at its end                            | so is the session here, with its output, state and usage        |
| nothing on its stream, for long             | its end is taken over without what it said on the way there     |
| nothing at all, for long                    | it is lost: a typed error, and a stop that is owed              |
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

import msgspec

from helix_agents.agent.remote_agents import RemoteAgentTool
from helix_agents.domain.budgets import Spent
from helix_agents.domain.checkpoints import CheckpointMeta
from helix_agents.domain.chunks import StepDiscarded, StreamChunk
from helix_agents.domain.commits import Committed, StepCommit
from helix_agents.domain.errors import (
    ChunkTooLargeError,
    HelixError,
    InvalidIdError,
    RemoteAgentError,
    RemoteRefusedError,
    RemoteSubAgentClientToolUnsupportedError,
    RemoteSubAgentLostError,
    RemoteUnavailableError,
)
from helix_agents.domain.ids import ToolCallId
from helix_agents.domain.messages import ToolMessage, UserMessage
from helix_agents.domain.records import encode
from helix_agents.domain.runs import SUSPENDED, RunRecord, RunUpdate
from helix_agents.domain.sessions import InterruptContext, SessionState
from helix_agents.domain.usage import UsageEntry
from helix_agents.domain.writes import NO_WRITES, StepWrites, difference
from helix_agents.engine.effects import PlannedCall
from helix_agents.engine.log import log_event, log_exception
from helix_agents.engine.remote.chunks import Names, attributed
from helix_agents.engine.remote.patience import Patience
from helix_agents.engine.remote.questions import RemoteQuestions
from helix_agents.engine.remote.rest import DISPATCH_FAILED, LIMIT_EXCEEDED, Rest, end_of, interrupted
from helix_agents.engine.remote.stops import (
    CHUNKS,
    CURSOR,
    PLACE,
    PROMPTLY_SECONDS,
    REMOTE,
    STARTED,
    USAGE,
    WAITING,
    WAITS,
    as_new_remote,
    as_remote,
    stop_remote,
)
from helix_agents.engine.remote.usage import count_anew
from helix_agents.engine.scope import RunScope, step_id_of
from helix_agents.engine.steps.spending import priced
from helix_agents.engine.steps.step_work import CANCELLED
from helix_agents.engine.steps.stop_watch import StopSignal, undisturbed
from helix_agents.ports.remote_agents import RemoteStart, RemoteStatus

_AFTERWARDS_SECONDS = 10.0
# The metadata keys of the child that a commit sets or removes.
_KEPT = (REMOTE, WAITS, CURSOR, CHUNKS, USAGE)


async def follow_remote(
    scope: RunScope, planned: PlannedCall, run: RunRecord, tool: RemoteAgentTool, message: UserMessage, stop: StopSignal
) -> None:
    """Follow a remote child until it ends or waits for an answer.

    Raises:
        SupersededError: another process follows it.
    """
    session = await scope.services.store.load_state(run.session_id)
    follower = _Follower(scope, planned, run, tool, message, stop, session)
    await follower.find_place()
    while await follower.commit(await follower.rest()):
        pass


class _Follower:
    """Follows one remote child during one attempt of its run here."""

    def __init__(
        self,
        scope: RunScope,
        planned: PlannedCall,
        run: RunRecord,
        tool: RemoteAgentTool,
        message: UserMessage,
        stop: StopSignal,
        session: SessionState,
    ) -> None:
        self._scope = scope
        self._store = scope.services.store
        self._planned = planned
        self._run = run
        self._tool = tool
        self._transport = tool.transport
        self._message = message
        self._stop = stop
        self._session = session
        self._remote = as_remote(session)
        self._metadata = dict(session.metadata)
        self._names = Names(session.session_id)
        self._cursor = int(session.metadata.get(CURSOR, "0"))
        self._chunks = int(session.metadata.get(CHUNKS, "0"))
        self._bytes = 0
        self._step = session.step_count + 1
        self._round = 0
        # What a dead attempt did is not known: its start may have reached the service.
        self._tried = run.attempt > 1
        self._entries = 0
        self._questions = RemoteQuestions(
            self._store,
            tool,
            run,
            session,
            self._names,
            step=self._step,
            result_bytes=scope.services.result_bytes,
            deadline_ms=scope.services.options.pending_deadline_ms,
        )

    async def find_place(self) -> None:
        """Find the position after what a dead attempt already wrote to the stream, so that it is not written twice."""
        if self._session.step_count:
            await self._questions.remember()
        if self._run.attempt == 1:
            return
        committed = self._cursor
        for chunk in await self._scope.services.streams.get_all_chunks(self._scope.stream_id):
            if chunk.remote_sequence is not None and self._names.is_foreign(chunk.run_id):
                self._cursor = max(self._cursor, chunk.remote_sequence)
                self._chunks += 1
                if chunk.remote_sequence > committed:
                    self._questions.hear(chunk)

    async def rest(self) -> Rest:
        """Follow the child until it comes to rest or is stopped from here."""
        with self._stop.cutting():
            return await self._to_rest()
        # A stop cut the block.
        return await self._stopped()

    async def _to_rest(self) -> Rest:
        patience = Patience(self._scope, self._tool.lost_after_ms)
        listening = Patience(self._scope, self._tool.lost_after_ms)
        while True:
            try:
                return await self._look(patience, listening)
            except RemoteUnavailableError as problem:
                if await patience.ran_out():
                    return self._lost(f"status_unreachable: {problem.reason}")
            except RemoteAgentError as problem:
                return self._failed(problem)

    async def _look(self, patience: Patience, listening: Patience) -> Rest:
        status = await self._transport.status(self._remote)
        if status is not None:
            # That nothing is known of the child says nothing about a service that is never there to start it.
            patience.contact()
        if status is None and self._stop.requested.is_set():
            # A child that was stopped before it was started is not started any more.
            return interrupted(None, confirmed=False)
        if status is None and STARTED in self._metadata:
            return self._lost("not_found")
        begun = await self._start() if status is None else RemoteStart()
        patience.contact()
        if begun.rest is not None and (rest := await self._rest_of(begun.rest)) is not None:
            return rest
        if STARTED not in self._metadata:
            # From here on, a service that does not know the session has lost it; it is not started a second time.
            await undisturbed(self._note_started(begun.place))
        used = await self._questions.route(() if status is None else status.pending)
        if used:
            await undisturbed(self._use_up(used))
        while True:
            over = await self._listen(patience, listening)
            if over is not None:
                return Rest(status="failed", reason=LIMIT_EXCEEDED, error=over)
            status = await self._transport.status(self._remote)
            patience.contact()
            if status is None:
                return self._lost("not_found")
            rest = await self._rest_of(status)
            if rest is not None:
                return rest
            # The child continues although its stream has ended: a service that claims this each time is not asked
            # without a pause.
            await patience.pause()

    async def _start(self) -> RemoteStart:
        """Start the child. A stop that comes while the service is asked lets it answer for a while, because only its
        answer may say what has to be stopped."""
        new = as_new_remote(self._session, self._run)
        again, self._tried = self._tried, True
        depth = self._scope.depth + 1
        asking = asyncio.create_task(self._transport.start(new, self._message, depth=depth, again=again))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            await asyncio.wait((asking,), timeout=PROMPTLY_SECONDS)
            if asking.cancel():
                await asyncio.wait((asking,))
            if not asking.cancelled() and asking.exception() is None:
                await undisturbed(self._note_started(asking.result().place))
            raise

    async def _rest_of(self, status: RemoteStatus) -> Rest | None:
        """Where the child rests; None if it continues."""
        if status.run_status is None or status.run_status == "running":
            return None
        end = end_of(status, self._tool, self._scope.services.result_bytes)
        if end is not None:
            return end
        waiting = tuple(call for call in status.pending if call.state == "waiting")
        if not waiting:
            # Everything it waited for has been answered there.
            await self._transport.resume(self._remote)
            return None
        return Rest(
            status=status.run_status,
            reason=status.run_status,
            pending=await self._questions.rows(waiting),
            told=True,
        )

    # -- chunks

    async def _listen(self, patience: Patience, listening: Patience) -> str | None:
        """Take over what the child says until its stream ends; returns why no more is accepted from it, if so.

        Raises:
            RemoteUnavailableError: the stream cannot be read, and this has not lasted long yet.
        """
        try:
            async with aclosing(self._transport.stream(self._remote, after=self._cursor)) as chunks:
                async for chunk in chunks:
                    patience.progress()
                    listening.progress()
                    if (over := self._over(chunk)) is not None:
                        return over
                    await self._proxy(chunk)
        except RemoteUnavailableError as problem:
            if not await listening.ran_out():
                raise
            log_event("subagent.not_heard", session_id=self._session.session_id, reason=problem.reason)
        else:
            listening.contact()
        return None

    def _over(self, chunk: StreamChunk) -> str | None:
        """Why no more is accepted from the child, if so."""
        limits = self._tool.limits
        self._chunks += 1
        if self._chunks > limits.chunks:
            return f"it wrote more than {limits.chunks} chunks"
        if self._bytes > limits.bytes:
            return f"it wrote more than {limits.bytes} bytes"
        return None

    async def _proxy(self, chunk: StreamChunk) -> None:
        """Write a chunk to the stream here, once: it carries its number, and those up to the cursor are here."""
        if chunk.sequence <= self._cursor:
            return
        if isinstance(chunk, StepDiscarded):
            await self._discard(chunk)
        else:
            told = attributed(
                chunk,
                self._names,
                there=self._remote.session_id,
                here=self._session.session_id,
                agent_type=self._session.agent_type,
                delegated_by=self._planned.tool_call_id,
            )
            if told is not None:
                self._bytes += len(encode(told))
                try:
                    await self._scope.writer.write(told)
                except ChunkTooLargeError as problem:
                    log_event("subagent.chunk_dropped", session_id=self._session.session_id, reason=str(problem))
                self._questions.hear(told)
        self._cursor = chunk.sequence

    async def _discard(self, chunk: StepDiscarded) -> None:
        """Take back here what the child took back there."""
        try:
            run_id = self._names.here(chunk.run_id)
        except InvalidIdError:
            return
        await self._scope.writer.flush()
        await self._scope.services.streams.cleanup_to_step(self._scope.stream_id, run_id, max(chunk.step, 0) - 1)

    # -- stops and losses

    async def _stopped(self) -> Rest:
        """Pass the stop on, and give the child a while to end."""
        flag = self._stop.flag
        aborted = flag is not None and flag.kind == "abort"
        reason = flag.reason if flag is not None else None
        confirmed = False
        rest: Rest | None = None
        try:
            async with asyncio.timeout(self._scope.services.options.cancel_grace_seconds):
                confirmed = await self._pass_on(reason, aborted=aborted)
                rest = await self._to_rest()
        except TimeoutError:
            pass
        if rest is not None and rest.told and rest.status not in SUSPENDED:
            return rest if rest.status != "interrupted" else interrupted(reason, confirmed=True)
        if not aborted:
            return interrupted(reason, confirmed=confirmed)
        return Rest(status="failed", reason=CANCELLED, error=reason or "The run was aborted.", confirmed=confirmed)

    async def _pass_on(self, reason: str | None, *, aborted: bool) -> bool:
        """Whether the other service accepted the stop."""
        patience = Patience(self._scope, self._tool.lost_after_ms)
        send = self._transport.abort if aborted else self._transport.interrupt
        while True:
            try:
                answer = await send(self._remote, reason)
            except RemoteUnavailableError:
                await patience.pause()
            except RemoteAgentError as problem:
                log_exception("subagent.stop_refused", problem, session_id=self._session.session_id)
                return False
            else:
                return answer != "unknown" or STARTED in self._metadata

    def _lost(self, cause: str) -> Rest:
        problem = RemoteSubAgentLostError(self._transport.url, self._session.session_id, cause)
        log_exception("subagent.lost", problem, session_id=self._session.session_id)
        return Rest(status="failed", reason=problem.code, error=str(problem), confirmed=cause == "not_found")

    def _failed(self, problem: RemoteAgentError) -> Rest:
        match problem:
            case RemoteSubAgentClientToolUnsupportedError():
                return Rest(status="failed", reason=problem.code, error=str(problem))
            case RemoteRefusedError() if STARTED not in self._metadata:
                log_exception("subagent.dispatch_failed", problem, session_id=self._scope.session.session_id)
                return Rest(status="failed", reason=DISPATCH_FAILED, error=str(problem), confirmed=True)
            case RemoteRefusedError(refusal=refusal):
                return self._lost(f"refused:{refusal}")
            case _:
                return self._lost(f"protocol: {problem}")

    # -- what is stored here

    async def commit(self, rest: Rest) -> bool:
        """Store where the child rests; True if an answer came meanwhile, so that it continues."""
        suspended = rest.status in SUSPENDED
        usage, writes = await self._afterwards(rest)
        if rest.confirmed and not suspended:
            self._metadata.pop(REMOTE, None)
        self._session = msgspec.structs.replace(
            self._session,
            status=rest.session_status,
            output=rest.output,
            error=rest.error,
            failure_reason=rest.reason if rest.status == "failed" else None,
            interrupt_context=self._interrupt_context(rest),
            spent=self._spent(usage),
        )
        committed = await self._store_step(
            StepCommit(
                fence=self._run.fence,
                step=self._step,
                round=self._next_round(),
                writes=writes,
                pending=rest.pending,
                # No one will use an answer to a child that has ended.
                consume=() if suspended else await self._questions.open_calls(),
                drop_pending=not suspended,
                run=RunUpdate(status=rest.status, completion_reason=rest.reason, output=rest.output, error=rest.error),
                suspend=suspended,
                usage=usage,
            ),
            self._questions.take_results(rest.pending),
        )
        if suspended and not committed.again:
            log_event("client_tool.suspended", session_id=self._session.session_id, run_id=self._run.run_id)
            self._scope.services.attend_remotes()
        if not suspended and not rest.confirmed:
            await stop_remote(self._scope.services, self._session.session_id)
        return committed.again

    def _spent(self, usage: Sequence[UsageEntry]) -> Spent | None:
        """What the child used of budgets above it; this is known when it rests, not while it works."""
        scope, spent = self._scope, self._session.spent
        if not (scope.shares_budget or scope.spends_from_above):
            return spent
        return (spent or Spent(since=self._run.run_id)).used(priced(scope, usage), {})

    async def _use_up(self, calls: tuple[ToolCallId, ...]) -> None:
        await self._store_step(
            StepCommit(fence=self._run.fence, step=self._step, round=self._next_round(), consume=calls)
        )

    async def _store_step(self, commit: StepCommit, results: Sequence[ToolMessage] = ()) -> Committed:
        """Make one commit. The chunks so far are stored before it or with it, so the cursor in it is accurate."""
        scope, store, session_id = self._scope, self._store, self._session.session_id
        self._metadata |= {CURSOR: str(self._cursor), CHUNKS: str(self._chunks)}
        if commit.suspend:
            self._metadata[WAITS] = WAITING
        else:
            self._metadata.pop(WAITS, None)
        record = msgspec.structs.replace(self._session, step_count=self._step, custom_state={})
        commit = msgspec.structs.replace(commit, metadata={key: self._metadata.get(key) for key in _KEPT})
        meta = CheckpointMeta(step_id=step_id_of(self._run.run_id, self._step), step_count=self._step)
        if scope.services.chunks_ride_in_commits:
            async with scope.writer.take() as stream:
                riding = msgspec.structs.replace(commit, stream=stream)
                return await store.save_state_and_promote_staging(session_id, record, results, meta, commit=riding)
        meta = msgspec.structs.replace(meta, stream_sequence=await scope.writer.flush())
        return await store.save_state_and_promote_staging(session_id, record, results, meta, commit=commit)

    def _next_round(self) -> int:
        self._round += 1
        return self._round

    def _interrupt_context(self, rest: Rest) -> InterruptContext | None:
        if rest.status != "interrupted":
            return None
        return InterruptContext(reason=rest.interrupt_reason, run_id=self._run.run_id, at=self._store.now_ms())

    async def _note_started(self, place: str | None) -> None:
        noted = {STARTED: "yes"} if place is None else {STARTED: "yes", PLACE: place}
        await self._store.patch_metadata(self._session.session_id, {**noted})
        self._metadata |= noted
        if place is not None:
            self._remote = msgspec.structs.replace(self._remote, place=place)
            self._questions.found(self._remote)

    async def _afterwards(self, rest: Rest) -> tuple[tuple[UsageEntry, ...], StepWrites]:
        """What the child used since the last look and, at its end, its state; neither is worth failing for."""
        if not rest.told:
            return (), NO_WRITES
        usage: tuple[UsageEntry, ...] = ()
        writes = NO_WRITES
        try:
            async with asyncio.timeout(_AFTERWARDS_SECONDS):
                usage = await self._used()
                if rest.status not in SUSPENDED:
                    writes = await self._final_state()
        except (TimeoutError, HelixError) as problem:
            log_event("subagent.usage_missing", session_id=self._session.session_id, reason=str(problem))
        return usage, writes

    async def _used(self) -> tuple[UsageEntry, ...]:
        counted = count_anew(await self._transport.usage(self._remote), self._metadata.get(USAGE))
        self._metadata[USAGE] = counted.so_far
        session, run = self._session, self._run
        # All commits of one follower belong to one step; an entry under a number that was already used would not count.
        first, self._entries = self._entries, self._entries + len(counted.uses)
        return tuple(
            UsageEntry(
                session_id=session.session_id,
                root_session_id=session.root_session_id,
                run_id=run.run_id,
                attempt=run.attempt,
                step=self._step,
                n=number,
                agent_type=session.agent_type,
                user_id=session.user_id,
                source_type=use.source_type,
                source_name=use.source_name,
                tokens=use.tokens,
                amount=use.amount,
                success=use.success,
            )
            for number, use in enumerate(counted.uses, first)
        )

    async def _final_state(self) -> StepWrites:
        state = await self._transport.snapshot(self._remote)
        most = self._store.limits.state_bytes
        if most is not None and len(encode(state)) > most:
            log_event("subagent.state_dropped", session_id=self._session.session_id, limit=most)
            return NO_WRITES
        return difference(self._session.custom_state, state)
