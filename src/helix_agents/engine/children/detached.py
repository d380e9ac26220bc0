"""Detached companions, whose runs stand on their own: how their ends reach the parent, and how answers resume them."""

import msgspec

from helix_agents.agent.companions import SPAWN_AGENT
from helix_agents.domain.commits import StartRun, is_detached
from helix_agents.domain.errors import CallerError, ConflictError, HelixError, StateSchemaChangedError
from helix_agents.domain.ids import CheckpointId, SessionId
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.parts import result_in_words
from helix_agents.domain.pending import READY
from helix_agents.domain.runs import SUSPENDED, RunRecord
from helix_agents.domain.session_changes import has_changed_hands
from helix_agents.domain.sessions import SessionState
from helix_agents.domain.sub_sessions import SubSessionRefUpdate
from helix_agents.engine.children.meant_agents import find_agent
from helix_agents.engine.children.sub_agents import answered_below, end_of_call
from helix_agents.engine.effects import PlannedCall
from helix_agents.engine.log import log_exception
from helix_agents.engine.scope import RunScope
from helix_agents.engine.services import Services
from helix_agents.engine.steps.corrections import COMPANION_NOTICE
from helix_agents.ports.state_store import SessionStateStore

# How long to wait before asking a store again that did not answer, in seconds: doubled each time, up to a limit.
_FIRST_WAIT, _LAST_WAIT = 0.1, 30.0


async def tell_finished_companions(scope: RunScope, step: int) -> None:
    """Tell the model of each companion that ended since the last commit, in one hidden message each, once.

    The message and the end of the reference are one commit, so a crash repeats both or neither. After a deploy, a
    detached companion may be of a kind that is now blocking; if the agent has only such kinds, it is looked for once
    per turn.
    """
    keeps = scope.agent.persistent_agents
    detached = {each.agent.name for each in keeps if each.mode == "non_blocking"}
    if not detached and (not keeps or step > 1):
        return
    store = scope.services.store
    of_others = _kept_by_others(scope)
    updates: list[SubSessionRefUpdate] = []
    for ref in await store.get_sub_session_refs(scope.session.session_id):
        if ref.mode != "persistent" or ref.status != "running" or ref.agent_type in of_others:
            continue
        run = await store.get_current_run(ref.sub_session_id)
        if run is None or run.status == "running" or run.status in SUSPENDED:
            continue
        if ref.agent_type not in detached and run.parent_run_id is not None:
            continue
        session = await store.load_state(ref.sub_session_id)
        named = PlannedCall(tool_call_id=ref.tool_call_id, tool_name=SPAWN_AGENT, kind="companion")
        end = await end_of_call(scope, named, session, run)
        said = result_in_words(end.message.content, in_parts=end.message.in_parts)
        text = f"Companion {ref.name!r} ({ref.agent_type}) is {end.status}: {said}"
        notice = UserMessage(content=text, hidden=True, metadata={"helix": COMPANION_NOTICE})
        scope.carried.tell_with_reply(notice)
        updates.append(end.ref_update)
    scope.carried.settled_companions = tuple(updates)


def _kept_by_others(scope: RunScope) -> set[str]:
    """The kinds of companions that only other agents keep: these hear of them when they have the conversation again."""
    if not has_changed_hands(scope.session):
        return set()
    agents = scope.services.agents
    known = (*agents.speakers_of(scope.session.agent_type), *agents.circle_of(scope.agent).values())
    kinds = {kept.agent.name for each in known for kept in each.persistent_agents}
    return kinds - {kept.agent.name for kept in scope.agent.persistent_agents}


async def untold_at(
    store: SessionStateStore, session_id: SessionId, checkpoint_id: CheckpointId | None
) -> tuple[SubSessionRefUpdate, ...]:
    """Updates that let companions report to the model again if their ends were told after the checkpoint that a session
    is rewound to. Companions that did not exist by then are left alone: that conversation has not heard of them."""
    checkpoint = await store.get_checkpoint(session_id, checkpoint_id) if checkpoint_id is not None else None
    if checkpoint is None:
        return ()
    updates: list[SubSessionRefUpdate] = []
    for ref in await store.get_sub_session_refs(session_id):
        told = ref.mode == "persistent" and ref.status in ("completed", "failed", "interrupted")
        if not told or not ref.created_at <= checkpoint.created_at < ref.updated_at:
            continue
        run = await store.get_current_run(ref.sub_session_id)
        if run is not None and run.parent_run_id is None:
            updates.append(SubSessionRefUpdate(sub_session_id=ref.sub_session_id, status="running"))
    return tuple(updates)


async def resume_detached(
    services: Services, root: SessionId, owner: str | None, *, companion: SessionId | None = None
) -> int:
    """Drive the companions of a tree that waited and can continue, each as soon as its run has started; returns how
    many.

    These are the companions whose question has its answer, the companions above that wait for them, and the given one
    if what it waited for has continued by itself.
    """
    store = services.store
    # A root has the calls of its whole tree: one read by key replaces a listing that would have to search.
    calls = (await store.load_state(root)).pending_client_tool_calls.values()
    ready = [call.session_id for call in calls if call.state in READY and call.session_id != root]
    started: set[SessionId] = set()
    for lowest in dict.fromkeys(ready if companion is None else (*ready, companion)):
        # From the top: a companion that continues looks after those it waits for, should this process die in between.
        for session in reversed(await _line_of(store, lowest)):
            run = await store.get_current_run(session.session_id)
            if run is None or run.status not in SUSPENDED or not is_detached(session, run):
                continue
            if await answered_below(store, session) and (begun := await _resume(services, session, run, owner)):
                services.drive_detached(begun)
                started.add(session.session_id)
    return len(started)


async def _line_of(store: SessionStateStore, session_id: SessionId) -> list[SessionState]:
    """A session and those above it, without the root."""
    line: list[SessionState] = []
    session = await store.load_state(session_id)
    while session.parent_session_id is not None:
        line.append(session)
        session = await store.load_state(session.parent_session_id)
    return line


async def _resume(services: Services, session: SessionState, run: RunRecord, owner: str | None) -> RunRecord | None:
    """Start a run that continues what a companion left open; None if another process was first."""
    start = StartRun(
        session_id=session.session_id,
        run_id=services.ids.new("run"),
        expected_version=session.version,
        expected_run=run.fence,
        keep_suspension=True,
        keep_step_count=True,
        count_resume=True,
        previous_run_id=run.run_id,
        owner=owner,
        workflow_id=services.name_workflow(session.agent_type, session.session_id, run.turn + 1),
        tell=services.tells(run),
    )
    agent = await find_agent(services.store, services.agents, session)
    if agent is None:
        return None
    try:
        writes = services.present_state(agent, session.custom_state, session.agent_version).writes
        present = msgspec.structs.replace(start, agent_version=agent.version, writes=writes)
        return await begin_detached(services, present)
    except ConflictError:
        return None
    except StateSchemaChangedError as problem:
        # Nothing was written: a deploy that fits the state can continue it.
        log_exception("subagent.dispatch_failed", problem, session_id=session.session_id)
        return None


async def begin_detached(services: Services, start: StartRun) -> RunRecord:
    """Start a run that stands on its own, and make sure that it started.

    While this process lives, no other process picks up a run under its lease. A start whose answer was lost is
    therefore sent again until the store answers.

    Raises:
        ConflictError: another process was first.
    """
    wait, unheard = _FIRST_WAIT, False
    while True:
        try:
            return (await services.store.start_run(start)).run
        except HelixError as problem:
            is_answer = isinstance(problem, ConflictError | CallerError)
            if is_answer or start.owner is None or not (problem.retryable or unheard):
                raise
            unheard = True
            log_exception("run.start_unheard", problem, session_id=start.session_id, run_id=start.run_id)
        await services.sleep(wait)
        wait = min(wait * 2, _LAST_WAIT)
