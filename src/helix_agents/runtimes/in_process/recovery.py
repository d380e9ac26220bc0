"""Runs whose process died are continued here: the same run, its next attempt, exactly once."""

from collections.abc import Callable

from helix_agents.domain.commits import SettleSession
from helix_agents.domain.errors import ConflictError, HelixError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.records import Record
from helix_agents.domain.runs import RunRecord
from helix_agents.engine.log import log_event, log_exception
from helix_agents.engine.services import Services


class Recovered(Record):
    """What a round of recovery found."""

    run_ids: tuple[str, ...] = ()
    unknown_agent: tuple[str, ...] = ()
    taken_by_others: int = 0
    errors: int = 0


async def _let_go(services: Services, orphan: RunRecord, parent_session_id: SessionId | None) -> None:
    """End a child that nobody will ever ask for its result; a later run of its parent may still be about to."""
    parent = await services.store.get_current_run(parent_session_id) if parent_session_id is not None else None
    if parent is not None and parent.status == "running":
        return
    await services.store.settle_session(
        SettleSession(
            session_id=orphan.session_id,
            expected=("active", "paused"),
            expected_run=orphan.fence,
            status="interrupted",
            run_status="interrupted",
            completion_reason="parent_ended",
        )
    )


async def recover(
    services: Services, owner: str, take_over: Callable[[RunRecord], None], *, limit: int = 200
) -> Recovered:
    """Claim orphaned runs and hand each to `take_over`; of many processes that try, one gets a run."""
    store = services.store
    recovered: list[str] = []
    unknown: list[str] = []
    lost = errors = 0
    for orphan in await store.list_orphans(limit=limit):
        if orphan.workflow_id is not None:
            continue
        try:
            session = await store.load_state(orphan.session_id)
            if orphan.parent_run_id is not None:
                # A child is its parent's to adopt; this one's parent run has ended without it.
                await _let_go(services, orphan, session.parent_session_id)
                continue
            agent = services.agents.find(session.agent_type)
            if agent is None:
                unknown.append(orphan.session_id)
                continue
            # State that no longer fits is left for a fixed deploy; claiming the run would only count attempts.
            agent.load_state(session.custom_state, session.agent_version)
            take_over(await store.claim_run(orphan.session_id, orphan.fence, owner))
            recovered.append(orphan.run_id)
        except ConflictError:
            lost += 1
        except HelixError as problem:
            errors += 1
            log_exception("recovery.failed", problem, session_id=orphan.session_id)
    if recovered or unknown:
        log_event("recovery.done", recovered=len(recovered), unknown_agent=len(unknown))
    return Recovered(run_ids=tuple(recovered), unknown_agent=tuple(unknown), taken_by_others=lost, errors=errors)
