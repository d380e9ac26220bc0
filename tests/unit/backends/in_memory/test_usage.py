"""Usage is counted once and found across sessions."""

from typing import Any

import pytest

from helix_agents.backends.in_memory import InMemoryStateStore, InMemoryUsageStore, Memory
from helix_agents.domain.errors import InvalidIdError
from helix_agents.domain.sessions import CreateSession
from helix_agents.domain.usage import TokenCount, UsageEntry, UsageFilter
from helix_agents.testing.clock import ManualClock

pytestmark = pytest.mark.anyio


def entry(**fields: Any) -> UsageEntry:
    settings: dict[str, Any] = {"session_id": "s-1", "root_session_id": "s-1", "run_id": "r-1", **fields}
    return UsageEntry(source_type="tokens", source_name="model", tokens=TokenCount(prompt=1, total=1), **settings)


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def usage(memory: Memory, clock: ManualClock) -> InMemoryUsageStore:
    return InMemoryUsageStore(memory, clock=clock)


async def test_the_same_entry_counts_once(usage: InMemoryUsageStore):
    assert await usage.record_usage([entry(n=0), entry(n=1)]) == 2
    assert await usage.record_usage([entry(n=1), entry(n=2), entry(attempt=2)]) == 2
    assert (await usage.query_usage()).total == 4


async def test_entries_are_listed_newest_first(usage: InMemoryUsageStore, clock: ManualClock):
    await usage.record_usage([entry(n=0), entry(n=1)])
    clock.advance(10)
    await usage.record_usage([entry(step=1), entry(step=2, recorded_at=5)])
    page = await usage.query_usage(limit=3)
    assert [(item.step, item.n) for item in page.items] == [(1, 0), (0, 1), (0, 0)]
    assert (page.items[0].recorded_at, page.total, page.has_more) == (clock.now_ms(), 4, True)
    assert (await usage.query_usage(UsageFilter(recorded_to=5))).total == 1


async def test_a_rollup_covers_the_session_and_everything_below(memory: Memory, usage: InMemoryUsageStore):
    store = InMemoryStateStore(memory)
    await store.create_session("s-1")
    await store.create_session("child", CreateSession(parent_session_id="s-1"))
    await store.create_session("grandchild", CreateSession(parent_session_id="child"))
    await usage.record_usage(
        [
            entry(),
            entry(run_id="r-2", session_id="child"),
            entry(run_id="r-3", session_id="grandchild"),
            entry(run_id="r-4", session_id="other", root_session_id="other"),
        ]
    )
    whole, part = await usage.get_usage_rollup("s-1"), await usage.get_usage_rollup("child")
    assert (whole.sessions, whole.tokens.total) == (3, 3)
    assert (part.sessions, part.tokens.total) == (2, 2)


async def test_a_rollup_of_a_root_needs_no_sessions_beside_it(usage: InMemoryUsageStore):
    await usage.record_usage([entry(), entry(run_id="r-2", session_id="elsewhere")])
    assert (await usage.get_usage_rollup("s-1")).sessions == 2


async def test_deleting_takes_the_entries_of_one_session(usage: InMemoryUsageStore):
    await usage.record_usage([entry(), entry(run_id="r-2", session_id="child")])
    assert await usage.delete_usage("s-1") == 1
    assert await usage.delete_usage("s-1") == 0
    assert (await usage.query_usage()).total == 1


async def test_an_impossible_id_is_refused(usage: InMemoryUsageStore):
    with pytest.raises(InvalidIdError):
        await usage.record_usage([entry(), entry(run_id="line\nbreak")])
    assert (await usage.query_usage()).total == 0
