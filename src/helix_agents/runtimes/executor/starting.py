"""Starting a run: the commit that starts it, and then a driver for it."""

import asyncio
from collections.abc import Callable

from helix_agents.agent.hooks import SomeHooks
from helix_agents.domain.commits import StartRun
from helix_agents.domain.errors import (
    AgentAlreadyRunningError,
    ConflictError,
    HelixError,
    SessionAlreadyExistsError,
)
from helix_agents.domain.runs import Fence, RunRecord
from helix_agents.domain.session_changes import first_begun
from helix_agents.engine.log import log_exception
from helix_agents.engine.services import Services
from helix_agents.engine.steps.taking import Begun, Made
from helix_agents.ports.llm import LLMAdapter
from helix_agents.runtimes.executor.owned_runs import backoff
from helix_agents.runtimes.executor.runtime import Runtime


async def start_run(
    services: Services,
    runtime: Runtime,
    start: StartRun,
    *,
    hooks: SomeHooks,
    model: LLMAdapter | None,
    began: Callable[[], None],
) -> RunRecord:
    """Commit the start and have the run driven: no other process finds a run that carries this process's lease. `began`
    is called once it is, even if nobody waits for this any more.

    Raises:
        AgentAlreadyRunningError: another caller was first, and its run is running.
        ConflictError, SessionAlreadyExistsError: another caller was first.
    """
    try:
        started = await services.store.start_run(start)
    except (ConflictError, SessionAlreadyExistsError) as lost:
        current = await services.store.get_current_run(start.session_id)
        if current is not None and current.status == "running":
            raise AgentAlreadyRunningError(start.session_id, current.run_id) from lost
        raise
    except HelixError as problem:
        if problem.retryable:
            runtime.in_background(_submit_if_started(services, runtime, start, hooks, model, began))
        raise
    run = started.run
    if run.owner != start.owner or run.status != "running":
        # The same turn was started before: in another process, which drives it, or here, and is over. Where runs have
        # no owner, submitting a run that is already driven does nothing.
        began()
        return run
    if run.start_sequence and started.stream is None:
        await _reactivate_stream(services, run)
    session = first_begun(start, started)
    made = None if session is None else Made(session, start.append_messages)
    begun = Begun(run, started.stream, made)
    await runtime.submit(run, hooks=hooks, model=model, begun=begun)
    began()
    return run


async def _reactivate_stream(services: Services, run: RunRecord) -> None:
    """A reader that arrives at once must not mistake the last turn's end for this one's. The driver of the run
    activates its stream as well, so this may fail."""
    try:
        session = await services.store.load_state(run.session_id)
        await services.streams.reactivate_stream(session.stream_id or run.session_id, run.run_id, turn=run.turn)
    except HelixError as problem:
        log_exception("stream.not_reactivated", problem, session_id=run.session_id)


async def _submit_if_started(
    services: Services,
    runtime: Runtime,
    start: StartRun,
    hooks: SomeHooks,
    model: LLMAdapter | None,
    began: Callable[[], None],
) -> None:
    """The store did not say whether it started the run: as soon as it answers, a run that it did start is driven."""
    for wait in backoff():
        await asyncio.sleep(wait)
        try:
            run = await services.store.get_current_run(start.session_id)
        except Exception as problem:
            log_exception("run.start_unheard", problem, session_id=start.session_id, run_id=start.run_id)
            continue
        if run is not None and run.status == "running" and run.fence == Fence(run_id=start.run_id):
            await runtime.submit(run, hooks=hooks, model=model)
            began()
        return
