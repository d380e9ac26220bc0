"""Stop requests: they reach a run in progress, a session that waits, and companions below."""

import asyncio
from contextlib import suppress

from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.runs import SUSPENDED, RunRecord
from helix_agents.domain.sessions import InterruptOutcome, InterruptSet, NothingRunning, StopKind
from helix_agents.engine.requests.settling import settle_waiting
from helix_agents.engine.services import Services
from helix_agents.ports.state_store import SessionStateStore

# How often a session may continue, or come to wait, between reading it and the write that follows.
_TRIES = 10
# How long a run may take for its last commit, beyond the time its tools may take to end.
_COMMITS_SECONDS = 5.0
_LOOK_AGAIN_SECONDS = 0.05


async def stop_session(
    services: Services, session_id: SessionId, kind: StopKind, reason: str | None, *, run_id: RunId | None = None
) -> InterruptOutcome:
    """Stop what a session does, and say which run that was. With `run_id`, stop it only while that is its current run.

    A run in progress takes the stop by itself and passes it on. A session that waits is settled here. A session that
    has ended may still have companions at work.
    """
    store = services.store
    for _ in range(_TRIES):
        outcome = await store.set_interrupt_flag(session_id, reason, kind=kind, run_id=run_id)
        if isinstance(outcome, InterruptSet):
            return outcome
        run = await store.get_current_run(session_id)
        if run_id is not None and (run is None or run.run_id != run_id):
            return NothingRunning()
        if run is not None and run.status in SUSPENDED:
            await _stop_at_work_below(services, session_id, kind, reason)
            if await settle_waiting(services, session_id, run, reason, kind):
                services.attend_remotes()
                return InterruptSet(run_id=run.run_id)
        elif run is None or run.status != "running":
            return await stop_companions(services, session_id, kind, reason)
    return NothingRunning()


async def _stop_at_work_below(services: Services, session_id: SessionId, kind: StopKind, reason: str | None) -> None:
    """Let companions that work while a session waits take the stop by themselves and commit what they have said.
    Settling the session settles everything below it, and what is not committed by then is lost."""
    stopped = await _flag_below(services.store, session_id, kind, reason)
    with suppress(TimeoutError):
        # The checks themselves take time if the store is slow or many companions are at work.
        async with asyncio.timeout(services.options.cancel_grace_seconds + _COMMITS_SECONDS):
            while any([await _is_driven(services, run) for run in stopped]):
                await services.sleep(_LOOK_AGAIN_SECONDS)


async def _flag_below(
    store: SessionStateStore, session_id: SessionId, kind: StopKind, reason: str | None
) -> list[RunRecord]:
    """Ask everything that works below a waiting session to stop; returns the runs asked."""
    flagged: list[RunRecord] = []
    for ref in await store.get_sub_session_refs(session_id):
        run = await store.get_current_run(ref.sub_session_id)
        if run is not None and run.status == "running":
            await store.set_interrupt_flag(ref.sub_session_id, reason, kind=kind, run_id=run.run_id)
            flagged.append(run)
        else:
            flagged += await _flag_below(store, ref.sub_session_id, kind, reason)
    return flagged


async def _is_driven(services: Services, run: RunRecord) -> bool:
    current = await services.store.get_run(run.run_id)
    return current is not None and current.status == "running" and await services.inspect(current) == "alive"


async def stop_companions(
    services: Services, session_id: SessionId, kind: StopKind, reason: str | None
) -> InterruptOutcome:
    """Stop companions that work or wait for a session, or for children whose own work is done.

    Says whether there was one.
    """
    stopped: InterruptOutcome = NothingRunning()
    for ref in await services.store.get_sub_session_refs(session_id):
        stop = stop_session if ref.mode == "persistent" else stop_companions
        outcome = await stop(services, ref.sub_session_id, kind, reason)
        stopped = outcome if isinstance(outcome, InterruptSet) else stopped
    return stopped
