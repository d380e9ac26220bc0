"""Going back to a checkpoint and staying there: no model is asked until somebody goes on."""

import msgspec

from helix_agents.domain.commits import SettleSession, StartRun
from helix_agents.domain.sessions import InterruptContext, SessionState
from helix_agents.engine.services import Services
from helix_agents.engine.steps.ending import end_stream

# Whoever rewinds is done in a moment; if it dies in between, the run is an orphan afterwards and goes on from there.
LEASE_MS = 15_000


async def rewind(services: Services, start: StartRun) -> SessionState:
    """Commit a planned rewind as a turn of its own that ends at once, interrupted; answers the session as it is then.

    Raises:
        CheckpointNotFoundError: the session has no such checkpoint; nothing was written.
        ConflictError: somebody began a turn meanwhile; nothing was written.
    """
    store, owner = services.store, services.ids.new("rewind")
    await store.renew_lease(owner, LEASE_MS)
    try:
        run = (await store.start_run(msgspec.structs.replace(start, owner=owner))).run
        await store.settle_session(
            SettleSession(
                session_id=start.session_id,
                expected=("active", "paused"),
                expected_run=run.fence,
                status="interrupted",
                interrupt_context=InterruptContext(reason="rewound", run_id=run.run_id, at=store.now_ms()),
                run_status="interrupted",
                completion_reason="rewound",
            )
        )
    finally:
        await store.release_lease(owner)
    session = await store.load_state(start.session_id)
    ended = await store.get_run(run.run_id)
    if ended is not None and ended.start_sequence:
        await services.streams.reactivate_stream(session.stream_id or session.session_id, run.run_id, turn=run.turn)
        await end_stream(services.streams, session, ended)
    return session
