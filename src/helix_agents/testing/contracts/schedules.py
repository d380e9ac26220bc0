"""The contract of schedules: each change is made to the revision that its writer read, and what is due is found."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from helix_agents.domain.budgets import Budget
from helix_agents.domain.errors import InvalidIdError, InvalidPageError, ScheduleChangedError
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.schedules import LastTime, Schedule
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.contracts.store_handles import StoreContract, StoreHandles
from helix_agents.testing.requirements.registry import proves


def _schedule(schedule_id: str = "daily", **fields: Any) -> Schedule:
    given: dict[str, Any] = {"agent": "writer", "messages": (UserMessage(content="Good morning"),), "revision": "1"}
    return Schedule(schedule_id=schedule_id, **given | fields)


class SchedulesContract(StoreContract):
    """Schedules: saved by compare-and-set, found, due, deleted."""

    @proves("schedules.found", "records.round-trip")
    async def test_a_schedule_is_found_as_it_was_saved(self, store: SessionStateStore) -> None:
        assert await store.find_schedule("daily") is None
        schedule = _schedule(
            "täglich / 7:00",
            cron="0 7 * * *",
            timezone="Europe/Berlin",
            session_id="s-1",
            user_id="ann",
            tags=("a", "b"),
            metadata={"k": "ü"},
            expires_in_ms=5,
            budget=Budget(tokens=100),
            if_busy="skip",
            next_at=2**40,
            times=3,
            last=LastTime(due_at=7, session_id="s-1", run_id="r-1"),
        )
        assert await store.save_schedule(schedule) == schedule
        assert await store.find_schedule("täglich / 7:00") == schedule
        later = replace(schedule, revision="2", paused=True, next_at=None)
        await store.save_schedule(later, replaces="1")
        assert await store.find_schedule("täglich / 7:00") == later

    @proves("schedules.compare-and-set", "schedules.same-again")
    async def test_a_save_replaces_the_revision_that_it_names_and_no_other(self, store: SessionStateStore) -> None:
        first = _schedule()
        with pytest.raises(ScheduleChangedError):
            await store.save_schedule(first, replaces="0")
        await store.save_schedule(first)
        assert await store.save_schedule(first) == first
        with pytest.raises(ScheduleChangedError):
            await store.save_schedule(_schedule(revision="other"))
        second = _schedule(revision="2", times=1, next_at=9)
        await store.save_schedule(second, replaces="1")
        assert await store.save_schedule(second, replaces="1") == second
        with pytest.raises(ScheduleChangedError):
            await store.save_schedule(_schedule(revision="3"), replaces="1")
        assert await store.find_schedule("daily") == second

    @proves("schedules.compare-and-set")
    async def test_of_many_writers_one_is_first(self, handles: StoreHandles) -> None:
        stores = [await handles.open() for _ in range(3)]
        stored: str | None = None
        for number in range(5):
            saves = [
                stores[n % 3].save_schedule(_schedule(revision=f"{number}-{n}", times=number), replaces=stored)
                for n in range(6)
            ]
            answers = await asyncio.gather(*saves, return_exceptions=True)
            [won] = [answer for answer in answers if isinstance(answer, Schedule)]
            assert all(isinstance(answer, ScheduleChangedError) for answer in answers if answer is not won)
            assert [await store.find_schedule("daily") for store in stores] == [won] * 3
            stored = won.revision

    @proves("schedules.due")
    async def test_what_is_due_is_found_earliest_first(self, store: SessionStateStore) -> None:
        for name, at in (("c", 30), ("a", 20), ("b", 20), ("never", None), ("later", 31)):
            await store.save_schedule(_schedule(name, next_at=at))
        due = await store.list_due_schedules(30)
        assert [each.schedule_id for each in due] == ["a", "b", "c"]
        assert [each.schedule_id for each in await store.list_due_schedules(30, limit=2)] == ["a", "b"]
        assert [each.schedule_id for each in await store.list_due_schedules(30, offset=2)] == ["c"]
        assert await store.list_due_schedules(19) == ()
        await store.save_schedule(_schedule("a", revision="2"), replaces="1")
        await store.save_schedule(_schedule("never", revision="2", next_at=1), replaces="1")
        assert [each.schedule_id for each in await store.list_due_schedules(30)] == ["never", "b", "c"]

    @proves("schedules.found")
    async def test_schedules_are_listed_by_id_in_pages(self, store: SessionStateStore) -> None:
        names = [f"s-{number}" for number in range(5)]
        for name in reversed(names):
            await store.save_schedule(_schedule(name))
        page = await store.list_schedules(offset=1, limit=2)
        assert ([each.schedule_id for each in page.items], page.total, page.has_more) == (names[1:3], 5, True)
        beyond = await store.list_schedules(offset=9, limit=2)
        assert (beyond.items, beyond.total) == ((), 5)
        with pytest.raises(InvalidPageError):
            await store.list_schedules(offset=-1)

    @proves("schedules.found")
    async def test_the_schedules_of_a_user_are_listed_by_id_in_pages(self, store: SessionStateStore) -> None:
        for name, user_id in (("c", "ann"), ("a", "ann"), ("b", "ben"), ("d", None), ("e", "ann"), ("f", "Ann")):
            await store.save_schedule(_schedule(name, user_id=user_id))
        page = await store.list_schedules(user_id="ann", offset=1, limit=1)
        assert ([each.schedule_id for each in page.items], page.total, page.has_more) == (["c"], 3, True)
        beyond = await store.list_schedules(user_id="ann", offset=9)
        assert (beyond.items, beyond.total) == ((), 3)
        await store.save_schedule(_schedule("a", user_id="ben", revision="2"), replaces="1")
        assert [each.schedule_id for each in (await store.list_schedules(user_id="ann")).items] == ["c", "e"]
        assert [each.schedule_id for each in (await store.list_schedules(user_id="ben")).items] == ["a", "b"]
        for unknown in ("zoe", "%", "", "a\0b"):
            assert (await store.list_schedules(user_id=unknown)).total == 0

    @proves("schedules.found", "ids.namespaces-are-apart")
    async def test_a_schedule_is_known_in_its_namespace_alone(self, handles: StoreHandles) -> None:
        store, other = await handles.open(), await handles.open(namespace="elsewhere")
        ours, theirs = _schedule(user_id="ann", next_at=1), _schedule(user_id="ann", revision="2", next_at=2)
        await store.save_schedule(ours)
        assert await other.find_schedule("daily") is None
        assert await other.list_due_schedules(2) == ()
        assert (await other.list_schedules()).total == (await other.list_schedules(user_id="ann")).total == 0
        assert not await other.delete_schedule("daily")
        await other.save_schedule(theirs)
        assert (await store.list_due_schedules(2), await other.list_due_schedules(2)) == ((ours,), (theirs,))

    @proves("schedules.deleted", "schedules.compare-and-set")
    async def test_a_deletion_may_name_the_revision_that_it_means(self, store: SessionStateStore) -> None:
        await store.save_schedule(_schedule(next_at=1))
        await store.save_schedule(_schedule(revision="2", next_at=1), replaces="1")
        assert not await store.delete_schedule("daily", revision="1")
        assert await store.find_schedule("daily") == _schedule(revision="2", next_at=1)
        assert await store.delete_schedule("daily", revision="2")
        assert not await store.delete_schedule("daily", revision="2")
        assert await store.list_due_schedules(2**40) == ()

    @proves("schedules.deleted")
    async def test_a_deleted_schedule_is_gone(self, store: SessionStateStore) -> None:
        await store.save_schedule(_schedule(next_at=1))
        assert await store.delete_schedule("daily")
        assert not await store.delete_schedule("daily")
        assert await store.find_schedule("daily") is None
        assert await store.list_due_schedules(2**40) == ()
        assert (await store.list_schedules()).total == 0
        with pytest.raises(ScheduleChangedError):
            await store.save_schedule(_schedule(revision="2"), replaces="1")
        await store.save_schedule(_schedule(revision="2"))
        assert await store.find_schedule("daily") == _schedule(revision="2")

    @proves("schedules.found")
    async def test_an_id_that_cannot_be_one_is_refused(self, store: SessionStateStore) -> None:
        for name in ("", " x", "a\0b"):
            with pytest.raises(InvalidIdError):
                await store.save_schedule(_schedule(name))
            assert await store.find_schedule(name) is None
            assert not await store.delete_schedule(name)
