"""The contract of deliveries: what webhooks have to be told is found as soon as it is committed, until it is told."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest
from msgspec.structs import replace

from helix_agents.domain.commits import SettleSession, StartRun
from helix_agents.domain.errors import InvalidIdError, InvalidPageError, StoreUnavailableError
from helix_agents.domain.runs import RunRecord, RunStatus, RunUpdate
from helix_agents.domain.sessions import CreateSession
from helix_agents.domain.webhooks import ABANDONED_MS, Delivery
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.contracts.store_handles import StoreContract, StoreHandles
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.seams import ConnectionLostError, DyingSeam

LOST = (ConnectionLostError, StoreUnavailableError)
MOST_STATEMENTS = 100


def _delivery(delivery_id: str = "msg_1", **fields: Any) -> Delivery:
    given: dict[str, Any] = {
        "webhook": "hook",
        "event": "turn.completed",
        "session_id": "s-1",
        "run_id": "r-1",
        "created_at": 10,
        "next_at": 10,
        "revision": "1",
    }
    return Delivery(delivery_id=delivery_id, **given | fields)


async def _ended(
    store: SessionStateStore, run_id: str = "r-1", status: RunStatus = "completed", **fields: Any
) -> RunRecord:
    """A run of a session of its own that started and ended."""
    given: dict[str, Any] = {"tell": True} | fields
    create = CreateSession(agent_type="clerk")
    await store.start_run(StartRun(session_id=f"of-{run_id}", run_id=run_id, create=create, **given))
    return await store.update_run_status(run_id, status, RunUpdate(output="done"))


async def _owe(store: SessionStateStore, *deliveries: Delivery) -> None:
    """Have these deliveries stored, for a run that ended."""
    run = await _ended(store, f"r-{deliveries[0].delivery_id}")
    assert await store.owe_deliveries(run, deliveries)


async def _survives(write: Awaitable[bool]) -> bool:
    """Whether a write ended before its process died."""
    try:
        return await write
    except LOST:
        return False


class DeliveriesContract(StoreContract):
    """What webhooks are owed."""

    @proves("deliveries.untold")
    async def test_a_run_is_untold_from_its_end_on_if_its_start_said_so(self, store: SessionStateStore) -> None:
        create = CreateSession(agent_type="clerk")
        started = await store.start_run(StartRun(session_id="s", run_id="r", create=create, tell=True))
        assert started.run.told == "running"
        await _ended(store, "quiet", tell=False)
        assert await store.list_untold() == ()
        ended = await store.update_run_status("r", "completed", RunUpdate(output="done"))
        assert await store.list_untold() == (ended,)
        assert await store.get_run("r") == ended

    @proves("deliveries.untold")
    async def test_a_run_that_its_parent_drives_is_untold_only_if_it_waits(self, store: SessionStateStore) -> None:
        await _ended(store, "driven", parent_run_id="above")
        await _ended(store, "alone", status="failed")
        await _ended(store, "waits", status="suspended_client_tool", parent_run_id="above")
        assert {run.run_id for run in await store.list_untold()} == {"alone", "waits"}

    @proves("deliveries.told-once", "deliveries.found")
    async def test_a_status_is_told_once_and_another_one_again(self, store: SessionStateStore) -> None:
        run = await _ended(store, status="suspended_client_tool")
        waits = _delivery("msg_w", event="calls.waiting", session_id="of-r-1")
        assert await store.owe_deliveries(run, [waits])
        assert await store.list_untold() == ()
        assert not await store.owe_deliveries(run, [_delivery("msg_x")])
        assert await store.find_delivery("msg_w") == waits
        assert await store.find_delivery("msg_x") is None
        settle = SettleSession(session_id="of-r-1", expected=("active",), status="failed", failure_reason="aborted")
        await store.settle_session(settle)
        [failed] = await store.list_untold()
        assert (failed.run_id, failed.status, failed.told) == ("r-1", "failed", "suspended_client_tool")
        assert not await store.owe_deliveries(run, [_delivery("msg_x")])
        assert await store.owe_deliveries(failed, [])
        assert await store.list_untold() == ()
        assert (await store.list_deliveries()).total == 1

    @proves("deliveries.untold")
    async def test_a_run_that_another_replaces_is_untold(self, store: SessionStateStore) -> None:
        create = CreateSession(agent_type="clerk")
        first = await store.start_run(StartRun(session_id="s", run_id="r-1", create=create, tell=True))
        again = StartRun(session_id="s", run_id="r-2", expected_version=1, expected_run=first.run.fence, tell=True)
        await store.start_run(again)
        [run] = await store.list_untold()
        assert (run.run_id, run.status, run.completion_reason) == ("r-1", "failed", "superseded")

    @proves("deliveries.untold")
    async def test_untold_runs_come_the_oldest_end_first_and_go_with_their_sessions(
        self, store: SessionStateStore
    ) -> None:
        runs = [await _ended(store, f"r-{number}") for number in range(4)]
        runs.sort(key=lambda run: (run.ended_at, run.run_id))
        assert await store.list_untold() == tuple(runs)
        assert await store.list_untold(limit=2) == tuple(runs[:2])
        await store.delete_session(runs[0].session_id)
        assert await store.list_untold() == tuple(runs[1:])
        assert not await store.owe_deliveries(runs[0], [_delivery()])
        assert await store.find_delivery("msg_1") is None
        with pytest.raises(InvalidPageError):
            await store.list_untold(limit=0)

    @proves("deliveries.told-once")
    async def test_of_many_that_see_to_a_run_one_is_first(self, handles: StoreHandles) -> None:
        stores = [await handles.open() for _ in range(3)]
        run = await _ended(stores[0])
        owing = [stores[n % 3].owe_deliveries(run, [_delivery(revision=f"{n}")]) for n in range(6)]
        assert sum(await asyncio.gather(*owing)) == 1
        assert [await store.list_untold() for store in stores] == [()] * 3
        assert (await stores[1].list_deliveries()).total == 1

    @proves("deliveries.told-once", "crash.retried-once")
    async def test_a_process_that_dies_at_any_statement_leaves_its_run_to_the_next_one(
        self, handles: StoreHandles
    ) -> None:
        healthy = await handles.open()
        for statement in range(1, MOST_STATEMENTS):
            name, seam = f"r-{statement}", DyingSeam()
            run, owed = await _ended(healthy, name), [_delivery(f"{name}-{n}", run_id=name) for n in range(2)]
            dying = await handles.open(seam=seam)
            seam.arm(after=statement)
            survived = await _survives(dying.owe_deliveries(run, owed))
            seam.disarm()
            await dying.close()
            later = [replace(each, revision="2") for each in owed]
            if await healthy.list_untold():
                assert await healthy.list_untold() == (run,)
                assert await healthy.owe_deliveries(run, later)
            assert await healthy.list_untold() == ()
            found = [await healthy.find_delivery(each.delivery_id) for each in owed]
            assert all(one in pair for one, *pair in zip(found, owed, later, strict=True))
            assert (await healthy.list_deliveries()).total == 2 * statement
            if survived:
                return
        pytest.fail(f"the write did not end within {MOST_STATEMENTS} statements")

    @proves("deliveries.found", "ids.namespaces-are-apart")
    async def test_what_is_owed_is_known_in_its_namespace_alone(self, handles: StoreHandles) -> None:
        store, other = await handles.open(), await handles.open(namespace="elsewhere")
        await _owe(store, _delivery())
        run = await _ended(store)
        assert await other.list_untold() == ()
        assert not await other.owe_deliveries(run, [_delivery()])
        assert await other.find_delivery("msg_1") is None
        assert await other.list_due_deliveries("hook", 10) == ()
        assert (await other.list_deliveries()).total == 0
        assert not await other.save_delivery(_delivery(revision="2"), replaces="1")
        assert await other.forget_deliveries(10 + ABANDONED_MS) == 0
        assert (await store.list_untold(), await store.list_due_deliveries("hook", 10)) == ((run,), (_delivery(),))

    @proves("deliveries.compare-and-set", "records.round-trip")
    async def test_a_save_replaces_the_revision_that_it_names_and_no_other(self, store: SessionStateStore) -> None:
        first = _delivery(webhook="Händler / 1")
        await _owe(store, first)
        second = replace(first, revision="2", attempts=1, next_at=2**40, last_tried_at=7, last_error="ü")
        assert not await store.save_delivery(second, replaces="0")
        assert not await store.save_delivery(_delivery("unknown", revision="2"), replaces="1")
        assert await store.find_delivery("msg_1") == first
        assert await store.save_delivery(second, replaces="1")
        assert await store.save_delivery(second, replaces="1")
        assert not await store.save_delivery(replace(first, revision="3"), replaces="1")
        assert await store.find_delivery("msg_1") == second

    @proves("deliveries.compare-and-set")
    async def test_of_many_claims_one_is_made(self, handles: StoreHandles) -> None:
        stores = [await handles.open() for _ in range(3)]
        await _owe(stores[0], _delivery())
        saves = [stores[n % 3].save_delivery(_delivery(revision=f"by-{n}"), replaces="1") for n in range(6)]
        assert sum(await asyncio.gather(*saves)) == 1

    @proves("deliveries.due")
    async def test_what_is_due_is_found_for_each_webhook_earliest_first(self, store: SessionStateStore) -> None:
        times = {"c": 30, "a": 20, "b": 20, "later": 31}
        named = [_delivery(name, next_at=at) for name, at in times.items()]
        await _owe(store, *named, _delivery("other", webhook="other"), _delivery("over", state="delivered"))
        assert [each.delivery_id for each in await store.list_due_deliveries("hook", 30)] == ["a", "b", "c"]
        assert [each.delivery_id for each in await store.list_due_deliveries("hook", 30, limit=2)] == ["a", "b"]
        assert [each.delivery_id for each in await store.list_due_deliveries("other", 30)] == ["other"]
        assert await store.list_due_deliveries("nobody", 30) == ()
        await store.save_delivery(_delivery("a", next_at=99, revision="2"), replaces="1")
        await store.save_delivery(_delivery("b", state="given_up", revision="2"), replaces="1")
        await store.save_delivery(_delivery("over", next_at=5, revision="2"), replaces="1")
        assert [each.delivery_id for each in await store.list_due_deliveries("hook", 30)] == ["over", "c"]

    @proves("deliveries.found", "deliveries.forgotten")
    async def test_deliveries_are_listed_newest_first_and_forgotten_when_they_are_over(
        self, store: SessionStateStore
    ) -> None:
        named = [_delivery(f"d-{number}", created_at=number, next_at=50) for number in range(5)]
        await _owe(store, *named)
        await store.save_delivery(replace(named[1], state="given_up", revision="2"), replaces="1")
        await store.save_delivery(replace(named[3], state="delivered", revision="2"), replaces="1")
        page = await store.list_deliveries(offset=1, limit=2)
        assert ([each.delivery_id for each in page.items], page.total, page.has_more) == (["d-3", "d-2"], 5, True)
        over = await store.list_deliveries(states=["given_up", "delivered"])
        assert ([each.delivery_id for each in over.items], over.total) == (["d-3", "d-1"], 2)
        beyond = await store.list_deliveries(states=["owed"], offset=9)
        assert (beyond.items, beyond.total) == ((), 3)
        assert await store.forget_deliveries(49) == 0
        assert await store.forget_deliveries(50) == 2
        assert await store.forget_deliveries(50) == 0
        assert await store.find_delivery("d-1") is None
        assert (await store.list_deliveries()).total == 3
        with pytest.raises(InvalidPageError):
            await store.list_deliveries(offset=-1)

    @proves("deliveries.found")
    async def test_what_is_owed_to_a_webhook_that_nobody_knows_any_more_is_forgotten_after_a_long_time(
        self, store: SessionStateStore
    ) -> None:
        await _owe(store, _delivery("d-old"), _delivery("d-new", next_at=11), _delivery("d-tried", next_at=11))
        assert await store.forget_deliveries(9 + ABANDONED_MS) == 0
        assert await store.forget_deliveries(10 + ABANDONED_MS) == 1
        assert await store.find_delivery("d-old") is None
        due = await store.list_due_deliveries("hook", 11)
        assert [each.delivery_id for each in due] == ["d-new", "d-tried"]
        assert (await store.list_deliveries()).total == 2

    @proves("deliveries.found")
    async def test_an_id_that_cannot_be_one_is_refused(self, store: SessionStateStore) -> None:
        run = await _ended(store)
        for name in ("", " x", "a\0b"):
            with pytest.raises(InvalidIdError):
                await store.owe_deliveries(run, [_delivery(name)])
            with pytest.raises(InvalidIdError):
                await store.save_delivery(_delivery(name), replaces="1")
            assert await store.find_delivery(name) is None
        assert await store.list_untold() == (run,)
