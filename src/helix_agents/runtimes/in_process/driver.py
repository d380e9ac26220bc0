"""Drives a run in this process, from its first effect to its last, with everything it needs at hand."""

from collections.abc import Callable
from contextlib import suppress

from helix_agents.agent.hooks import SomeHooks
from helix_agents.domain.errors import HelixError, SupersededError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.runs import Fence
from helix_agents.engine.desk import MemoryDesk
from helix_agents.engine.effects import Position, RunEnd
from helix_agents.engine.inline import InlineOps, WrapOps, ended
from helix_agents.engine.opened_deps import opened_deps
from helix_agents.engine.requests.settling import end_run
from helix_agents.engine.scope import RunScope
from helix_agents.engine.services import OpenDeps, Services
from helix_agents.engine.steps.stop_watch import watching
from helix_agents.engine.steps.taking import Begun, open_scope
from helix_agents.engine.turn import run_turn
from helix_agents.ports.llm import LLMAdapter


async def drive(
    services: Services,
    session_id: SessionId,
    fence: Fence,
    *,
    open_deps: OpenDeps | None = None,
    max_parallel: int | None = None,
    hooks: SomeHooks = None,
    model: LLMAdapter | None = None,
    wrap: WrapOps | None = None,
    leaving: Callable[[], bool] = lambda: False,
    begun: Begun | None = None,
) -> RunEnd:
    """Drive one attempt of a run until it ends, until it waits for an answer, or until a step at which the process
    leaves."""
    deps = opened_deps(services.store, open_deps, session_id)
    async with watching(services.store, session_id, services.sleep) as stop, deps as opened:
        try:
            scope = await open_scope(
                services,
                session_id,
                fence,
                desk=MemoryDesk(),
                stop=stop,
                deps=opened,
                hooks=hooks,
                model=model,
                begun=begun,
            )
        except SupersededError:
            return RunEnd(status="superseded")
        if isinstance(scope, Position):
            return ended(scope)
        try:
            ops = InlineOps(scope, max_parallel, leaving)
            end = await run_turn(ops if wrap is None else wrap(ops))
            if end.status != "superseded":
                await end_run(services, scope.session, scope.run, scope.writer, stream_ended=scope.stream_ended)
            return RunEnd(status=end.status, run=scope.run if scope.run.status == end.status else None)
        except SupersededError:
            return RunEnd(status="superseded")
        finally:
            await _close(scope)


async def _close(scope: RunScope) -> None:
    """Release the writer, however the driver ended: what it accepted is stored now, or never by this attempt."""
    with suppress(HelixError):
        await scope.writer.close()
