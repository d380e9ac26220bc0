"""The index tells the truth whoever died on the way: what a write left undone there is done by the next who asks."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from helix_agents.backends.redis import RedisStateStore
from helix_agents.backends.redis.index import entry_id
from helix_agents.backends.redis.sessions import _order_for
from helix_agents.domain.commits import SettleSession
from helix_agents.domain.errors import SessionAlreadyExistsError, StoreUnavailableError
from helix_agents.domain.runs import RunUpdate
from helix_agents.domain.sessions import MARKS, BranchPoint, CreateSession, SessionFilter
from helix_agents.ports.backend import open_backend
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.observation import ALL_STATES
from helix_agents.testing.redis_service import ForeignRedis, RedisService
from helix_agents.testing.scenes import answer, commit, fence_of, start, suspend, waiting
from helix_agents.testing.seams import DyingSeam, HoldingSeam

MOST_STATEMENTS = 60
Act = Callable[[SessionStateStore], Awaitable[Any]]


async def _settle(store: SessionStateStore) -> Any:
    return await store.settle_session(SettleSession(session_id="root", expected=("active",), status="failed"))


ACTS: dict[str, Act] = {
    "a new session": lambda store: store.create_session("new", CreateSession(user_id="ann")),
    "a new child": lambda store: store.create_session("new", CreateSession(parent_session_id="root")),
    "a branch": lambda store: store.clone_session(BranchPoint(from_session_id="root"), "new"),
    "a start": lambda store: start(store, "root", "r-2"),
    "an end": lambda store: commit(
        store, 2, session_id="root", fence=fence_of("r-1"), run=RunUpdate(status="completed")
    ),
    "a suspension": lambda store: suspend(store, 2, _call(store, "call-2"), session_id="root"),
    "an answer": lambda store: store.submit_answer(answer("call-1", "root")),
    "a status": lambda store: store.update_status("root", "paused"),
    "an end from outside": _settle,
    "a mark": lambda store: store.patch_metadata("root", {MARKS[0]: "open"}),
    "a deletion": lambda store: store.delete_session("root"),
}


def _call(store: SessionStateStore, name: str) -> Any:
    return waiting(store, name, "root", deadline=store.now_ms() - 1)


async def arranged(url: str) -> None:
    async with await open_backend(url) as backend:
        store = backend.state
        await start(store, "root", "r-1")
        await store.create_session("below", CreateSession(parent_session_id="root"))
        await commit(store, 1, session_id="root", fence=fence_of("r-1"), pending=(_call(store, "call-1"),))


async def told(store: SessionStateStore) -> dict[str, Any]:
    """What the index says."""
    return {
        "sessions": {each.session_id: each.status for each in (await store.list_sessions()).items},
        "of ann": [each.session_id for each in (await store.list_sessions(SessionFilter(user_id="ann"))).items],
        "marked": [
            each.session_id for each in (await store.list_sessions(SessionFilter(metadata={MARKS[0]: "open"}))).items
        ],
        "below": [
            each.session_id for each in (await store.list_sessions(SessionFilter(parent_session_id="root"))).items
        ],
        "calls": {call.tool_call_id: call.state for call in (await store.list_pending(ALL_STATES)).items},
        "overdue": [call.tool_call_id for call in await store.find_expired_pending()],
        "orphans": [run.run_id for run in await store.list_orphans()],
        "runs": [run for run in ("r-1", "r-2") if await store.get_run(run) is not None],
    }


async def true_of(store: SessionStateStore) -> dict[str, Any]:
    """The same, asked from the sessions themselves."""
    states = {
        name: await store.load_state(name) for name in ("root", "below", "new") if await store.session_exists(name)
    }
    runs = [run for name in states for run in (await store.list_runs(name)).items]
    root = states.get("root")
    calls = [await store.get_pending_call("root", name) for name in ("call-1", "call-2")] if root else []
    return {
        "sessions": {name: state.status for name, state in states.items()},
        "of ann": [name for name, state in states.items() if state.user_id == "ann"],
        "marked": [name for name, state in states.items() if state.metadata.get(MARKS[0]) == "open"],
        "below": [name for name, state in states.items() if state.parent_session_id == "root"],
        "calls": {call.tool_call_id: call.state for call in calls if call is not None},
        "overdue": [call.tool_call_id for call in calls if call is not None and call.state == "waiting"],
        "orphans": sorted(run.run_id for run in runs if run.status == "running"),
        "runs": sorted(run.run_id for run in runs),
    }


def sorted_lists(seen: dict[str, Any]) -> dict[str, Any]:
    return {name: sorted(value) if isinstance(value, list) else value for name, value in seen.items()}


@pytest.mark.parametrize("name", ACTS)
async def test_what_the_index_tells_is_true_wherever_a_write_was_cut_off(
    redis_service: RedisService | ForeignRedis, name: str
) -> None:
    for statement in range(1, MOST_STATEMENTS):
        url, seam = redis_service.new_url(), DyingSeam()
        await arranged(url)
        async with await open_backend(url, seam=seam) as dying:
            seam.arm(after=statement)
            try:
                await ACTS[name](dying.state)
                done = True
            except StoreUnavailableError:
                done = False
            seam.disarm()
        async with await open_backend(url) as backend:
            found = sorted_lists(await told(backend.state))
            assert found == sorted_lists(await true_of(backend.state)), f"cut off at statement {statement}"
        if done:
            return
    pytest.fail(f"the write did not end within {MOST_STATEMENTS} statements")


async def test_a_place_that_was_claimed_and_never_used_goes_to_the_next(
    redis_service: RedisService | ForeignRedis,
) -> None:
    """A child's id is claimed in one slot and created in another: whoever dies in between blocks nobody."""
    for statement in range(1, MOST_STATEMENTS):
        url, seam = redis_service.new_url(), DyingSeam()
        async with await open_backend(url) as healthy, await open_backend(url, seam=seam) as dying:
            await healthy.state.create_session("one")
            await healthy.state.create_session("two")
            seam.arm(after=statement)
            try:
                await dying.state.create_session("child", CreateSession(parent_session_id="one"))
                done = True
            except StoreUnavailableError:
                done = False
            seam.disarm()
            there = await healthy.state.session_exists("child")
            if there:
                with pytest.raises(SessionAlreadyExistsError):
                    await healthy.state.create_session("child", CreateSession(parent_session_id="two"))
            else:
                await healthy.state.create_session("child", CreateSession(parent_session_id="two"))
            found = await healthy.state.load_state("child")
            assert found.parent_session_id == ("one" if there else "two")
            assert (await healthy.state.list_sessions()).total == 3
        if done:
            return
    pytest.fail(f"the write did not end within {MOST_STATEMENTS} statements")


async def test_who_sleeps_between_claim_and_creation_finds_the_id_taken(
    redis_service: RedisService | ForeignRedis,
) -> None:
    """Of two trees that create the same child, one held after each of its statements, exactly one gets it."""
    for statement in range(1, MOST_STATEMENTS):
        url, seam = redis_service.new_url(), HoldingSeam()
        async with await open_backend(url) as quick, await open_backend(url, seam=seam) as slow:
            for root in ("one", "two"):
                await quick.state.create_session(root)
            seam.arm(after=statement)
            held = asyncio.create_task(_won(slow.state, "one"))
            await asyncio.wait({held, asyncio.create_task(seam.wait_until_held())}, return_when="FIRST_COMPLETED")
            other = await _won(quick.state, "two")
            seam.release()
            assert [await held, other].count(True) == 1
            child = await quick.state.load_state("child")
            assert child.parent_session_id == ("two" if other else "one")
            below = await quick.state.list_sessions(SessionFilter(parent_session_id="one" if other else "two"))
            assert below.total == 0
        if not seam.has_held:
            return
    pytest.fail(f"the write did not end within {MOST_STATEMENTS} statements")


async def _won(store: SessionStateStore, parent: str) -> bool:
    try:
        await store.create_session("child", CreateSession(parent_session_id=parent))
    except SessionAlreadyExistsError:
        return False
    return True


async def test_a_marked_session_is_read_without_the_others(redis_service: RedisService | ForeignRedis) -> None:
    async with await open_backend(redis_service.new_url()) as backend:
        store = backend.state
        assert isinstance(store, RedisStateStore)
        for number in range(5):
            await store.create_session(f"s-{number}", CreateSession(user_id="ann"))
        await store.patch_metadata("s-3", {MARKS[0]: "open"})
        order, _ = _order_for(SessionFilter(metadata={MARKS[0]: "open"}))
        found = await store._space.find(order)
        assert [name for name, _ in found.entries] == [entry_id("s", "s-3")]


async def test_what_the_index_tells_of_things_that_are_gone_is_looked_at_again(
    redis_service: RedisService | ForeignRedis,
) -> None:
    """A node that takes over may not have heard of the last deletions, while those of the sessions have."""
    async with await open_backend(redis_service.new_url()) as backend:
        store = backend.state
        assert isinstance(store, RedisStateStore)
        await start(store, "s-1", "r-1")
        await commit(store, session_id="s-1", fence=fence_of("r-1"), pending=(waiting(store, "call-1", "s-1"),))
        project = store._space.project
        assert project is not None
        names = {"s": ("s-1", "s-1"), "r": ("s-1", "s-1", "r-1"), "c": ("s-1", "s-1", "call-1")}
        told = [each for kind, about in names.items() for each in await project(kind, about)]
        await store.delete_session("s-1")
        now = (await store._space.index.find()).at_us
        await store._space.index.put([(entry, now) for entry, _ in told])
        for ask in (store.list_sessions, store.list_pending, store.list_orphans):
            assert len(await ask()) == 0
        assert (await store.list_sessions()).total == (await store.list_pending()).total == 0
        orders = [order for entry, _ in told for order, _ in entry.orders]
        assert (await store._space.index.find(*orders)).entries == []
