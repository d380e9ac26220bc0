"""Going back to a checkpoint and staying there: no model is asked until the session is continued."""

from helix_agents.domain.commits import SettleSession, StartRun
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.sessions import InterruptContext, SessionState
from helix_agents.engine.services import Services
from helix_agents.engine.steps.ending import end_stream

REWOUND = "rewound"
"""Why the turn of a rewind is over. Nothing was done in it, so there is nothing to tell about it."""


async def rewind(services: Services, start: StartRun) -> SessionState:
    """Commit a planned rewind as a turn of its own that ends at once, interrupted; returns the session after it.

    Raises:
        CheckpointNotFoundError: the session has no such checkpoint; nothing was written.
        ConflictError: another turn was started meanwhile; nothing was written.
    """
    return await end_rewind(services, (await services.store.start_run(start)).run)


async def end_rewind(services: Services, run: RunRecord) -> SessionState:
    """End the turn of a rewind, and its stream; idempotent. Returns the session after it."""
    store = services.store
    await store.settle_session(
        SettleSession(
            session_id=run.session_id,
            expected=("active", "paused"),
            expected_run=run.fence,
            status="interrupted",
            interrupt_context=InterruptContext(reason=REWOUND, run_id=run.run_id, at=store.now_ms()),
            run_status="interrupted",
            completion_reason=REWOUND,
        )
    )
    session = await store.load_state(run.session_id)
    ended = await store.get_run(run.run_id)
    if ended is not None and ended.start_sequence:
        await services.streams.reactivate_stream(session.stream_id or session.session_id, run.run_id, turn=run.turn)
        await end_stream(services.streams, session, ended)
    return session
