"""Going back to a checkpoint reliably: a rewind that has begun ends where it went, whatever answer was lost."""

import asyncio

import msgspec

from helix_agents.domain.commits import StartRun
from helix_agents.domain.errors import ConflictError, HelixError
from helix_agents.domain.runs import Fence
from helix_agents.domain.sessions import SessionState
from helix_agents.engine.log import log_exception
from helix_agents.engine.requests.rewinding import end_rewind, rewind
from helix_agents.engine.services import Services
from helix_agents.runtimes.executor.owned_runs import backoff
from helix_agents.runtimes.executor.runtime import Runtime

# A rewind takes a moment; if its process dies in between, the run is orphaned and continues from the checkpoint.
LEASE_MS = 15_000


async def rewind_reliably(services: Services, runtime: Runtime, start: StartRun) -> SessionState:
    """Commit a planned rewind. If the store does not say whether it did so, the caller is told at once, and a rewind
    that was begun is ended as soon as the store answers; until then no process takes it for a run to continue.

    Raises:
        CheckpointNotFoundError: the session has no such checkpoint; nothing was written.
        ConflictError: another turn was started meanwhile; nothing was written.
    """
    owner = services.ids.new("rewind")
    owned = msgspec.structs.replace(start, owner=owner)
    await services.store.renew_lease(owner, LEASE_MS)
    is_unheard = False
    try:
        return await rewind(services, owned)
    except HelixError as problem:
        is_unheard = problem.retryable and not isinstance(problem, ConflictError)
        if is_unheard:
            runtime.in_background(_end_if_begun(services, owned, owner))
        raise
    finally:
        if not is_unheard:
            await _give_up(services, owner)


async def _end_if_begun(services: Services, start: StartRun, owner: str) -> None:
    store = services.store
    try:
        for wait in backoff():
            # The lease has to last from one attempt to the next.
            await asyncio.sleep(min(wait, LEASE_MS / 3000))
            try:
                await store.renew_lease(owner, LEASE_MS)
                run = await store.get_current_run(start.session_id)
                if run is not None and run.fence == Fence(run_id=start.run_id):
                    await end_rewind(services, run)
                return
            except Exception as problem:
                log_exception("rewind.unheard", problem, session_id=start.session_id, run_id=start.run_id)
    finally:
        await _give_up(services, owner)


async def _give_up(services: Services, owner: str) -> None:
    """End the lease of a rewind; if the store is away, it expires by itself."""
    try:
        await services.store.release_lease(owner)
    except HelixError as problem:
        log_exception("lease.release_failed", problem, owner=owner)
