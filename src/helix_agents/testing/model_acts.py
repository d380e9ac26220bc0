"""The writes that a random history consists of, each something that any store can be asked to do.

Every act takes the store, the session it is about, a name that no act before it had, and its drawn arguments.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from msgspec.structs import replace

from helix_agents.domain.commits import SettleSession, StartRun, StepCommit
from helix_agents.domain.pending import SubmitAnswer, ToolAnswer
from helix_agents.domain.runs import Fence, RunUpdate
from helix_agents.domain.sessions import BranchPoint, CreateSession
from helix_agents.domain.staging import StagedChange
from helix_agents.domain.sub_sessions import SubSessionRefUpdate
from helix_agents.domain.writes import StepWrites
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.observation import ALL_STATES
from helix_agents.testing.scenes import child_ref, effect, said, step_meta, waiting

Perform: TypeAlias = Callable[..., Awaitable[Any]]

PARENTS = {"a": None, "b": None, "c": None, "d": None, "a-1": "a", "a-1-1": "a-1"}
"""The only session ids, so that histories interact, each with its parent."""

ENDS: dict[str, Any] = {"suspend": "suspended_client_tool", "complete": "completed", "fail": "failed"}
"""How a step, or a caller outside the run, may end a run."""


async def create(store: SessionStateStore, session: str, name: str, *, state: dict[str, Any], user: str | None) -> Any:
    """Create the session, below its parent if that exists."""
    parent = PARENTS[session]
    if parent is not None and not await store.session_exists(parent):
        parent = None
    tags = ("t",) if user else ()
    options = CreateSession(custom_state=state, user_id=user, tags=tags, parent_session_id=parent)
    return await store.create_session(session, options)


async def save(
    store: SessionStateStore, session: str, name: str, *, state: dict[str, Any], status: Any, late: int
) -> Any:
    """Save the record as loaded, with changes, perhaps under an outdated version."""
    loaded = await store.load_state(session)
    record = replace(loaded, custom_state=state, status=status, output=state, error="e" if late else None)
    return await store.save_state(session, record, expected_version=loaded.version - late)


async def append(store: SessionStateStore, session: str, name: str, *, messages: Any) -> Any:
    """Append messages."""
    return await store.append_messages(session, messages)


async def truncate(store: SessionStateStore, session: str, name: str, *, count: int) -> Any:
    """Truncate the messages."""
    return await store.truncate_messages(session, count)


async def merge(store: SessionStateStore, session: str, name: str, *, writes: StepWrites) -> Any:
    """Merge writes into the custom state."""
    return await store.merge_custom_state(session, writes)


async def change_status(store: SessionStateStore, session: str, name: str, *, status: Any) -> Any:
    """Compare and set the status."""
    return await store.compare_and_set_status(session, ("active", "failed"), status, error="e")


async def count(store: SessionStateStore, session: str, name: str, *, value: str | None) -> Any:
    """Count a step and a resume, and patch the metadata."""
    return (
        await store.increment_step_count(session),
        await store.increment_resume_count(session),
        await store.patch_metadata(session, {"k": value}),
    )


async def checkpoint(store: SessionStateStore, session: str, name: str, *, step: int) -> Any:
    """Write a checkpoint."""
    return await store.create_checkpoint(session, step_meta(step))


async def refer(store: SessionStateStore, session: str, name: str, *, child: str, update: bool) -> Any:
    """Add a reference to a child, or update it."""
    if update:
        change = SubSessionRefUpdate(sub_session_id=child, status="completed", result=[name])
        return await store.update_sub_session_ref(session, change)
    return await store.add_sub_session_refs(session, [child_ref(child)])


async def branch(store: SessionStateStore, session: str, name: str, *, copy: str, at: str, n: int) -> Any:
    """Clone at the end, at a message or at a checkpoint."""
    point = BranchPoint(from_session_id=session)
    if at == "message":
        point = replace(point, message_count=n)
    elif at == "checkpoint":
        point = replace(point, checkpoint_id=await _checkpoint(store, session, n))
    return await store.clone_session(point, copy)


async def delete(store: SessionStateStore, session: str, name: str) -> Any:
    """Delete the session."""
    return await store.delete_session(session)


async def settle(store: SessionStateStore, session: str, name: str, *, writes: StepWrites) -> Any:
    """Settle the session from outside, with what is known to have changed in its state."""
    about: dict[str, Any] = {"expected": ("active", "paused"), "status": "failed", "error": "expired"}
    return await store.settle_session(SettleSession(session_id=session, **about, writes=writes))


async def start(
    store: SessionStateStore,
    session: str,
    name: str,
    *,
    messages: Any,
    writes: StepWrites,
    options: set[str],
    rewind: int | None,
    owner: str | None,
    late: int,
) -> Any:
    """Start a run as planned from a read, perhaps an outdated one; create the session if it does not exist."""
    fields: dict[str, Any] = dict.fromkeys(options, True)
    request = StartRun(session_id=session, run_id=name, append_messages=messages, writes=writes, owner=owner, **fields)
    if not await store.session_exists(session):
        return await store.start_run(replace(request, create=CreateSession()))
    loaded, run = await store.load_state(session), await store.get_current_run(session)
    to = None if rewind is None else await _checkpoint(store, session, rewind)
    expected = {"expected_version": loaded.version - late, "expected_run": run.fence if run else None}
    return await store.start_run(replace(request, rewind_to=to, **expected))


async def hold_lease(store: SessionStateStore, session: str, name: str, *, owner: str, ttl: int) -> Any:
    """Renew a lease, or release it."""
    changed = await store.renew_lease(owner, ttl) if ttl else await store.release_lease(owner)
    return changed, await store.find_lease(owner)


async def claim(store: SessionStateStore, session: str, name: str, *, owner: str | None, late: int) -> Any:
    """Take the current run over, perhaps at an outdated attempt."""
    return await store.claim_run(session, await _fence(store, session, late), owner)


async def end_run(store: SessionStateStore, session: str, name: str, *, how: str) -> Any:
    """End the current run from outside."""
    fence = await _fence(store, session)
    return await store.update_run_status(fence.run_id, ENDS[how], RunUpdate(completion_reason="why"))


async def commit(
    store: SessionStateStore,
    session: str,
    name: str,
    *,
    step: int,
    messages: Any,
    writes: StepWrites,
    pending: tuple[str, ...],
    consume: bool,
    how: str,
    late: int,
) -> Any:
    """Commit a step of the current run, which is revived first."""
    fence = await _revived(store, session, name)
    loaded = await store.load_state(session)
    fields = {"root_session_id": loaded.root_session_id, "deadline": store.now_ms() + 5}
    request = StepCommit(
        fence=fence,
        step=step,
        round=0 if late else int(name.removeprefix("r-")),
        writes=writes,
        pending=tuple(waiting(store, call, session, **fields) for call in pending),
        consume=tuple(loaded.pending_client_tool_calls) if consume else (),
        run=RunUpdate(status=ENDS.get(how)),
        suspend=how == "suspend",
        drop_pending=how == "fail",
        take_stop=how == "complete",
        forget_effects=("call-1",) if consume else (),
    )
    record, meta = replace(loaded, step_count=loaded.step_count + 1), step_meta(step, fence.run_id)
    return await store.save_state_and_promote_staging(session, record, messages, meta, commit=request)


async def commit_plainly(store: SessionStateStore, session: str, name: str, *, step: int, state: dict[str, Any]) -> Any:
    """Commit a record with its custom state and no more."""
    record = replace(await store.load_state(session), custom_state=state)
    meta = step_meta(step, (await _fence(store, session)).run_id)
    return await store.save_state_and_promote_staging(session, record, (said("plain"),), meta)


async def stage(
    store: SessionStateStore, session: str, name: str, *, step: int, call: str, index: int, writes: StepWrites
) -> Any:
    """Stage a call's writes for a step of the current run, which is revived first."""
    fence = await _revived(store, session, name)
    step_id = step_meta(step, fence.run_id).step_id
    change = StagedChange(step_id=step_id, tool_call_id=call, index=index, writes=writes)
    return await store.stage_changes(session, change, fence=fence)


async def use_staging(store: SessionStateStore, session: str, name: str, *, step: int, how: str) -> Any:
    """Promote or discard what is staged."""
    meta = step_meta(step, (await _fence(store, session)).run_id)
    if how == "promote":
        return await store.promote_staging(session, meta)
    return await store.discard_staging(session, None if how == "discard all" else meta.step_id)


async def submit(store: SessionStateStore, session: str, name: str, *, number: int, at_root: bool, result: Any) -> Any:
    """Answer one of the existing calls, whatever its state, or one that does not exist."""
    calls, call = (await store.list_pending(ALL_STATES)).items, "never"
    if calls:
        chosen = calls[number % len(calls)]
        session, call = chosen.root_session_id if at_root else chosen.session_id, chosen.tool_call_id
    submission = SubmitAnswer(session_id=session, tool_call_id=call, answer=ToolAnswer(result=result))
    return await store.submit_answer(submission)


async def expire(store: SessionStateStore, session: str, name: str) -> Any:
    """Expire what has waited too long."""
    return await store.expire_pending()


async def stop(store: SessionStateStore, session: str, name: str, *, how: Any) -> Any:
    """Set, take or clear the stop."""
    match how:
        case "take":
            return await store.check_interrupt_flag(session)
        case "clear":
            return await store.clear_interrupt_flag(session)
        case _:
            return await store.set_interrupt_flag(session, name, kind=how)


async def run_effect(store: SessionStateStore, session: str, name: str, *, owner: str, how: str) -> Any:
    """Begin, renew or finish the only effect of a session, whose run is revived first."""
    fence = await _revived(store, session, name)
    if how == "renew":
        return await store.renew_effect(session, "call-1", owner, 5)
    if how == "finish":
        return await store.finish_effect(session, "call-1", owner, {"by": owner})
    request = effect("call-1", owner, session_id=session, fence=fence, lease_ms=5, rerun=how == "rerun")
    return await store.begin_effect(replace(request, consume_answer=True))


async def _fence(store: SessionStateStore, session: str, late: int = 0) -> Fence:
    run = await store.get_current_run(session)
    return Fence(run_id=run.run_id, attempt=run.attempt - late) if run else Fence(run_id="r-none")


async def _revived(store: SessionStateStore, session: str, name: str) -> Fence:
    """The fence of a running run, started if none is running: a history of refusals shows nothing."""
    run = await store.get_current_run(session)
    if run is None or run.status != "running":
        run = (await store.start_run(StartRun(session_id=session, run_id=name, keep_suspension=True))).run
    return run.fence


async def _checkpoint(store: SessionStateStore, session: str, number: int) -> str:
    """The n-th newest checkpoint, or an id that does not exist."""
    page = await store.list_checkpoints(session, offset=number, limit=1)
    return page.items[0].checkpoint_id if page.items else "none"
