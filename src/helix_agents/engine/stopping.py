"""A stop that somebody asks for: it reaches a run that is going, a session that waits, and companions below."""

from helix_agents.domain.ids import SessionId
from helix_agents.domain.runs import SUSPENDED
from helix_agents.domain.sessions import InterruptOutcome, InterruptSet, NothingRunning, StopKind
from helix_agents.engine.services import Services
from helix_agents.engine.settling import settle_waiting

# How often a session may go on, or come to wait, between a look at it and the write that follows.
_TRIES = 10


async def stop_session(
    services: Services, session_id: SessionId, kind: StopKind, reason: str | None
) -> InterruptOutcome:
    """Stop what a session does, and say which run that was.

    A run that is going takes the stop by itself and hands it on; a session that waits is settled here; one that is at
    its end may have companions that are not.
    """
    store = services.store
    for _ in range(_TRIES):
        outcome = await store.set_interrupt_flag(session_id, reason, kind=kind)
        if isinstance(outcome, InterruptSet):
            return outcome
        run = await store.get_current_run(session_id)
        if run is not None and run.status in SUSPENDED:
            if await settle_waiting(services, session_id, run, reason, kind):
                services.attend_remotes()
                return InterruptSet(run_id=run.run_id)
        elif run is None or run.status != "running":
            return await stop_companions(services, session_id, kind, reason)
    return NothingRunning()


async def stop_companions(
    services: Services, session_id: SessionId, kind: StopKind, reason: str | None
) -> InterruptOutcome:
    """Stop the companions that work or wait for a session, or for children whose own work is done; says whether there
    was one."""
    stopped: InterruptOutcome = NothingRunning()
    for ref in await services.store.get_sub_session_refs(session_id):
        stop = stop_session if ref.mode == "persistent" else stop_companions
        outcome = await stop(services, ref.sub_session_id, kind, reason)
        stopped = outcome if isinstance(outcome, InterruptSet) else stopped
    return stopped
