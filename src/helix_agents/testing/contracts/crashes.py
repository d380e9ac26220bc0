"""The contract of crash safety: a connection that is lost at any statement leaves a write done or not started."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from helix_agents.domain.commits import SettleSession, StartRun, StepCommit
from helix_agents.domain.errors import SessionNotFoundError, StoreUnavailableError
from helix_agents.domain.queued import QueueChange
from helix_agents.domain.runs import RunUpdate
from helix_agents.domain.sessions import BranchPoint, CreateSession
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.contracts.operations import record
from helix_agents.testing.contracts.store_handles import StoreContract, StoreHandles
from helix_agents.testing.observation import observe, plain
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.scenes import (
    append_to,
    asked,
    child_ref,
    effect,
    fence_of,
    queued,
    said,
    set_key,
    staged,
    step_meta,
    waiting,
)
from helix_agents.testing.seams import ConnectionLostError, DyingSeam, HoldingSeam, StumblingSeam

MOST_STATEMENTS = 200
"""No write of any backend may need more statements than this."""

LOST = (ConnectionLostError, StoreUnavailableError)


@dataclass(frozen=True)
class CrashCase:
    """A write to be cut off, on sessions named after `tag`; a repeatable one may be sent again after it was done."""

    act: Callable[[SessionStateStore, str], Awaitable[Any]]
    repeatable: bool = False


async def arrange(store: SessionStateStore, tag: str) -> None:
    """A running session `tag` with rows of every kind, and a running child."""
    root, child = CreateSession(custom_state={"list": [0]}), CreateSession(parent_session_id=tag, root_session_id=tag)
    await store.start_run(
        StartRun(session_id=tag, run_id=f"{tag}-run", create=root, append_messages=(said("hi"), asked("c-1")))
    )
    await store.start_run(StartRun(session_id=f"{tag}-child", run_id=f"{tag}-child-run", create=child))
    await store.save_state_and_promote_staging(
        tag,
        record(tag),
        (said("first"),),
        step_meta(1, f"{tag}-run"),
        commit=StepCommit(
            fence=fence_of(f"{tag}-run"),
            step=1,
            writes=append_to("list", 1),
            pending=(waiting(store, "call-1", tag, run_id=f"{tag}-run"),),
        ),
    )
    row = replace(staged("c-1", append_to("list", 2)), step_id=step_meta(2, f"{tag}-run").step_id)
    await store.stage_changes(tag, row)
    for name in ("steer-1", "steer-2"):
        await store.queue_turn(queued(f"{tag}-{name}", name, session_id=tag, steers=True))


def _step(store: SessionStateStore, tag: str) -> Awaitable[Any]:
    return store.save_state_and_promote_staging(
        tag,
        record(tag, step_count=2),
        (said("second"), said("third")),
        step_meta(2, f"{tag}-run"),
        commit=StepCommit(
            fence=fence_of(f"{tag}-run"),
            step=2,
            writes=append_to("list", 3),
            pending=(waiting(store, "call-2", tag, run_id=f"{tag}-run"),),
            refs=(child_ref(f"{tag}-child"),),
            run=RunUpdate(status="suspended_client_tool"),
            suspend=True,
        ),
    )


def _taking_step(store: SessionStateStore, tag: str) -> Awaitable[Any]:
    return store.save_state_and_promote_staging(
        tag,
        record(tag, step_count=2),
        (said("second"),),
        step_meta(2, f"{tag}-run"),
        commit=StepCommit(fence=fence_of(f"{tag}-run"), step=2, writes=append_to("list", 3), takes_messages=True),
    )


def _start(store: SessionStateStore, tag: str, **fields: Any) -> Awaitable[Any]:
    return store.start_run(
        StartRun(
            session_id=tag,
            run_id=f"{tag}-run-2",
            expected_run=fence_of(f"{tag}-run"),
            append_messages=(said("again"),),
            writes=set_key("x", 1),
            abandon_pending=True,
            count_resume=True,
            **fields,
        )
    )


def _change_queued(store: SessionStateStore, tag: str) -> Awaitable[Any]:
    change = QueueChange(messages=(said("rather this"),), steers=False)
    return store.change_queued(tag, f"{tag}-steer-1", change)


def _settle(store: SessionStateStore, tag: str) -> Awaitable[Any]:
    return store.settle_session(
        SettleSession(session_id=tag, expected=("active",), status="failed", append_messages=(said("bye"),))
    )


def _begin_effect(store: SessionStateStore, tag: str) -> Awaitable[Any]:
    reply = replace(staged("c-9"), step_id=step_meta(2, f"{tag}-run").step_id)
    return store.begin_effect(effect("c-1", session_id=tag, fence=fence_of(f"{tag}-run"), stage=(reply,)))


CASES = {
    "step commit": CrashCase(_step, repeatable=True),
    "step commit that takes messages in": CrashCase(_taking_step, repeatable=True),
    "run start": CrashCase(_start, repeatable=True),
    "run start that takes messages in": CrashCase(
        lambda store, tag: _start(store, tag, takes_messages=True), repeatable=True
    ),
    "message for a run": CrashCase(
        lambda store, tag: store.queue_turn(queued(f"{tag}-steer-3", session_id=tag, steers=True)), repeatable=True
    ),
    "change of a message that waits": CrashCase(_change_queued),
    "removal of a message that waits": CrashCase(
        lambda store, tag: store.drop_queued(tag, f"{tag}-steer-2"), repeatable=True
    ),
    "start of a new session": CrashCase(
        lambda store, tag: store.start_run(
            StartRun(
                session_id=f"{tag}-new",
                run_id=f"{tag}-new-run",
                create=CreateSession(branch=BranchPoint(from_session_id=tag)),
                append_messages=(said("go"),),
            )
        ),
        repeatable=True,
    ),
    "settling": CrashCase(_settle),
    "deletion": CrashCase(lambda store, tag: store.delete_session(tag), repeatable=True),
    "clone": CrashCase(lambda store, tag: store.clone_session(BranchPoint(from_session_id=tag), f"{tag}-new")),
    "save": CrashCase(lambda store, tag: store.save_state(tag, record(tag, custom_state={"a": 1}, status="paused"))),
    "promotion": CrashCase(lambda store, tag: store.promote_staging(tag, step_meta(2, f"{tag}-run"))),
    "effect": CrashCase(_begin_effect, repeatable=True),
    "truncation": CrashCase(lambda store, tag: store.truncate_messages(tag, 1), repeatable=True),
    "creation": CrashCase(lambda store, tag: store.create_session(f"{tag}-new", CreateSession(tags=("a", "b")))),
}


async def _whole_or_not_there(
    healthy: SessionStateStore,
    case: CrashCase,
    disturb: Callable[[str, int], Awaitable[tuple[SessionStateStore, bool]]],
) -> None:
    """Disturb the write at each of its statements until it succeeds: either nothing of it is visible, or all of it.

    `disturb` returns a store to continue with, and whether the write had ended before its turn came.
    """
    torn: list[Any] = []
    for statement in range(1, MOST_STATEMENTS):
        tag = f"case-{statement}."
        await arrange(healthy, tag)
        before = await _seen(healthy, tag)
        store, completed = await disturb(tag, statement)
        after = await _seen(store, tag)
        if completed:
            assert after != before, "the write changes something that can be seen"
            break
        if after != before:
            torn.append(after)
        if after == before or case.repeatable:
            await case.act(store, tag)
            torn.append(await _seen(store, tag))
        await store.close()
    else:
        pytest.fail(f"the write did not end within {MOST_STATEMENTS} statements")
    for found in torn:
        assert found == after


class CrashesContract(StoreContract):
    """Writes cut off at each of their statements."""

    @proves("crash.all-or-nothing", "crash.retried-once")
    @pytest.mark.parametrize("name", CASES)
    async def test_a_write_cut_off_at_any_statement_is_whole_or_not_there(
        self, handles: StoreHandles, name: str
    ) -> None:
        async def cut_off(tag: str, statement: int) -> tuple[SessionStateStore, bool]:
            completed = await _cut_off(handles, CASES[name], tag, statement)
            return await handles.open(), completed

        await _whole_or_not_there(await handles.open(), CASES[name], cut_off)

    @proves("crash.cancelled")
    @pytest.mark.parametrize("name", CASES)
    async def test_a_write_whose_caller_is_cancelled_at_any_statement_is_whole_or_not_there(
        self, handles: StoreHandles, name: str
    ) -> None:
        async def cancel(tag: str, statement: int) -> tuple[SessionStateStore, bool]:
            seam = HoldingSeam()
            store = await handles.open(seam=seam)
            completed = await _cancelled(store, seam, CASES[name], tag, statement)
            # What comes next waits for what is still under way.
            await store.create_session(f"{tag}-behind")
            return store, completed

        await _whole_or_not_there(await handles.open(), CASES[name], cancel)

    @proves("crash.never-applied-twice")
    async def test_writes_that_share_a_lost_connection_are_applied_once_or_refused(self, handles: StoreHandles) -> None:
        watching = await handles.open()
        for statement in range(1, MOST_STATEMENTS):
            session, seam = f"stumble-{statement}", StumblingSeam()
            await watching.create_session(session)
            store = await handles.open(seam=seam)
            seam.arm(after=statement)
            texts = [f"text-{number}" for number in range(4)]
            outcomes = await asyncio.gather(
                *(store.append_messages(session, [said(text)]) for text in texts), return_exceptions=True
            )
            await store.close()
            rows = await watching.load_transcript(session)
            stored = [getattr(row.message, "content", None) for row in rows]
            for text, answered in zip(texts, outcomes, strict=True):
                assert isinstance(answered, (int, *LOST))
                assert stored.count(text) in ((1,) if isinstance(answered, int) else (0, 1))
            if not seam.has_stumbled:
                return
        pytest.fail(f"the writes did not end within {MOST_STATEMENTS} statements")


async def _cut_off(handles: StoreHandles, case: CrashCase, tag: str, statement: int) -> bool:
    """Lose the connection at a statement of the write; True if the write needs fewer."""
    seam = DyingSeam()
    dying = await handles.open(seam=seam)
    seam.arm(after=statement)
    try:
        await case.act(dying, tag)
    except LOST:
        return False
    else:
        return True
    finally:
        seam.disarm()
        await dying.close()


async def _cancelled(store: SessionStateStore, seam: HoldingSeam, case: CrashCase, tag: str, statement: int) -> bool:
    """Cancel the write while a statement of it is held; True if the write needs fewer."""
    seam.arm(after=statement)
    writing = asyncio.ensure_future(case.act(store, tag))
    held = asyncio.create_task(seam.wait_until_held())
    await asyncio.wait({writing, held}, return_when=asyncio.FIRST_COMPLETED)
    if seam.has_held:
        writing.cancel()
    seam.release()
    await asyncio.wait({writing, held})
    if not seam.has_held:
        await writing
    return not seam.has_held


async def _seen(store: SessionStateStore, tag: str) -> Any:
    """Everything visible about the sessions named after a tag, without the tag."""
    seen = {
        "sessions": await observe(store, tag, f"{tag}-child", f"{tag}-new"),
        "runs": [await store.get_run(f"{tag}-run"), await store.get_run(f"{tag}-child-run")],
        "calls": [await store.get_pending_call(tag, call) for call in ("call-1", "call-2")],
        "taken": [await _where_is(store, tag, f"{tag}-steer-{number}") for number in (1, 2)],
    }
    return plain(seen, lambda text: text.replace(tag, "case"))


async def _where_is(store: SessionStateStore, session_id: str, run_id: str) -> Any:
    try:
        return await store.find_queued(session_id, run_id)
    except SessionNotFoundError:
        return None
