"""What is special about a store in memory: shared handles, threads, and values that nobody can reach from outside."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from helix_agents.backends.in_memory import InMemoryStateStore, Memory
from helix_agents.domain.commits import StartRun, StepCommit
from helix_agents.domain.errors import SessionNotFoundError, UnstorableValueError
from helix_agents.domain.pending import PendingFilter
from helix_agents.domain.runs import Fence
from helix_agents.domain.sessions import BranchPoint, CreateSession, InterruptFlag, InterruptSet
from helix_agents.domain.writes import Append, Replace, StepWrites
from helix_agents.testing.scenes import SESSION, commit, said, set_key, staged, start, step_meta, suspend, waiting
from helix_agents.testing.seams import CountingSeam, DyingSeam

pytestmark = pytest.mark.anyio

SECONDS = 10.0


class ObservedStore(InMemoryStateStore):
    """Tells when it looked for a flag and found none, so that only a wake-up can bring it news."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self._looked = threading.Event()

    async def find_interrupt_flag(self, session_id: str) -> InterruptFlag | None:
        flag = await super().find_interrupt_flag(session_id)
        self._looked.set()
        return flag

    async def until_it_looked(self) -> None:
        assert await asyncio.to_thread(self._looked.wait, SECONDS)


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def store(memory: Memory) -> InMemoryStateStore:
    return InMemoryStateStore(memory)


async def test_a_conversation_is_kept_step_by_step(store: InMemoryStateStore):
    await start(store, append_messages=(said("hello"),))
    await commit(store, 1, messages=[said("one")], writes=StepWrites(ops=(Append(key="log", items=[1]),)))
    first = await store.get_latest_checkpoint(SESSION)
    await commit(store, 2, messages=[said("two")], writes=StepWrites(ops=(Append(key="log", items=[2]),)))
    state = await store.load_state(SESSION)
    assert (state.custom_state, state.message_count, state.step_count) == ({"log": [1, 2]}, 3, 2)
    assert first is not None
    assert await store.load_checkpoint_state(SESSION, first.checkpoint_id) == {"log": [1]}
    branch = await store.clone_session(BranchPoint(from_session_id=SESSION, checkpoint_id=first.checkpoint_id), "b")
    assert (branch.custom_state, branch.message_count) == ({"log": [1]}, 2)


async def test_what_a_caller_passed_in_or_got_back_cannot_reach_the_store(store: InMemoryStateStore):
    given: dict[str, Any] = {"list": [1]}
    returned = await store.create_session(SESSION, CreateSession(custom_state=given, metadata={"k": "v"}))
    value: list[Any] = []
    await store.merge_custom_state(SESSION, StepWrites(ops=(Replace(key="merged", value=value),)))
    given["list"].append(2)
    value.append(2)
    returned.custom_state["list"].append(3)
    returned.metadata["k"] = "changed"
    loaded = await store.load_state(SESSION)
    loaded.custom_state["list"].append(4)
    again = await store.load_state(SESSION)
    assert (again.custom_state, again.metadata) == ({"list": [1], "merged": []}, {"k": "v"})


async def test_the_input_of_a_pending_call_cannot_be_changed_from_outside(store: InMemoryStateStore):
    await start(store)
    question: dict[str, Any] = {"question": "?"}
    answer = await suspend(store, 1, waiting(store, "c-1", input=question))
    question["question"] = "changed"
    answer.pending[0].input["question"] = "changed"
    listed = await store.list_pending(PendingFilter(session_id=SESSION))
    listed.items[0].input["question"] = "changed"
    call = await store.get_pending_call(SESSION, "c-1")
    assert call is not None
    assert call.input == {"question": "?"}


async def test_the_writes_of_a_checkpoint_cannot_be_changed_from_outside(store: InMemoryStateStore):
    await start(store)
    await commit(store, 1, writes=set_key("list", [1]))
    checkpoint = await store.get_latest_checkpoint(SESSION)
    assert checkpoint is not None
    checkpoint.writes.ops[0].value.append(2)  # type: ignore[union-attr]
    assert await store.load_checkpoint_state(SESSION, checkpoint.checkpoint_id) == {"list": [1]}


async def test_what_json_cannot_carry_is_refused_and_nothing_is_stored(store: InMemoryStateStore):
    await store.create_session(SESSION)
    with pytest.raises(UnstorableValueError):
        await store.merge_custom_state(SESSION, set_key("a", object()))
    with pytest.raises(UnstorableValueError):
        await store.append_messages(SESSION, [said("fine"), said("\ud800")])
    state = await store.load_state(SESSION)
    assert (state.custom_state, state.message_count, state.version) == ({}, 0, 1)


async def test_every_write_passes_the_seam_once_and_reads_do_not(memory: Memory):
    seam = CountingSeam()
    store = InMemoryStateStore(memory, seam=seam)
    await start(store)
    await commit(store, 1)
    await store.list_sessions()
    await store.load_state(SESSION)
    assert seam.statements == ["start_run", "save_state_and_promote_staging"]


async def test_a_commit_that_dies_at_the_seam_leaves_no_trace(memory: Memory):
    seam = DyingSeam()
    store, other = InMemoryStateStore(memory, seam=seam), InMemoryStateStore(memory)
    await start(store)
    await store.stage_changes(SESSION, staged("c-1", set_key("a", 1)))
    before = await other.load_state(SESSION)
    record = await store.load_state(SESSION)
    seam.arm(after=1)
    with pytest.raises(Exception, match="the connection was lost"):
        await store.save_state_and_promote_staging(
            SESSION,
            record,
            [said("one")],
            step_meta(1),
            commit=StepCommit(fence=Fence(run_id="r-1"), step=1, pending=(waiting(store, "c-1"),)),
        )
    assert await other.load_state(SESSION) == before
    assert await other.has_staged_changes(SESSION)
    assert (await other.list_checkpoints(SESSION)).total == 0
    assert (await other.list_pending()).total == 0


async def test_a_stop_wakes_who_waits_for_it_in_another_thread(memory: Memory):
    store, listener = InMemoryStateStore(memory), ObservedStore(memory)
    await start(store)
    listening = _in_a_thread(listener.wait_for_interrupt(SESSION, SECONDS))
    await listener.until_it_looked()
    assert await store.set_interrupt_flag(SESSION, "enough") == InterruptSet(run_id="r-1")
    flag = await asyncio.wait_for(listening, SECONDS)
    assert isinstance(flag, InterruptFlag)
    assert (flag.run_id, flag.reason) == ("r-1", "enough")


async def test_who_waits_for_a_stop_learns_that_the_session_is_gone(memory: Memory):
    store = ObservedStore(memory)
    await start(store)
    listening = asyncio.create_task(store.wait_for_interrupt(SESSION, SECONDS))
    await store.until_it_looked()
    await store.delete_session(SESSION)
    with pytest.raises(SessionNotFoundError):
        await asyncio.wait_for(listening, SECONDS)


async def test_threads_with_event_loops_of_their_own_lose_no_write(memory: Memory):
    await InMemoryStateStore(memory).create_session(SESSION)

    async def write(number: int) -> None:
        store = InMemoryStateStore(memory)
        for item in range(50):
            await store.append_messages(SESSION, [said(f"{number}-{item}")])
            await store.merge_custom_state(SESSION, StepWrites(ops=(Append(key="log", items=[item]),)))

    await asyncio.wait_for(asyncio.gather(*(_in_a_thread(write(number)) for number in range(4))), SECONDS)
    state = await InMemoryStateStore(memory).load_state(SESSION)
    assert (state.message_count, len(state.custom_state["log"]), state.version) == (200, 200, 401)


async def test_sessions_that_name_each_other_as_parent_can_be_deleted(store: InMemoryStateStore):
    await store.create_session("a", CreateSession(parent_session_id="b"))
    await store.create_session("b", CreateSession(parent_session_id="a"))
    await store.create_session("self", CreateSession(parent_session_id="self"))
    for session_id in ("a", "self"):
        await store.delete_session(session_id)
    assert (await store.list_sessions()).total == 0


async def test_a_run_recorded_outside_the_engine_cannot_be_started_again(store: InMemoryStateStore):
    await store.create_session(SESSION)
    await store.create_run(SESSION, "r-1")
    with pytest.raises(Exception, match="already exists"):
        await store.start_run(StartRun(session_id=SESSION, run_id="r-1"))


def _in_a_thread(work: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
    """Run a coroutine in a thread with an event loop of its own."""
    return asyncio.ensure_future(asyncio.to_thread(asyncio.run, work))
