"""The four effects as any process can do them: by ids and a small dictionary, with everything else in the store."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from helix_agents.agent.hooks import SomeHooks
from helix_agents.domain.errors import HelixError, SupersededError
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.records import Record
from helix_agents.domain.runs import Fence
from helix_agents.domain.sessions import SessionState
from helix_agents.engine.asking import ask_model
from helix_agents.engine.committing import commit_step
from helix_agents.engine.effects import Ask, Batch, CommitAck, CommitRequest, Position, Reply, RunEnd, Stopped
from helix_agents.engine.live_runs import LiveRun
from helix_agents.engine.log import log_exception
from helix_agents.engine.opening import open_run
from helix_agents.engine.plain import CallRequest, EffectName, Plain, from_plain, to_plain
from helix_agents.engine.scope import RunScope, step_id_of
from helix_agents.engine.services import OpenDeps, Services
from helix_agents.engine.settling import end_run, fail_run
from helix_agents.engine.store_desk import StoreDesk
from helix_agents.engine.working import run_call
from helix_agents.ports.llm import LLMAdapter


@dataclass(frozen=True, kw_only=True)
class OfOneCall:
    """What the caller of an entry gave for its run alone; it lives in the caller's process."""

    hooks: SomeHooks = None
    model: LLMAdapter | None = None


_NOTHING = OfOneCall()


class Effects:
    """Does effects of any run, in any order of processes.

    Whoever is `alone` with the attempts it drives keeps each run in hand from its first effect here until `release`.
    Others open the run for one effect and let go of it: the next effect may run elsewhere.
    """

    def __init__(self, services: Services, *, alone: bool, open_deps: OpenDeps | None = None) -> None:
        self._services = services
        self._alone = alone
        self._open_deps = open_deps
        self._live: dict[Fence, tuple[LiveRun, RunScope]] = {}
        self.of_calls: dict[RunId, OfOneCall] = {}

    async def perform(self, effect: EffectName, session_id: SessionId, fence: Fence, request: Plain) -> Plain:
        """Do one effect and say what came of it.

        A run that another driver has, or that cannot be driven, ends here; that is an answer like others.

        Raises:
            HelixError: the infrastructure failed in a way that passes; the effect may be repeated.
        """
        try:
            return to_plain(await self._perform(effect, session_id, fence, request))
        except SupersededError:
            return to_plain(RunEnd(status="superseded"))
        except Exception as problem:
            if isinstance(problem, HelixError) and problem.retryable:
                raise
            log_exception("run.driver_failed", problem, session_id=session_id, run_id=fence.run_id)
            await fail_run(self._services, session_id, fence, problem)
            return to_plain(RunEnd(status="failed"))

    async def release(self, fence: Fence) -> None:
        """Let go of a run that was kept in hand; idempotent."""
        kept = self._live.pop(fence, None)
        if kept is not None:
            await kept[0].close()

    async def _perform(self, effect: EffectName, session_id: SessionId, fence: Fence, request: Plain) -> Record:
        match effect:
            case "open":
                return await self._with_scope(session_id, fence, open_run, beginning=True)
            case "ask_model":
                ask = from_plain(request, Ask)
                recorded = None if self._alone else await self._recorded(session_id, fence, ask)
                return recorded or await self._with_scope(session_id, fence, lambda scope: ask_model(scope, ask))
            case "run_call":
                wanted = from_plain(request, CallRequest)
                batch = Batch(step=wanted.step, round=wanted.round, calls=(wanted.call,))
                return await self._with_scope(
                    session_id, fence, lambda scope: run_call(scope, batch, wanted.call), join=True
                )
            case "commit":
                commit = from_plain(request, CommitRequest)
                return await self._with_scope(session_id, fence, lambda scope: self._commit(scope, commit), join=True)

    async def _recorded(self, session_id: SessionId, fence: Fence, ask: Ask) -> Reply | Stopped | None:
        """A reply that rests already: becoming the stream's writer for it would take back what readers saw."""
        desk = StoreDesk(self._services.store, session_id, fence, alone=False)
        resting = await desk.find_reply(step_id_of(fence.run_id, ask.step))
        return None if resting is None else resting.as_answer()

    async def _with_scope(
        self,
        session_id: SessionId,
        fence: Fence,
        body: Callable[[RunScope], Awaitable[Record]],
        *,
        beginning: bool = False,
        join: bool = False,
    ) -> Record:
        kept = self._live.get(fence)
        if kept is not None:
            return await body(kept[1])
        given = self.of_calls.get(fence.run_id, _NOTHING)
        live = LiveRun(
            self._services,
            session_id,
            fence,
            open_deps=self._open_deps,
            hooks=given.hooks,
            model=given.model,
            alone=self._alone,
        )
        try:
            scope = await live.open(beginning=beginning, join=join and not self._alone)
        except BaseException:
            await live.close()
            raise
        if isinstance(scope, Position):
            await live.close()
            return await self._over(scope, beginning=beginning)
        if self._alone:
            self._live[fence] = live, scope
            return await body(scope)
        try:
            return await body(scope)
        finally:
            await live.close()

    async def _commit(self, scope: RunScope, request: CommitRequest) -> CommitAck:
        """Commit a step, unless only the answer of that was lost; a run that ends brings its stream to rest."""
        ack = answer_given_before(scope.session, request) or await commit_step(scope, request)
        if ack.next == "ended":
            run = await self._services.store.get_run(scope.run.run_id)
            if run is not None:
                await end_run(self._services, scope.session, run, scope.writer)
        return ack

    async def _over(self, position: Position, *, beginning: bool) -> Record:
        """What an effect says of a run that is not there to be taken in hand: the commit whose answer was lost may
        have ended it."""
        if position.ended != "superseded":
            run = await self._services.store.get_run(position.run_id)
            if run is not None:
                await end_run(self._services, await self._services.store.load_state(run.session_id), run)
        if beginning:
            return position
        assert position.ended is not None
        return RunEnd(status=position.ended)


def answer_given_before(session: SessionState, request: CommitRequest) -> CommitAck | None:
    """What a commit of this step and round said that was made already; None when it is still to be made.

    A run that the commit ended is not here to be asked about.

    Raises:
        SupersededError: a later commit was made.
    """
    step, round_ = request.batch.step, request.batch.round
    held = session.suspension_context
    if held is None:
        return CommitAck(next="continue") if session.step_count >= step else None
    if held.step == step and held.round < round_:
        return None
    if held.step == step and held.round == round_:
        return CommitAck(next="again")
    run_id = session.current_run_id or ""
    raise SupersededError(session.session_id, run_id, 0, f"step {held.step} round {held.round} is committed already")
