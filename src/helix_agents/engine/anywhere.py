"""The four effects as any process can perform them: given ids and a small dictionary, with all else in the store."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from helix_agents.domain.errors import (
    HelixError,
    RecordTooNewError,
    StateSchemaChangedError,
    SupersededError,
    UnknownAgentError,
)
from helix_agents.domain.ids import SessionId
from helix_agents.domain.records import Record
from helix_agents.domain.runs import Fence
from helix_agents.domain.sessions import SessionState
from helix_agents.engine.children.sub_agents import fail_child
from helix_agents.engine.desk import StepLost
from helix_agents.engine.effects import (
    Ask,
    Batch,
    CallOutcome,
    CommitAck,
    CommitRequest,
    DriveRun,
    Position,
    RunEnd,
    Within,
)
from helix_agents.engine.live_runs import EffectPlace, LiveRuns
from helix_agents.engine.log import log_event, log_exception
from helix_agents.engine.plain import CallOutcomes, CallsRequest, EffectName, Plain, from_plain, to_plain
from helix_agents.engine.requests.settling import end_run, end_unheard, fail_run
from helix_agents.engine.scope import RunScope, step_id_of
from helix_agents.engine.services import Services
from helix_agents.engine.steps.asking import ask_model
from helix_agents.engine.steps.committing import commit_step
from helix_agents.engine.steps.opening import open_run
from helix_agents.engine.steps.taking import take_notes_of_others
from helix_agents.engine.steps.working import hand_out_call, run_call
from helix_agents.engine.store_desk import StoreDesk


@dataclass(frozen=True)
class _Whose:
    """The attempt of a run that an effect belongs to and, for a child's run, the call that the run works for."""

    session_id: SessionId
    fence: Fence
    within: Within | None


class Effects:
    """Performs effects of any run. Consecutive effects of one run may be performed by different processes."""

    def __init__(self, services: Services, runs: LiveRuns) -> None:
        self._services = services
        self._runs = runs

    async def perform(
        self, effect: EffectName, session_id: SessionId, fence: Fence, request: Plain, within: Plain | None = None
    ) -> Plain:
        """Perform one effect and return its answer; `within` is the call that a child's run works for.

        A run that another driver owns, or that cannot be driven, ends here; this is an ordinary answer. The answer is
        `yielded` if work that the engine's history calls done is missing from the store.

        Raises:
            HelixError: the infrastructure failed in a way that passes, or other processes share the run and this one
                does not know the agent, or cannot read its state or what a newer one left; the effect may be repeated,
                in this process or another.
        """
        try:
            above = None if within is None else from_plain(within, Within)
            answer = await self._perform(effect, _Whose(session_id, fence, above), request)
        except SupersededError:
            answer = RunEnd(status="superseded")
        except StepLost:
            log_event("run.step_lost", session_id=session_id, run_id=fence.run_id)
            answer = RunEnd(status="yielded")
        except (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as problem:
            # Anything else that user code raises ends here: a durable engine waits forever on an unknown exception.
            if isinstance(problem, HelixError) and (problem.retryable or self._is_for_others(problem)):
                await self._runs.release(fence)
                raise
            if within is None:
                log_exception("run.driver_failed", problem, session_id=session_id, run_id=fence.run_id)
                await fail_run(self._services, session_id, fence, problem)
            else:
                await fail_child(self._services, session_id, fence, problem)
            answer = RunEnd(status="failed")
        if isinstance(answer, RunEnd) or (isinstance(answer, CommitAck) and answer.next == "ended"):
            await self._runs.release(fence)
        return to_plain(answer)

    def _is_for_others(self, problem: HelixError) -> bool:
        """Whether the run is fine and only this process is unable to drive it."""
        return not self._runs.alone and isinstance(
            problem, UnknownAgentError | StateSchemaChangedError | RecordTooNewError
        )

    async def _perform(self, effect: EffectName, whose: _Whose, request: Plain) -> Record:
        match effect:
            case "open":
                return await self._on(whose, EffectPlace.beginning(), _open)
            case "ask_model":
                return await self._ask(whose, from_plain(request, Ask))
            case "run_calls":
                wanted = from_plain(request, CallsRequest)
                place = EffectPlace(step=wanted.step, round=wanted.round, join=True)
                return await self._on(whose, place, lambda scope: _run_calls(scope, wanted))
            case "commit":
                commit = from_plain(request, CommitRequest)
                place = EffectPlace(step=commit.batch.step, round=commit.batch.round, join=True)
                return await self._on(whose, place, lambda scope: self._commit(scope, commit))

    async def _ask(self, whose: _Whose, ask: Ask) -> Record:
        """Return a reply that is already recorded without opening the run: taking over the stream as its writer would
        take back what readers saw of that reply."""
        if not self._runs.alone:
            desk = StoreDesk(self._services.store, whose.session_id, whose.fence, alone=False)
            resting = await desk.find_reply(step_id_of(whose.fence.run_id, ask.step))
            if resting is not None:
                return resting.as_answer()

        async def body(scope: RunScope) -> Record:
            if scope.session.step_count >= ask.step:
                reason = f"step {ask.step} is committed already"
                raise SupersededError(whose.session_id, whose.fence.run_id, whose.fence.attempt, reason)
            return await ask_model(scope, ask)

        return await self._on(whose, EffectPlace(step=ask.step, round=0, join=False), body)

    async def _on(self, whose: _Whose, place: EffectPlace, body: Callable[[RunScope], Awaitable[Record]]) -> Record:
        async with self._runs.take(whose.session_id, whose.fence, place, whose.within) as taken:
            if isinstance(taken, RunScope):
                return await body(taken)
        return await self._over(taken, begins=place.begins, has_stream=whose.within is None)

    async def _commit(self, scope: RunScope, request: CommitRequest) -> CommitAck:
        """Commit a step, unless only the answer of an earlier commit was lost; if the run ended, end its stream."""
        ack = answer_given_before(scope.session, request)
        if ack is None:
            if scope.is_shared:
                await take_notes_of_others(scope, request.batch)
            ack = await commit_step(scope, request)
        if ack.next == "ended" and scope.parent is None:
            await end_run(self._services, scope.session, scope.run, scope.writer, stream_ended=scope.stream_ended)
        return ack

    async def _over(self, position: Position, *, begins: bool, has_stream: bool) -> Record:
        """The answer for a run that could not be opened, perhaps because a commit whose answer was lost ended it."""
        if position.ended != "superseded" and has_stream:
            await end_unheard(self._services, position.run_id)
        if begins:
            return position
        assert position.ended is not None
        return RunEnd(status=position.ended)


async def _open(scope: RunScope) -> Position:
    position = await open_run(scope)
    # A durable engine that remembers this effect never repeats it: readers are told of the beginning now or never.
    await scope.writer.flush()
    return position


async def _run_calls(scope: RunScope, wanted: CallsRequest) -> CallOutcomes | DriveRun:
    """Take the requested calls as far as they go, or hand out a child for the requester to drive."""
    before = outcomes_given_before(scope.session, wanted)
    if before is not None:
        return before
    batch = Batch(step=wanted.step, round=wanted.round, calls=wanted.calls)
    if wanted.hand_out:
        handed = await hand_out_call(scope, batch, wanted.calls[0], driven=wanted.driven)
        if not isinstance(handed, DriveRun):
            return CallOutcomes(outcomes=(handed,))
        # As in `_open`: readers must hear of a child's beginning before anything that the child says.
        await scope.writer.flush()
        return handed
    outcomes = [await run_call(scope, batch, call, gave_up=wanted.gave_up) for call in wanted.calls]
    return CallOutcomes(outcomes=tuple(outcomes))


def outcomes_given_before(session: SessionState, wanted: CallsRequest) -> CallOutcomes | None:
    """The outcomes of calls whose round is committed, so that only the effect's answer was lost; None otherwise."""
    held = session.suspension_context
    if held is None or held.step > wanted.step:
        if session.step_count < wanted.step:
            return None
        settled = {call.tool_call_id for call in wanted.calls}
    elif held.step == wanted.step and held.round >= wanted.round:
        settled = {call.tool_call_id for call in held.calls if call.settled}
    else:
        return None
    return CallOutcomes(
        outcomes=tuple(
            CallOutcome(tool_call_id=call_id, state="settled" if call_id in settled else "waiting")
            for call_id in (call.tool_call_id for call in wanted.calls)
        )
    )


def answer_given_before(session: SessionState, request: CommitRequest) -> CommitAck | None:
    """What the commit of this step and round answered if it was already made; None if it is still to be made.

    A run that the commit ended never gets here, because it can no longer be opened.

    Raises:
        SupersededError: a later commit was made.
    """
    place = (request.batch.step, request.batch.round)
    held = session.suspension_context
    if held is None or held.step > request.batch.step:
        return CommitAck(next="continue") if session.step_count >= request.batch.step else None
    if held.step == request.batch.step and held.round < request.batch.round:
        return None
    if (held.step, held.round) == place:
        return CommitAck(next="again")
    run_id = session.current_run_id or ""
    raise SupersededError(session.session_id, run_id, 0, f"step {held.step} round {held.round} is committed already")
