"""Watching: ordered, unique, reliable, atomic, resumable and bookmarked, while writers and readers are killed."""

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest

from helix_agents.capabilities import watching
from helix_agents.capabilities.calls import Caller
from helix_agents.capabilities.housekeeping import sweep_state
from helix_agents.capabilities.mcp.tools import call_tool
from helix_agents.capabilities.settings import Limits
from helix_agents.capabilities.watching import Bookmark, ResyncRequired, Watch, subscriptions_of
from helix_agents.domain.capability_errors import InvalidInput, SubscriptionFailed
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.processes import processes_for
from helix_agents.testing.workers import Processes
from tests.capabilities import state_jobs
from tests.capabilities.worlds import World

PATIENCE = 20.0
WRITERS = 3


@pytest.fixture
def processes(world: World) -> Iterator[Processes]:
    with processes_for(world.url, state_jobs.MODULE) as processes:
        yield processes


@pytest.fixture
def readers(world: World) -> Iterator[Processes]:
    with processes_for(world.url, state_jobs.MODULE) as processes:
        yield processes


def job(name: str) -> str:
    return f"{state_jobs.MODULE}:{name}"


async def some(watch: Watch, count: int) -> list[Any]:
    """The next events of a watch."""
    found: list[Any] = []
    async with asyncio.timeout(PATIENCE):
        async for event in watch:
            found.append(event)
            if len(found) == count:
                watch.stop()
    return found


async def test_changes_of_others_come_in_order_and_a_cursor_goes_on_where_it_stood(each_world: World) -> None:
    async with each_world.open("ann") as ann, each_world.open("bob") as bob:
        watch = await ann.shared.watch("config.")
        await ann.shared.set("config.own", 0, expected_version=0)
        for number in range(5):
            await bob.shared.set(f"config.{number}", number, expected_version=0)
            await bob.shared.set(f"other.{number}", number, expected_version=0)
        first = await some(watch, 3)
        assert [event.key for event in first] == ["config.0", "config.1", "config.2"]
        assert [event.revision for event in first] == sorted({event.revision for event in first})
    async with each_world.open("ann") as again, each_world.open("bob") as bob:
        await bob.shared.delete("config.0")
        rest = await some(again.shared.resume_watch(watch.subscription_id), 3)
        assert [(event.key, event.operation) for event in rest] == [
            ("config.3", "put"),
            ("config.4", "put"),
            ("config.0", "delete"),
        ]


async def test_a_live_watch_hears_what_another_process_writes(world: World, processes: Processes) -> None:
    async with world.open("ann") as ann:
        watch = await ann.shared.watch()
        hearing = asyncio.ensure_future(some(watch, 5))
        await processes.run(job("write_changes"), [{"url": world.url, "who": "bob", "times": 5}])
        assert [event.key for event in await hearing] == [f"bob.{number}" for number in range(5)]


async def test_falling_behind_what_is_kept_and_a_restore_are_told(each_world: World) -> None:
    async with each_world.open("ann", face="operator") as ann:
        watch = await ann.shared.watch(include_own=True)
        for number in range(10):
            await ann.shared.set(f"k{number}", number, expected_version=0)
        await ann.gateway.store.prune_events(before_ms=0, keep=3)
        [told] = await some(watch, 1)
        assert told == ResyncRequired(revision=10)
        made = await ann.call("state.backup.create")
        await ann.shared.set("later", 1, expected_version=0)
        await ann.call("state.backup.restore", backup_id=made["backup_id"])
        [told] = await some(ann.shared.resume_watch(watch.subscription_id), 1)
        assert isinstance(told, ResyncRequired)


async def test_who_has_missed_nothing_is_not_told_to_begin_anew_when_old_changes_go(each_world: World) -> None:
    clock = ManualClock(1_800_000_000_000)
    async with each_world.open("ann", clock=clock) as ann, each_world.open("bob", clock=clock) as bob:
        for prefix in ("config.", "board."):
            await ann.call("state.shared.watch", prefix=prefix)
        await bob.shared.set("board.a", 1, expected_version=0)
        clock.advance(each_world.limits.event_age_ms + 1)
        assert (await sweep_state(bob.gateway))["changes_kept_after"] == 1
        told = (await ann.call("inbox.read"))["messages"]
        assert [each["type"] for each in told] == ["resync_required"]
        [board] = [
            name for name, each, _ in await subscriptions_of(ann.gateway.store, "ann") if each.prefix == "board."
        ]
        assert [each["subscription_id"] for each in told] == [board]
        await bob.shared.set("config.a", 1, expected_version=0)
        assert "config.a" in [each.get("key") for each in (await ann.call("inbox.read"))["messages"]]


async def test_a_restore_that_comes_before_a_reader_is_done_is_told(world: World) -> None:
    async with world.open("ann") as ann, world.open("bob", face="operator") as bob:
        made = await bob.call("state.backup.create")
        watch = await ann.shared.watch()
        inbox = await ann.call("state.shared.watch", durable=True)
        await bob.shared.set("k", 1, expected_version=0)
        reading: Any = aiter(watch)
        assert (await anext(reading)).key == "k"
        [message] = [
            each
            for each in (await ann.call("inbox.read"))["messages"]
            if each["subscription_id"] == inbox["subscription_id"]
        ]
        await bob.call("state.backup.restore", backup_id=made["backup_id"])
        assert isinstance(await anext(reading), ResyncRequired)
        await reading.aclose()
        told = await ann.call("inbox.read", ack=[message["id"]])
        assert {each["type"] for each in told["messages"]} == {"resync_required"}
        done = await ann.call("inbox.read", ack=[each["id"] for each in told["messages"]])
        assert done["unread"] == 0


async def test_an_agents_own_changes_do_not_hide_those_of_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "PAGE", 3)
    async with world.open("ann") as ann, world.open("bob") as bob:
        watch = await ann.shared.watch()
        for number in range(10):
            await ann.shared.set(f"own.{number}", number, expected_version=0)
        assert (await ann.call("inbox.read"))["count"] == 0
        [(_, passed, _)] = await watching.subscriptions_of(ann.gateway.store, "ann")
        assert passed.cursor == 10
        await ann.shared.set("own", 1, expected_version=0)
        for number in range(5):
            await bob.shared.set(f"theirs.{number}", number, expected_version=0)
        found = await ann.call("inbox.read", limit=1)
        assert ([each["key"] for each in found["messages"]], found["unread"]) == (["theirs.0"], 2)
        assert [event.key for event in await some(watch, 5)] == [f"theirs.{number}" for number in range(5)]


@pytest.mark.parametrize("ack", [[1], [None], [["id"]]])
async def test_what_is_no_id_is_refused(world: World, ack: list[Any]) -> None:
    async with world.open("ann") as ann:
        with pytest.raises(InvalidInput):
            await ann.call("inbox.read", ack=ack)


async def test_an_id_that_nobody_gave_moves_nothing(each_world: World) -> None:
    async with each_world.open("ann") as ann, each_world.open("bob") as bob:
        watch = await ann.shared.watch()
        made_up = [f"{watch.subscription_id}@{rest}" for rest in ("9.0.1", f"{'9' * 5000}.0.1", "²", "", "1")]
        await ann.call("inbox.read", ack=[*made_up, "", "\0", "nobody@1.0.1"])
        await bob.shared.set("k", 1, expected_version=0)
        assert (await ann.call("inbox.read"))["unread"] == 1


async def test_nothing_that_matches_is_a_bookmark(world: World) -> None:
    async with world.open("ann") as ann, world.open("bob") as bob:
        watch = await ann.shared.watch("config.")
        await bob.shared.set("other", 1, expected_version=0)
        marked = Watch(ann.gateway.store, watch.subscription_id, bookmarks=True)
        assert await some(marked, 1) == [Bookmark(revision=1)]


async def test_there_are_only_so_many_subscriptions_and_a_session_takes_its_own_along(world: World) -> None:
    world.limits = Limits(subscriptions=2)
    async with world.open("ann") as plain:
        session = await plain.with_session()
        await session.call("state.shared.watch")
        last = {"name": "state.shared.watch", "inputs": {"durable": True}, "once": "the last"}
        made = await plain.gateway.call(session.caller, **last)
        assert await plain.gateway.call(session.caller, **last) == made
        with pytest.raises(SubscriptionFailed):
            await session.call("state.shared.watch")
        await session.call("session.end")
        await plain.call("state.shared.watch")
        with pytest.raises(SubscriptionFailed):
            await plain.call("state.shared.watch")


async def test_what_a_session_had_to_tell_when_it_ended_stays_in_the_inbox(each_world: World) -> None:
    each_world.limits = Limits(subscriptions=1)
    async with each_world.open("ann") as plain, each_world.open("bob") as bob:
        session = await plain.with_session()
        await session.call("state.shared.watch", prefix="config.")
        await bob.shared.set("config.0", 0, expected_version=0)
        await bob.shared.set("config.1", 1, expected_version=0)
        await session.call("session.end")
        await bob.shared.set("config.2", 2, expected_version=0)
        other = await plain.with_session()
        await other.call("state.shared.watch")
        await bob.shared.set("other", 1, expected_version=0)
        read = await plain.call("inbox.read")
        told = {message["key"]: message["id"] for message in read["messages"]}
        assert sorted(told) == ["config.0", "config.1", "other"]
        read = await plain.call("inbox.read", ack=[told["config.0"]])
        assert sorted(message["key"] for message in read["messages"]) == ["config.1", "other"]
        await plain.call("inbox.read", ack=[told["config.1"]])
        assert [each[1].until for each in await subscriptions_of(plain.gateway.store, "ann")] == [None]


async def test_a_session_that_has_nothing_to_tell_leaves_no_subscription(each_world: World) -> None:
    async with each_world.open("ann") as plain, each_world.open("bob") as bob:
        session = await plain.with_session()
        watch = await session.shared.watch(durable=False)
        await bob.shared.set("config.0", 0, expected_version=0)
        assert [event.key for event in await some(watch, 1)] == ["config.0"]
        await session.call("session.end")
        assert await subscriptions_of(plain.gateway.store, "ann") == []


async def test_a_live_watch_ends_with_its_session_when_everything_was_told(world: World) -> None:
    async with world.open("ann") as plain, world.open("bob") as bob:
        session = await plain.with_session()
        watch = await session.shared.watch(durable=False)
        await bob.shared.set("config.0", 0, expected_version=0)
        await session.call("session.end")
        assert [event.key for event in await some(watch, 9)] == ["config.0"]
        assert await subscriptions_of(plain.gateway.store, "ann") == []


async def test_a_watch_in_a_session_that_is_over_or_somebody_elses_is_refused(each_world: World) -> None:
    ann = Caller(agent="ann", face="mcp")
    async with each_world.open("ann") as plain, each_world.open("bob") as bob:
        over, theirs = await plain.with_session(), await bob.with_session()
        await over.call("session.end")
        for session_id in (over.caller.session_id, theirs.caller.session_id, "never made"):
            for durable in (False, True):
                given = {"session_id": session_id, "durable": durable}
                done, told = await call_tool(plain.gateway, ann, "state.shared.watch", given)
                assert (done, told["error"]) == (False, "SessionNotFound")
                assert told["recovery"][0]["capability"] == "session.create"
        assert await subscriptions_of(plain.gateway.store, "ann") == []


async def every_revision_once(world: World, processes: Processes, readers: Processes, changes: int) -> None:
    """Writers and readers are killed at random; each revision is read, and only the last one before a death twice."""
    async with world.open("reader") as reader:
        watch = await reader.shared.watch(durable=True)
        start = (await reader.gateway.store.list_events(0, limit=1)).head
    each = changes // WRITERS
    chance = random.Random(changes)
    writers = [
        {"url": world.url, "who": f"w{n}", "times": each, "die_after": chance.randint(50, each * 6)}
        for n in range(WRITERS)
    ]

    async def write_to_the_end() -> None:
        await processes.run(job("write_changes"), writers, timeout=100)
        # At once: a reader that has read everything before it was to die finds the end.
        async with world.open("writer") as writer:
            await writer.shared.set("end", 1, expected_version=0)

    writing = asyncio.ensure_future(write_to_the_end())
    seen: list[tuple[int, str]] = []
    given: dict[str, Any] = {"url": world.url, "subscription": watch.subscription_id, "until": 0}
    while True:
        die_after = 0 if writing.done() else chance.randint(100, 400)
        [outcome] = await readers.run(job("follow"), [{**given, "die_after": die_after}], timeout=100)
        lives = [(int(revision), str(key)) for revision, key in outcome.reports]
        # Who died before its cursor moved is told the last revision again, by the same number.
        seen = [one for one in seen if not lives or one[0] < lives[0][0]] + lives
        if outcome.value == "end":
            break
        assert outcome.was_killed, outcome
    await writing
    async with world.open("reader") as reader:
        told: list[tuple[int, str]] = []
        after = start
        while True:
            page = await reader.gateway.store.list_events(after, scope="shared")
            told.extend((event.revision, event.key) for event in page.events)
            after = page.reached
            if after == page.head:
                break
    assert seen == [one for one in told if one[0] <= seen[-1][0]]
    assert len({revision for revision, _ in seen}) == len(seen)
    assert seen[-1][1] == "end"


async def test_each_revision_is_read_once_while_writers_and_readers_die(
    world: World, processes: Processes, readers: Processes
) -> None:
    await every_revision_once(world, processes, readers, 300)


@pytest.mark.chaos
@pytest.mark.timeout(900)
async def test_ten_thousand_changes_are_read_once_each(world: World, processes: Processes, readers: Processes) -> None:
    await every_revision_once(world, processes, readers, 10_000)


async def test_no_increment_through_the_capabilities_is_lost(world: World, processes: Processes) -> None:
    given = {"url": world.url, "times": 100}
    outcomes = await processes.run(job("count_up"), [given] * 8, timeout=100)
    assert [outcome.error for outcome in outcomes] == [None] * 8
    dying = [{"url": world.url, "times": 100, "die_after": 60 + 41 * number} for number in range(8)]
    killed = await processes.run(job("count_up"), dying, timeout=100)
    assert all(outcome.was_killed for outcome in killed)
    answered = 800 + sum(len(outcome.reports) for outcome in killed)
    async with world.open() as state:
        found = await state.shared.get("counter")
        assert answered <= found.value <= answered + 8
        assert found.version == found.value
