"""Opening a run in this process: reading where it stands, and giving this attempt what it needs to continue."""

import asyncio
from contextlib import suppress
from typing import Any, NamedTuple

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.hooks import SomeHooks, each_hooks
from helix_agents.agent.registry import find_delegate
from helix_agents.domain.errors import SupersededError
from helix_agents.domain.ids import SessionId, ToolCallId
from helix_agents.domain.messages import Message
from helix_agents.domain.runs import Fence, RunRecord
from helix_agents.domain.session_changes import of_version
from helix_agents.domain.sessions import SessionState
from helix_agents.domain.streams import StreamPlace
from helix_agents.engine.children.delegated_writer import DelegatedWriter
from helix_agents.engine.children.meant_agents import find_holder, line_of
from helix_agents.engine.coming_writer import ComingWriter
from helix_agents.engine.desk import ASKING, COMPACTING, OPENING, WORKSPACE, Desk
from helix_agents.engine.effects import OpenBatch, Position
from helix_agents.engine.scope import OfRun, RunScope
from helix_agents.engine.services import Services
from helix_agents.engine.steps.stop_watch import StopSignal
from helix_agents.ports.llm import LLMAdapter
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.ports.streams import StreamWriter


class Made(NamedTuple):
    """A session that was created a moment ago: what reading the store would find."""

    session: SessionState
    messages: tuple[Message, ...]


class Begun(NamedTuple):
    """A turn that this process started: its place in its stream, if it has one, and its session, if that is new."""

    run: RunRecord
    stream: StreamPlace | None
    made: Made | None


async def open_scope(
    services: Services,
    session_id: SessionId,
    fence: Fence,
    *,
    desk: Desk,
    stop: StopSignal,
    deps: Any = None,
    hooks: SomeHooks = None,
    model: LLMAdapter | None = None,
    parent: RunScope | None = None,
    delegated_by: ToolCallId | None = None,
    join: bool = False,
    shared: bool = False,
    begun: Begun | None = None,
) -> RunScope | Position:
    """Open a run in this process; if it has ended or another driver owns it, return its position only.

    `hooks` and `model` were given for this run alone and live in the caller's process. A child's run is opened for the
    call of its `parent` that delegated to it. An effect that runs beside others of the same step must `join` them in
    the stream. In a `shared` run an effect may run for the second time and look at what it said before, so the stream's
    writer is waited for instead of left to arrive later. If `begun` describes a turn that was just started, the store
    is not asked for what is already known.
    """
    # These reads are independent, and the store may be a network away. No one else writes what this fence's run reads.
    reading = _reading(services.store, session_id, begun)
    try:
        session, run = await _standing(services.store, session_id, begun)
        if run is None or run.fence != fence or run.status != "running":
            return _elsewhere(session, run, fence)
        agent, above = await who_works(services, session, parent)
        loaded = services.present_state(agent, session.custom_state, session.agent_version)
        if begun is not None and begun.stream is not None:
            writer = services.streams.writer_at(session.stream_id or session.session_id, run.run_id, begun.stream)
        else:
            writer = await _writer(services, session, run, parent, join=join, repeats=shared or run.attempt > 1)
        transcript = await reading
    finally:
        await _let_go_of(reading)
    scope = RunScope(
        services,
        agent,
        # If the state had to be migrated, the commit that stores it also stores the new version.
        session=of_version(session, agent.version, until=session.version),
        run=run,
        transcript=transcript,
        writer=writer,
        desk=desk,
        stop=stop,
        given=OfRun(above, hooks, model),
        deps=deps,
        parent=parent,
        delegated_by=delegated_by,
    )
    scope.carried.migration = loaded.writes
    if session.interrupt_flag is not None or session.status == "paused":
        stop.request(session.interrupt_flag)
    return scope


async def who_works(services: Services, session: SessionState, parent: RunScope | None) -> tuple[AnyAgent, SomeHooks]:
    """The agent that does the work, and the hooks it inherits: a child runs its parent's hooks before its own. A
    companion whose run stands on its own is driven without its parent and still inherits them."""
    if parent is not None:
        own = find_delegate(parent.agent, session.agent_type) or services.agents.find(session.agent_type)
        agent = find_holder(services.agents, own, session)
        everywhere = {id(each) for each in each_hooks(services.hooks)}
        above = [each for each in parent.hooks.hooks if id(each) not in everywhere]
    else:
        *line, agent = await line_of(services.store, services.agents, session)
        above = [each for one in line if one is not None for each in each_hooks(one.hooks)]
    return agent or services.agents.get(session.worked_by), above


async def _standing(
    store: SessionStateStore, session_id: SessionId, begun: Begun | None
) -> tuple[SessionState, RunRecord | None]:
    if begun is not None and begun.made is not None:
        return begun.made.session, begun.run
    return await asyncio.gather(store.load_state(session_id), store.get_current_run(session_id))


def _reading(store: SessionStateStore, session_id: SessionId, begun: Begun | None) -> asyncio.Future[list[Message]]:
    """The transcript being read; for a session that was just created it is already known and needs no task."""
    if begun is None or begun.made is None:
        return asyncio.ensure_future(_transcript(store, session_id))
    there: asyncio.Future[list[Message]] = asyncio.get_running_loop().create_future()
    there.set_result(list(begun.made.messages))
    return there


async def _transcript(store: SessionStateStore, session_id: SessionId) -> list[Message]:
    return [each.message for each in await store.load_transcript(session_id)]


async def _let_go_of(reading: asyncio.Future[list[Message]]) -> None:
    """Drop the read: its result is here, or is no longer needed."""
    if not reading.done():
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    elif not reading.cancelled():
        reading.exception()


def _elsewhere(session: SessionState, run: RunRecord | None, fence: Fence) -> Position:
    has_ended = run is not None and run.run_id == fence.run_id and run.status != "running"
    return Position(
        session_id=session.session_id,
        run_id=fence.run_id,
        attempt=fence.attempt,
        agent_type=session.worked_by,
        step=session.step_count,
        ended=run.status if run is not None and has_ended else "superseded",
    )


async def take_writer(scope: RunScope, *, join: bool) -> None:
    """Switch to the stream's current writer: it may have changed while other processes ran effects of the run."""
    before, scope.writer = (
        scope.writer,
        await _writer(scope.services, scope.session, scope.run, scope.parent, join=join, repeats=True),
    )
    with suppress(SupersededError):
        await before.close()


async def take_notes_of_others(scope: RunScope, batch: OpenBatch) -> None:
    """Take in notes that effects of this step left in other processes. A call may have noted something new since; any
    other note that this scope already has is skipped, because the model would be told it twice."""
    for name, note in (await scope.desk.notes(scope.step_id(batch.step))).items():
        of_a_call = not name.startswith((OPENING, ASKING, COMPACTING, WORKSPACE))
        if note.round == batch.round and (of_a_call or not scope.carried.has(name)):
            scope.take_note(name, note)


async def _writer(
    services: Services, session: SessionState, run: RunRecord, parent: RunScope | None, *, join: bool, repeats: bool
) -> StreamWriter:
    """A root writes to its own stream. A child writes through its parent, after removing what a dead attempt said, or
    what an earlier try of a repeated effect said."""
    step = _first_unsaid_step(session)
    after = await _said_for_good(services, session) if repeats else 0
    if parent is not None:
        if not join and repeats:
            await parent.writer.flush()
            await services.streams.cleanup_to_step(parent.stream_id, run.run_id, step - 1, after=after)
        return DelegatedWriter(parent)
    coming = services.streams.create_writer(
        session.stream_id or session.session_id,
        run.run_id,
        session.worked_by,
        turn=run.turn,
        attempt=run.attempt,
        step=None if join else step,
        after=after,
        join=join,
    )
    if repeats:
        # A later attempt looks at what its predecessor said, so everything to be discarded must be gone by then.
        return await coming
    writer = ComingWriter(coming)
    # Let the request leave now, rather than when the run first waits, which would be at its first commit.
    await services.sleep(0)
    return writer


def _first_unsaid_step(session: SessionState) -> int:
    """The first step that a dead attempt may have left uncommitted chunks of."""
    suspended = session.suspension_context
    return suspended.step if suspended is not None else session.step_count + 1


async def _said_for_good(services: Services, session: SessionState) -> int:
    """The last sequence number of the stream that a commit covers; of an open step, some rounds may be committed."""
    if session.checkpoint_id is None:
        return 0
    checkpoint = await services.store.get_checkpoint(session.session_id, session.checkpoint_id)
    return checkpoint.stream_sequence if checkpoint is not None else 0
