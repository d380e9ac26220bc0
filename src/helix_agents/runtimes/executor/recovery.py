"""Continues runs whose process died: the same run, its next attempt, exactly once."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Literal

from helix_agents.agent.hooks import SomeHooks
from helix_agents.domain.commits import SettleSession
from helix_agents.domain.errors import ConflictError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.records import Record
from helix_agents.domain.runs import KnownAs, RunRecord
from helix_agents.engine.children.meant_agents import find_agent
from helix_agents.engine.log import log_event, log_exception
from helix_agents.engine.services import Services
from helix_agents.engine.steps.salvage import check_readable
from helix_agents.ports.llm import LLMAdapter
from helix_agents.runtimes.executor.left_to_others import LeftToOthers
from helix_agents.runtimes.executor.owned_runs import claim
from helix_agents.runtimes.executor.runtime import Runtime

MOST_AT_ONCE = 200
"""How many runs one round takes, so that other processes get their share."""

_PAGE = 200


class Recovered(Record):
    """What a round of recovery found."""

    run_ids: tuple[str, ...] = ()
    unknown_agent: tuple[str, ...] = ()
    missing_deps: tuple[str, ...] = ()
    taken_by_others: int = 0
    errors: int = 0


async def _let_go(services: Services, orphan: RunRecord, parent_session_id: SessionId | None) -> None:
    """End a child whose result will never be asked for, unless a running run of its parent may still adopt it."""
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


async def recover(services: Services, runtime: Runtime, left: LeftToOthers, *, limit: int = MOST_AT_ONCE) -> Recovered:
    """Submit runs that were never submitted, and claim those whose driver died. Of many processes that try, one gets
    each run. All runs are examined, and up to `limit` are taken."""
    recovered: list[str] = []
    unknown: list[str] = []
    missing: list[str] = []
    lost = errors = 0
    async with aclosing(_orphans(services)) as orphans:
        async for orphan in orphans:
            if len(recovered) == limit:
                break
            try:
                match await _recover(services, runtime, left, orphan):
                    case "recovered":
                        recovered.append(orphan.run_id)
                    case "unknown_agent":
                        unknown.append(orphan.session_id)
                    case "missing_deps":
                        missing.append(orphan.session_id)
                    case None:
                        pass
            except ConflictError:
                lost += 1
            except Exception as problem:
                # A run that cannot be examined says nothing about those behind it.
                errors += 1
                log_exception("recovery.failed", problem, session_id=orphan.session_id)
    if recovered or unknown:
        log_event("recovery.done", recovered=len(recovered), unknown_agent=len(unknown))
    return Recovered(
        run_ids=tuple(recovered),
        unknown_agent=tuple(unknown),
        missing_deps=tuple(missing),
        taken_by_others=lost,
        errors=errors,
    )


async def _orphans(services: Services) -> AsyncGenerator[RunRecord]:
    """All of them: an engine that looks after its own runs may have any number, older than one that no process
    drives."""
    last: RunRecord | None = None
    while page := await services.store.list_orphans(limit=_PAGE, after=last):
        for orphan in page:
            yield orphan
        last = page[-1]


async def _recover(
    services: Services, runtime: Runtime, left: LeftToOthers, orphan: RunRecord
) -> Literal["recovered", "unknown_agent", "missing_deps"] | None:
    store = services.store
    if orphan.parent_run_id is not None:
        # A child is adopted by its parent's run; this one's parent run has ended without it.
        session = await store.load_state(orphan.session_id)
        await _let_go(services, orphan, session.parent_session_id)
        return None
    if not runtime.drives(orphan) and not await _has_moved(services, runtime, orphan):
        return None
    standing = await runtime.inspect(orphan)
    if standing == "alive":
        return None
    session = await store.load_state(orphan.session_id)
    agent = await find_agent(store, services.agents, session)
    if agent is None:
        left.tell_unknown(session)
        return "unknown_agent"
    if left.leaves(agent):
        return "missing_deps"
    # State that no longer fits is left for a corrected deploy, and what newer code left to newer code; claiming the run
    # would only count attempts, or fail it.
    services.present_state(agent, session.custom_state, session.agent_version)
    await check_readable(store, session, orphan)
    if standing == "missing":
        await runtime.submit(orphan)
    elif session.parent_session_id is None:
        await take_over(services, runtime, orphan)
    else:
        # As when it was started, it does not count against the limit: the run that waits for it may hold the last
        # place.
        runtime.drive_detached(await _claimed(services, runtime, orphan))
    return "recovered"


async def _has_moved(services: Services, runtime: Runtime, orphan: RunRecord) -> bool:
    """Whether a run of another runtime belongs to a companion whose root continues in this one. Any other run is left
    to its own runtime until it is resumed here."""
    session = await services.store.find_session(orphan.session_id)
    if session is None or session.parent_session_id is None:
        return False
    root = await services.store.get_current_run(session.root_session_id)
    return root is not None and runtime.drives(root)


async def take_over(
    services: Services, runtime: Runtime, dead: RunRecord, *, hooks: SomeHooks = None, model: LLMAdapter | None = None
) -> RunRecord:
    """Continue a run whose driver died, as its next attempt; a run of another runtime becomes this one's.

    Raises:
        ConflictError: another process was first.
    """
    run = await _claimed(services, runtime, dead)
    await runtime.submit(run, hooks=hooks, model=model)
    return run


async def _claimed(services: Services, runtime: Runtime, dead: RunRecord) -> RunRecord:
    known_as = None
    if not runtime.drives(dead):
        session = await services.store.load_state(dead.session_id)
        known_as = KnownAs(workflow_id=runtime.name_workflow(session.agent_type, dead.session_id, dead.turn))
    run = await claim(services.store, dead, runtime.owner, known_as=known_as)
    log_event("run.recovered", session_id=run.session_id, run_id=run.run_id, attempt=run.attempt)
    if run.call_hooks:
        log_event("hooks.call_hooks_lost", session_id=run.session_id, run_id=run.run_id)
    return run
