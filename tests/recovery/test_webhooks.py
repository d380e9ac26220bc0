"""What webhooks are owed outlives the processes that owe it: kills, slow receivers, several processes at once."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from helix_agents import Executor, Webhook
from helix_agents.domain.errors import SessionCorruptError, StoreUnavailableError
from helix_agents.domain.runs import RunRecord
from helix_agents.ports.backend import Backend, open_backend
from helix_agents.runtimes.executor.webhook_teller import AT_ONCE
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.stage import suspended, until, within
from helix_agents.testing.contracts.executor.webhooks import HOUR, SECRET
from helix_agents.testing.receiver import Receiver
from helix_agents.testing.workers import Processes
from tests.recovery import webhook_jobs
from tests.recovery.deaths import settings_on
from tests.recovery.webhook_jobs import CLERK, SESSIONS


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes(preload=[webhook_jobs.MODULE, "helix_agents.backends.sqlite", "httpx2"]) as processes:
        yield processes


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver() as receiver:
        yield receiver


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'helix.db'}?synchronous=normal"
    return request.getfixturevalue(f"{request.param}_service").new_url()


def _settings(parts: Backend, webhook: Webhook, **more: Any) -> dict[str, Any]:
    return {**settings_on(parts, CLERK), "webhooks": [webhook], **more}


async def _killed(processes: Processes, job: str, url: str, receiver: Receiver) -> None:
    [killed] = await processes.run(f"{webhook_jobs.MODULE}:{job}", [{"url": url, "hook": receiver.url}])
    assert killed.was_killed, killed.error


async def _told(processes: Processes, url: str, receiver: Receiver) -> int:
    [told] = await processes.run(f"{webhook_jobs.MODULE}:tell_later", [{"url": url, "hook": receiver.url}])
    assert told.error is None, told.error
    assert isinstance(told.value, int)
    return told.value


async def test_what_a_killed_process_committed_is_told_by_another(
    url: str, processes: Processes, receiver: Receiver
) -> None:
    await _killed(processes, "wait_and_die", url, receiver)
    assert receiver.received == []
    await _killed(processes, "tell_and_die_before", url, receiver)
    assert receiver.received == []
    assert await _told(processes, url, receiver) == 1
    [told] = receiver.received
    assert (told.type, told.data["sessionId"]) == ("calls.waiting", "s-1")
    assert told.data["calls"][0]["toolName"] == "pay"
    assert await _told(processes, url, receiver) == 0


async def test_a_kill_between_the_message_and_its_record_repeats_it_under_the_same_id(
    url: str, processes: Processes, receiver: Receiver
) -> None:
    await _killed(processes, "wait_and_die", url, receiver)
    await _killed(processes, "send_and_die", url, receiver)
    assert await _told(processes, url, receiver) == 1
    first, again = receiver.received
    assert (first.id, first.body) == (again.id, again.body)


async def test_processes_side_by_side_tell_everything_once(url: str, processes: Processes, receiver: Receiver) -> None:
    jobs = [{"url": url, "hook": receiver.url, "first": first} for first in (0, 1)]
    ran = await processes.run(f"{webhook_jobs.MODULE}:wait_and_tell", jobs)
    assert [each.error for each in ran] == [None, None]
    assert Counter(each.data["sessionId"] for each in receiver.received) == Counter(SESSIONS)


async def test_of_two_that_find_the_same_delivery_one_sends_it(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook = Webhook(receiver.url, secret=SECRET)
    async with (
        await open_backend("memory://the-same") as parts,
        Executor(**_settings(parts, webhook)) as one,
        Executor(**_settings(parts, webhook)) as other,
    ):
        await suspended(await one.execute(CLERK, "Pay", "s-1"))
        list_due, both_looked = parts.state.list_due_deliveries, asyncio.Barrier(2)
        looked = 0

        async def together(*given: Any, **options: Any) -> Any:
            nonlocal looked
            due = await list_due(*given, **options)
            if due and looked < 2:
                looked += 1
                await both_looked.wait()
            return due

        monkeypatch.setattr(parts.state, "list_due_deliveries", together)
        swept = await within(asyncio.gather(one.sweep(), other.sweep()))
        assert sorted(each.told for each in swept) == [0, 1]
        assert len(receiver.received) == 1


async def test_a_delivery_that_is_on_its_way_is_left_alone_until_its_lease_is_over(receiver: Receiver) -> None:
    receiver.hold.clear()
    webhook = Webhook(receiver.url, secret=SECRET, timeout=300)
    async with (
        await open_backend("memory://on-the-way") as parts,
        Executor(**_settings(parts, webhook)) as one,
        Executor(**_settings(parts, webhook)) as other,
    ):
        await suspended(await one.execute(CLERK, "Pay", "s-1"))
        sweeping = asyncio.create_task(one.sweep())
        await within(receiver.until(1))
        assert (await other.sweep()).told == 0
        receiver.hold.set()
        assert (await within(sweeping)).told == 1
    assert len(receiver.received) == 1


async def test_a_receiver_that_was_away_is_told_when_it_is_back(receiver: Receiver, tmp_path: Path) -> None:
    webhook = Webhook(receiver.url, secret=SECRET)
    await receiver.stop()
    async with Executor.open(
        f"sqlite:///{tmp_path / 'helix.db'}?synchronous=normal", agents=[CLERK], webhooks=[webhook], janitor_seconds=0.1
    ) as helix:
        await suspended(await helix.execute(CLERK, "Pay", "s-1"))

        async def was_tried() -> bool:
            return any(each.last_error for each in (await helix.webhooks.list(states=["owed"])).items)

        await until(was_tried)
        [owed] = (await helix.webhooks.list()).items
        assert "ConnectError" in (owed.last_error or "")
        await receiver.listen(int(receiver.url.split(":")[2].split("/")[0]))
        await helix.webhooks.retry(owed.delivery_id)
        await within(receiver.until(1))
    assert receiver.received[0].id == owed.delivery_id


async def test_a_receiver_that_does_not_answer_holds_up_neither_runs_nor_the_janitor_nor_the_end(
    receiver: Receiver,
) -> None:
    receiver.hold.clear()
    webhook = Webhook(receiver.url, secret=SECRET, timeout=300)
    async with Executor.open(
        "memory://slow", agents=[CLERK], webhooks=[webhook], janitor_seconds=0.05, grace=0.2
    ) as helix:
        await suspended(await helix.execute(CLERK, "Pay", "s-1"))
        await within(receiver.until(1))
        await suspended(await helix.execute(CLERK, "Pay", "s-2"))
        await within(helix.janitor.sweep())
    assert receiver.received[0].data["sessionId"] == "s-1"


async def test_a_message_on_its_way_is_recorded_by_a_process_that_leaves(receiver: Receiver) -> None:
    receiver.hold.clear()
    webhook = Webhook(receiver.url, secret=SECRET, name="hook")
    async with await open_backend("memory://on-its-way") as parts:
        async with Executor(**_settings(parts, webhook, grace=30.0)) as helix:
            await suspended(await helix.execute(CLERK, "Pay", "s-1"))
            sweeping = asyncio.create_task(helix.sweep())
            await within(receiver.until(1))
            closing = asyncio.create_task(helix.close())
            await asyncio.sleep(0)
            receiver.hold.set()
            await within(closing)
            await asyncio.gather(sweeping, return_exceptions=True)
        [delivery] = (await parts.state.list_deliveries()).items
    assert delivery.state == "delivered"
    assert len(receiver.received) == 1


async def test_a_store_that_is_away_for_a_moment_makes_nothing_forgotten(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook = Webhook(receiver.url, secret=SECRET)
    async with (
        await open_backend("memory://away-for-a-moment") as parts,
        Executor(**_settings(parts, webhook, janitor_seconds=0.05)) as helix,
    ):
        tries = asyncio.Event()

        async def away(**_: object) -> object:
            tries.set()
            raise StoreUnavailableError("memory", "it is away")

        monkeypatch.setattr(parts.state, "list_untold", away)
        waits = await suspended(await helix.execute(CLERK, "Pay", "s-1"))
        await within(tries.wait())
        monkeypatch.undo()
        await within(receiver.until(1))
        assert receiver.received[0].data["runId"] == waits.run_id


async def test_a_run_that_cannot_be_told_holds_up_no_other(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    webhook = Webhook(receiver.url, secret=SECRET)
    async with (
        await open_backend("memory://cannot-be-told") as parts,
        Executor(**_settings(parts, webhook)) as helix,
    ):
        owe = parts.state.owe_deliveries

        async def broken(run: RunRecord, deliveries: Any) -> bool:
            if run.session_id == "s-1":
                raise SessionCorruptError(run.session_id, "it cannot be read")
            return await owe(run, deliveries)

        monkeypatch.setattr(parts.state, "owe_deliveries", broken)
        for name in ("s-1", "s-2"):
            await suspended(await helix.execute(CLERK, "Pay", name))
        assert (await helix.sweep()).told == 1
        assert [each.data["sessionId"] for each in receiver.received] == ["s-2"]
        monkeypatch.undo()
        assert (await helix.sweep()).told == 1


async def test_many_ended_runs_are_told_at_once_although_other_processes_see_to_some_of_them(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook = Webhook(receiver.url, secret=SECRET)
    async with (
        await open_backend("memory://others-see-to-some") as parts,
        Executor(**_settings(parts, webhook)) as helix,
    ):
        for name in ("s-1", "s-2", "s-3", "s-4"):
            await suspended(await helix.execute(CLERK, "Pay", name))
        owe = parts.state.owe_deliveries

        async def second(run: RunRecord, deliveries: Any) -> bool:
            if run.session_id in ("s-1", "s-3"):
                await owe(run, deliveries)
            return await owe(run, deliveries)

        monkeypatch.setattr(parts.state, "owe_deliveries", second)
        # In whichever order they are listed, a page has a run of each kind.
        monkeypatch.setattr("helix_agents.runtimes.executor.webhook_teller.MAX_LIMIT", 3)
        assert (await helix.sweep()).told == 4


async def test_a_message_that_cannot_be_made_is_tried_later_like_one_that_was_not_taken(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook = Webhook(receiver.url, secret=SECRET)
    async with (
        await open_backend("memory://cannot-be-made") as parts,
        Executor(**_settings(parts, webhook)) as helix,
    ):
        await suspended(await helix.execute(CLERK, "Pay", "s-1"))

        async def broken(run_id: str) -> None:
            raise SessionCorruptError("run", run_id)

        monkeypatch.setattr(parts.state, "get_run", broken)
        assert (await helix.sweep()).told == 0
        monkeypatch.undo()
        [owed] = (await helix.webhooks.list()).items
        assert (owed.state, owed.attempts) == ("owed", 1)
        assert "cannot be read" in (owed.last_error or "")
        await helix.webhooks.retry(owed.delivery_id)
        assert (await helix.sweep()).told == 1


async def test_one_message_finds_out_whether_a_receiver_that_was_away_is_back(receiver: Receiver) -> None:
    webhook = Webhook(receiver.url, secret=SECRET)
    port = int(receiver.url.split(":")[2].split("/")[0])
    await receiver.stop()
    async with Executor.open("memory://is-back", agents=[CLERK], webhooks=[webhook], janitor_seconds=None) as helix:
        for name in SESSIONS:
            await suspended(await helix.execute(CLERK, "Pay", name))
        tries: list[int] = []
        for _ in range(2):
            await helix.sweep()
            owed = (await helix.webhooks.list(limit=100)).items
            tries.append(len([each for each in owed if each.attempts]))
            for each in owed:
                await helix.webhooks.retry(each.delivery_id)
        assert tries == [AT_ONCE, 1]
        await receiver.listen(port)
        assert (await helix.sweep()).told == len(SESSIONS)


@pytest.mark.parametrize(("status", "tries"), [(429, AT_ONCE), (503, AT_ONCE), (500, len(SESSIONS))])
async def test_a_receiver_that_is_overloaded_is_not_sent_everything_at_once(
    receiver: Receiver, status: int, tries: int
) -> None:
    webhook = Webhook(receiver.url, secret=SECRET)
    receiver.answer = status
    store = f"memory://overloaded-{status}"
    async with Executor.open(store, agents=[CLERK], webhooks=[webhook], janitor_seconds=None, grace=0) as helix:
        for name in SESSIONS:
            await suspended(await helix.execute(CLERK, "Pay", name))
        await helix.sweep()
        assert len(receiver.received) == tries


async def test_what_was_put_off_by_a_clock_that_was_wrong_is_tried_when_it_is_set_back(receiver: Receiver) -> None:
    webhook, clock = Webhook(receiver.url, secret=SECRET), ManualClock()
    async with await open_backend("memory://wrong-clock", clock=clock) as parts:
        receiver.answer = 500
        clock.advance(365 * 24 * HOUR)
        async with Executor(**_settings(parts, webhook, grace=0)) as helix:
            await suspended(await helix.execute(CLERK, "Pay", "s-1"))
            await helix.sweep()
        clock.advance(-365 * 24 * HOUR)
        receiver.answer = 204
        async with Executor(**_settings(parts, webhook, janitor_seconds=0.05)):
            first, again = await within(receiver.until(2))
        assert first.id == again.id


async def test_a_session_that_was_deleted_is_told_no_more(receiver: Receiver) -> None:
    receiver.answer = 500
    webhook = Webhook(receiver.url, secret=SECRET)
    async with Executor.open("memory://deleted", agents=[CLERK], webhooks=[webhook], janitor_seconds=None) as helix:
        await suspended(await helix.execute(CLERK, "Pay", "s-1"))
        await helix.sweep()
        await helix.sessions.delete("s-1")
        [owed] = (await helix.webhooks.list()).items
        await helix.webhooks.retry(owed.delivery_id)
        await helix.sweep()
        assert (await helix.webhooks.list()).items[0].state == "dropped"
    assert len(receiver.received) == 1
