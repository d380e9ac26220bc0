"""The contract of usage: counted once, with the step that used it, and added up over a tree of sessions."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from helix_agents.domain.errors import InvalidPageError, StaleStateError, StoreClosedError, UnstorableValueError
from helix_agents.domain.sessions import BranchPoint, CreateSession
from helix_agents.domain.usage import DAY_MS, SourceTotal, TokenCount, UsageEntry, UsageFilter, UsageRollup, by_day
from helix_agents.ports.backend import Backend
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.handles import Closable, Handles
from helix_agents.testing.contracts.parts import OpenParts as OpenParts
from helix_agents.testing.contracts.parts import PartsContract
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.requirements.usage import USAGE
from helix_agents.testing.scenes import RUN, SESSION, commit, fence_of, start, start_child


def used(n: int = 0, session_id: str = SESSION, **fields: Any) -> UsageEntry:
    """One model call of the usual session, or as the fields say."""
    settings: dict[str, Any] = {
        "root_session_id": session_id,
        "run_id": "r-1",
        "source_type": "tokens",
        "source_name": "model-1",
        "tokens": TokenCount(prompt=10, completion=5, total=15),
        **fields,
    }
    return UsageEntry(session_id=session_id, n=n, **settings)


def spent(n: int = 0, step: int = 1, session_id: str = SESSION, **fields: Any) -> UsageEntry:
    """One thing that a step of the usual run used, as the engine records it."""
    return used(n, session_id, **{"step": step, "agent_type": "writer", **fields})


FULL = used(
    7,
    run_id="r-9",
    attempt=2,
    step=3,
    source_type="custom",
    source_name="naïve 日本",
    tokens=TokenCount(prompt=1, completion=2, reasoning=3, cached=4, total=2**40),
    amount=1.5,
    success=False,
    agent_type="writer",
    user_id="ann",
    metadata={"a": [None, {"n": 2**80}, "\0"]},
    recorded_at=123,
)


class UsageStoreContract(PartsContract):
    """Everything a usage store has to guarantee: inherit it and provide the fixture `open_parts`."""

    port: ClassVar[str] = "usage store"
    requirements = USAGE

    @proves("usage.round-trip")
    async def test_every_field_comes_back_as_it_was(self, parts: Backend, clock: ManualClock) -> None:
        bare = UsageEntry(
            session_id=SESSION, root_session_id=SESSION, run_id="r-1", source_type="tool", source_name="search"
        )
        assert await parts.usage.record_usage([FULL, bare]) == 2
        found = (await parts.usage.query_usage()).items
        assert found == (replace(bare, recorded_at=clock.now_ms()), FULL)

    @proves("usage.round-trip")
    async def test_an_entry_that_could_not_be_read_back_is_refused(self, parts: Backend) -> None:
        wrong: Any = "unheard-of"
        for fields in ({"source_type": wrong}, {"tokens": wrong}, {"source_name": "a\0b"}, {"recorded_at": 2**63}):
            with pytest.raises(UnstorableValueError):
                await parts.usage.record_usage([used(), used(1, **fields)])
        assert (await parts.usage.query_usage()).total == 0
        with pytest.raises(UnstorableValueError):
            await parts.usage.query_usage(UsageFilter(recorded_to=2**63))

    @proves("usage.never-twice")
    async def test_an_entry_written_again_counts_nothing(self, handles: Handles[Backend]) -> None:
        one, two = await handles.open(), await handles.open()
        entries = [used(n) for n in range(3)]
        assert await one.usage.record_usage(entries) == 3
        again = [replace(entry, tokens=TokenCount(total=999)) for entry in entries]
        assert await two.usage.record_usage([*again, used(3)]) == 1
        assert (await one.usage.get_usage_rollup(SESSION)).tokens.total == 60
        counts = await asyncio.gather(*(each.usage.record_usage([used(9)]) for each in (one, two) * 4))
        assert sum(counts) == 1
        assert await one.usage.record_usage([]) == 0

    @proves("usage.attempts-apart")
    async def test_other_attempts_steps_and_numbers_are_other_entries(self, parts: Backend) -> None:
        entries = [used(), used(1), used(step=1), used(attempt=2), used(run_id="r-2")]
        assert await parts.usage.record_usage(entries) == 5
        assert (await parts.usage.query_usage()).total == 5

    @proves("usage.with-the-step")
    async def test_a_steps_entries_are_there_with_its_commit(self, parts: Backend) -> None:
        await start(parts.state)
        with pytest.raises(StaleStateError):
            await commit(parts.state, usage=(used(),), expected_version=99)
        assert (await parts.usage.query_usage()).total == 0
        for _ in range(2):
            await commit(parts.state, usage=(used(), used(1)))
            assert (await parts.usage.query_usage()).total == 2
        await commit(parts.state, 2, usage=(used(), used(step=2)))
        assert (await parts.usage.query_usage()).total == 3

    @proves("usage.with-the-step", "usage.never-twice")
    async def test_what_a_step_used_and_somebody_recorded_counts_once(self, parts: Backend) -> None:
        await start(parts.state)
        assert await parts.usage.record_usage([spent(1, 2)]) == 1
        for step in (1, 2):
            dearer = TokenCount(total=999)
            await commit(parts.state, step, usage=(spent(0, step), spent(1, step, tokens=dearer), spent(2, step)))
        assert await parts.usage.record_usage([spent(0, 1), spent(0, 2), spent(3, 2)]) == 1
        found = (await parts.usage.query_usage(UsageFilter(session_id=SESSION))).items
        assert sorted((entry.step, entry.n) for entry in found) == [(1, 0), (1, 1), (1, 2), *((2, n) for n in range(4))]
        assert (await parts.usage.get_usage_rollup(SESSION)).tokens.total == 999 + 6 * 15

    @proves("usage.with-the-step", "usage.round-trip")
    async def test_what_steps_used_comes_back_as_it_was(self, parts: Backend, clock: ManualClock) -> None:
        await start(parts.state, create=CreateSession(agent_type="writer", user_id="ann"))
        plain = spent(user_id="ann", amount=3)
        tool = spent(1, user_id="ann", source_type="tool", source_name='search "日本', tokens=None, success=False)
        custom = spent(2, user_id="ann", source_type="custom", source_name="pages", metadata={"a": [None, 2**80]})
        other = spent(0, 2, user_id="bob", recorded_at=123)
        await commit(parts.state, 1, usage=(plain, tool))
        await commit(parts.state, 2, usage=(other, custom))
        now = clock.now_ms()
        expected = [replace(entry, recorded_at=entry.recorded_at or now) for entry in (plain, tool, custom, other)]
        found = (await parts.usage.query_usage()).items
        assert sorted(found, key=lambda entry: (entry.step, entry.n)) == sorted(
            expected, key=lambda entry: (entry.step, entry.n)
        )

    @proves("usage.filtered", "usage.rolled-up")
    async def test_what_steps_used_is_found_by_every_filter(
        self, handles: Handles[Backend], clock: ManualClock
    ) -> None:
        parts, elsewhere = await handles.open(), await handles.open(namespace="elsewhere")
        await start(parts.state, create=CreateSession(agent_type="writer", user_id="ann"))
        await start(elsewhere.state)
        await commit(elsewhere.state, usage=(spent(),))
        run = await start_child(parts.state)
        first = clock.now_ms()
        await commit(parts.state, usage=(spent(user_id="ann"), spent(1, user_id="ann", source_type="tool")))
        clock.advance(10)
        below = spent(0, session_id="child", root_session_id=SESSION, run_id=run, agent_type="helper")
        await commit(parts.state, session_id="child", fence=fence_of(run), usage=(below,))

        async def found(**where: Any) -> list[tuple[str, int]]:
            page = await parts.usage.query_usage(UsageFilter(**where))
            return [(entry.session_id, entry.n) for entry in page.items]

        own = [(SESSION, 1), (SESSION, 0)]
        assert await found() == [("child", 0), *own]
        assert await found(session_id=SESSION) == await found(run_id=RUN) == await found(user_id="ann") == own
        assert await found(root_session_id=SESSION) == [("child", 0), *own]
        assert await found(session_id="child") == await found(run_id=run) == await found(agent_type="helper")
        assert await found(source_type="tool") == await found(session_id=SESSION, source_type="tool") == own[:1]
        assert await found(source_name="model-1", recorded_to=first) == own
        assert await found(recorded_from=first + 1) == [("child", 0)]
        assert (await parts.usage.get_usage_rollup(SESSION)).sessions == 2
        assert (await parts.usage.get_usage_rollup("child")).tokens.total == 15
        assert await parts.usage.delete_usage(SESSION) == 2
        assert await found() == [("child", 0)]
        assert (await elsewhere.usage.query_usage()).total == 1

    @proves("usage.with-the-step", "usage.deleted")
    async def test_what_steps_used_stays_spent_when_the_session_goes_back(self, parts: Backend) -> None:
        await start(parts.state)
        told = [await commit(parts.state, step, usage=(spent(0, step),)) for step in (1, 2, 3)]
        point = BranchPoint(from_session_id=SESSION, checkpoint_id=told[0].checkpoint_id)
        await parts.state.clone_session(point, "branch")
        await start(parts.state, run_id="r-2", rewind_to=told[0].checkpoint_id)
        await commit(parts.state, 2, fence=fence_of("r-2"), usage=(spent(0, 2, run_id="r-2"),))
        assert (await parts.usage.get_usage_rollup(SESSION)).tokens.total == 60
        assert (await parts.usage.get_usage_rollup("branch")).tokens.total == 0
        await parts.state.delete_session(SESSION)
        assert (await parts.usage.query_usage()).total == 0
        await start(parts.state)
        assert (await parts.usage.get_usage_rollup(SESSION)).tokens.total == 0

    @proves("usage.filtered")
    async def test_entries_are_found_by_every_filter(self, parts: Backend) -> None:
        await parts.usage.record_usage(
            [
                used(0, "a", user_id="ann", recorded_at=10),
                used(1, "b", root_session_id="a", agent_type="helper", recorded_at=20),
                used(2, "c", run_id="r-2", source_type="tool", source_name="search", recorded_at=30),
            ]
        )

        async def found(**where: Any) -> list[int]:
            return [entry.n for entry in (await parts.usage.query_usage(UsageFilter(**where))).items]

        assert await found() == [2, 1, 0]
        assert await found(session_id="a") == [0]
        assert await found(root_session_id="a") == [1, 0]
        assert await found(run_id="r-2") == [2]
        assert await found(user_id="ann") == [0]
        assert await found(agent_type="helper") == [1]
        assert await found(source_type="tool") == [2]
        assert await found(source_name="model-1") == [1, 0]
        assert await found(recorded_from=20) == [2, 1]
        assert await found(recorded_to=20) == [1, 0]
        assert await found(root_session_id="a", recorded_from=20, recorded_to=20) == [1]
        assert await found(session_id="a", user_id="bob") == []

    @proves("usage.paged")
    async def test_entries_page_newest_first(self, parts: Backend) -> None:
        await parts.usage.record_usage([used(n, recorded_at=n + 1) for n in range(60)])
        page = await parts.usage.query_usage()
        assert (page.total, page.limit, page.has_more) == (60, 50, True)
        assert [entry.n for entry in page.items] == list(range(59, 9, -1))
        last = await parts.usage.query_usage(offset=50, limit=20)
        assert [entry.n for entry in last.items] == list(range(9, -1, -1))
        assert not last.has_more
        for offset, limit in ((-1, 50), (0, 0), (0, 201)):
            with pytest.raises(InvalidPageError):
                await parts.usage.query_usage(offset=offset, limit=limit)

    @proves("usage.by-day")
    async def test_usage_is_added_up_per_day_agent_and_source(self, parts: Backend, clock: ManualClock) -> None:
        clock.advance(3 * DAY_MS - clock.now_ms() % DAY_MS)
        await start(parts.state, create=CreateSession(agent_type="writer", user_id="ann"))
        today = (
            spent(amount=2.5, user_id="ann"),
            spent(1, user_id="ann", source_type="tool", tokens=None, success=False),
        )
        await commit(parts.state, usage=today)
        yesterday, before = clock.now_ms() - 1, clock.now_ms() - DAY_MS - 1
        earlier = [replace(FULL, n=n, recorded_at=at) for n, at in enumerate((yesterday, yesterday - 5, before))]
        await parts.usage.record_usage([*earlier, used(9, recorded_at=yesterday), used(8, "b", recorded_at=yesterday)])

        found = await parts.usage.get_usage_by_day()
        assert [(each.day, each.agent_type, each.source_type, each.calls, each.failures) for each in found] == [
            (clock.now_ms(), "writer", "tokens", 1, 0),
            (clock.now_ms(), "writer", "tool", 1, 1),
            (clock.now_ms() - DAY_MS, None, "tokens", 2, 0),
            (clock.now_ms() - DAY_MS, "writer", "custom", 2, 2),
            (clock.now_ms() - 2 * DAY_MS, "writer", "custom", 1, 1),
        ]
        assert [each.amount for each in found] == [2.5, 0, 0, 3.0, 1.5]
        assert found[3].tokens == TokenCount(prompt=2, completion=4, reasoning=6, cached=8, total=2**41)
        everything = (await parts.usage.query_usage()).items
        assert found == by_day(everything)
        for narrowed in (
            UsageFilter(user_id="ann"),
            UsageFilter(session_id=SESSION),
            UsageFilter(run_id="r-9"),
            UsageFilter(recorded_from=yesterday),
        ):
            entries = (await parts.usage.query_usage(narrowed)).items
            assert await parts.usage.get_usage_by_day(narrowed) == by_day(entries)
        assert await parts.usage.get_usage_by_day(UsageFilter(user_id="nobody")) == ()

    @proves("usage.rolled-up")
    async def test_a_rollup_adds_up_the_tree_below_a_session(self, parts: Backend) -> None:
        await parts.state.create_session("root")
        for child, parent in (("left", "root"), ("leaf", "left"), ("right", "root")):
            await parts.state.create_session(child, CreateSession(parent_session_id=parent, root_session_id="root"))
        await parts.usage.record_usage(
            [
                used(n, session, root_session_id="root")
                for n, session in enumerate(("root", "left", "leaf", "right", "left"))
            ]
        )
        search = {"root_session_id": "root", "source_type": "tool", "source_name": "search", "tokens": None}
        await parts.usage.record_usage(
            [used(7, "leaf", amount=30, **search), used(8, "leaf", amount=12, success=False, **search)]
        )
        tokens = TokenCount(prompt=30, completion=15, total=45)
        assert await parts.usage.get_usage_rollup("left") == UsageRollup(
            tokens=tokens,
            sources=(
                SourceTotal(source_type="tokens", source_name="model-1", calls=3, tokens=tokens),
                SourceTotal(source_type="tool", source_name="search", calls=2, failures=1, amount=42),
            ),
            sessions=2,
        )
        whole = await parts.usage.get_usage_rollup("root")
        assert (whole.tokens.total, whole.sessions) == (75, 4)
        assert await parts.usage.get_usage_rollup("nobody") == UsageRollup()

    @proves("usage.deleted")
    async def test_usage_goes_when_asked_and_with_its_session(self, parts: Backend) -> None:
        for session in ("a", "b"):
            await parts.state.create_session(session)
        await parts.usage.record_usage([used(n, session) for n, session in enumerate(("a", "a", "b", "unknown"))])
        assert await parts.usage.delete_usage("a") == 2
        assert await parts.usage.delete_usage("a") == 0
        await parts.state.delete_session("b")
        assert [entry.session_id for entry in (await parts.usage.query_usage()).items] == ["unknown"]

    @proves("usage.another-root")
    async def test_an_entry_of_another_root_is_its_sessions_all_the_same(self, parts: Backend) -> None:
        await start(parts.state, "root")
        await parts.state.create_session("child", CreateSession(parent_session_id="root"))
        await parts.usage.record_usage(
            [
                used(0, "root", run_id="r-1", root_session_id="elsewhere"),
                used(1, "child", run_id="r-2", root_session_id="child"),
                used(2, "child", run_id="r-2", root_session_id="root"),
                used(3, "child", run_id="r-2", root_session_id="elsewhere"),
            ]
        )

        async def found(**where: Any) -> list[int]:
            return sorted(entry.n for entry in (await parts.usage.query_usage(UsageFilter(**where))).items)

        await commit(parts.state, session_id="root", usage=(used(4, "root"),))
        assert await found(session_id="root") == [0, 4]
        assert await found(session_id="child") == [1, 2, 3]
        assert await found(session_id="child", root_session_id="elsewhere") == [3]
        assert await found(root_session_id="elsewhere") == [0, 3]
        assert await found(root_session_id="root") == [2, 4]
        assert (await parts.usage.get_usage_rollup("root")).tokens.total == 75
        assert (await parts.usage.get_usage_rollup("child")).tokens.total == 45
        assert (await parts.usage.get_usage_rollup("elsewhere")).tokens.total == 30
        # It exists once, whatever root it names the second time.
        assert await parts.usage.record_usage([used(3, "child", run_id="r-2", root_session_id="root")]) == 0
        assert await parts.usage.delete_usage("child") == 3
        await parts.state.delete_session("root")
        assert await found() == []

    @proves("usage.closed")
    async def test_a_closed_part_refuses_work_and_those_beside_it_go_on(self, parts: Backend) -> None:
        works: list[tuple[Closable, Callable[[], Awaitable[Any]]]] = [
            (parts.usage, parts.usage.query_usage),
            (parts.locks, lambda: parts.locks.acquire("key", ttl_ms=1_000, owner="me")),
            (parts.streams, lambda: parts.streams.get_stream_info("stream")),
            (parts.state, parts.state.list_sessions),
        ]
        while works:
            part, work = works.pop(0)
            await work()
            for _ in range(5):
                await part.close()
            with pytest.raises(StoreClosedError):
                await work()

    @proves("usage.namespaces-apart")
    async def test_a_namespace_sees_nothing_of_another(self, handles: Handles[Backend]) -> None:
        north, south = await handles.open(namespace="north"), await handles.open(namespace="south")
        await north.usage.record_usage([used()])
        assert (await south.usage.query_usage()).total == 0
        assert await south.usage.record_usage([used()]) == 1
        assert await south.usage.delete_usage(SESSION) == 1
        assert (await north.usage.query_usage()).total == 1
