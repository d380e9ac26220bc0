"""The contract of entries: versions, history, quotas, prefixes, changes and the audit log."""

import asyncio

import pytest

from helix_agents.domain.audit_verification import verify_rows
from helix_agents.domain.capability_errors import InvalidInput, KeyNotFound, QuotaExceeded, VersionConflict
from helix_agents.domain.commits import StartRun
from helix_agents.domain.entries import AgentSummary, Clear, session_scope, weight
from helix_agents.domain.records import decode_json, encode
from helix_agents.domain.runs import RunStatus
from helix_agents.domain.sessions import CreateSession
from helix_agents.ports.backend import Backend
from helix_agents.ports.entries import EntryStore
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.entry_crashes import EntryCrashesContract
from helix_agents.testing.contracts.entry_handles import entries_of
from helix_agents.testing.contracts.entry_model import EntryModelContract
from helix_agents.testing.contracts.entry_moves import EntryMovesContract
from helix_agents.testing.contracts.entry_processes import EntryProcessesContract
from helix_agents.testing.contracts.entry_sessions import EntrySessionsContract
from helix_agents.testing.contracts.handles import Handles
from helix_agents.testing.entry_scenes import (
    KEPT,
    SCOPE,
    everything,
    history,
    put,
    recount,
    remove,
    set_value,
    values,
    write,
)
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.scenes import fence_of, start, suspend, waiting

PATIENCE = 30.0


class EntryStoreContract(
    EntryMovesContract, EntrySessionsContract, EntryCrashesContract, EntryModelContract, EntryProcessesContract
):
    """Everything a store of entries has to guarantee: inherit it and provide the fixtures `open_parts` and
    `store_url`."""

    @proves("entries.versions-count-on", "entries.deleted-is-gone")
    async def test_a_version_never_comes_to_mean_another_value(self, store: EntryStore) -> None:
        assert (await set_value(store, "k", "one")).version == 1
        second = await set_value(store, "k", "two")
        assert (second.version, second.previous_version, second.previous) == (2, 1, '"one"')
        gone = (await write(store, remove("k"))).results[0]
        assert (gone.removed, gone.previous) == (1, '"two"')
        assert await store.find(SCOPE, "k") is None
        assert await history(store, "k") == ()
        assert await values(store) == {}
        assert (await write(store, remove("k"))).results[0].removed == 0
        third = await set_value(store, "k", "three")
        assert (third.version, third.previous_version, third.previous) == (3, 0, None)
        with pytest.raises(KeyNotFound):
            await write(store, remove("other", must_exist=True))

    @proves("entries.deleted-is-gone")
    async def test_a_key_that_no_store_could_hold_is_not_there_to_be_removed(self, store: EntryStore) -> None:
        await set_value(store, "k", 1)
        assert (await write(store, remove("a\0b"))).results[0].removed == 0
        assert await store.find(SCOPE, "a\0b") is None
        assert await values(store) == {"k": 1}

    @proves("entries.cleared")
    async def test_a_cleared_scope_counts_on_and_a_forgotten_one_begins_anew(self, store: EntryStore) -> None:
        for key in ("a", "b"):
            await set_value(store, key, 1)
            await set_value(store, key, 2)
        await write(store, remove("b"), put("other", 1, "agent:bob"))
        assert (await write(store, Clear(scope=SCOPE))).results[0].removed == 1
        assert (await set_value(store, "a", 3)).version == 3
        done = await write(store, put("c", 1), Clear(scope=SCOPE, forget=True), put("a", 4), put("d", 5))
        assert [each.version for each in done.results] == [1, 0, 1, 1]
        assert done.results[1].removed == 2
        assert await everything(store) == [("a", ((1, 4),)), ("d", ((1, 5),))]
        usage = await store.usage(SCOPE)
        assert (usage.keys, usage.bytes) == await recount(store)
        assert (await write(store, Clear(scope=SCOPE, forget=True))).results[0].removed == 2
        async with store.dump([SCOPE, "agent:bob"]) as dump:
            assert [row.scope async for rows in dump.rows() for row in rows] == ["agent:bob"]
        assert [each.scope for each in await store.list_scopes()] == ["agent:bob"]

    @proves("entries.compare-and-set")
    async def test_an_expected_version_decides(self, store: EntryStore) -> None:
        await set_value(store, "k", 1, expected_version=0)
        for stale in (0, 2, 7):
            with pytest.raises(VersionConflict) as refused:
                await set_value(store, "k", 2, expected_version=stale)
            assert refused.value.context["current_version"] == 1
            assert refused.value.context["current"] == "1"
        await set_value(store, "k", 2, expected_version=1)
        with pytest.raises(VersionConflict):
            await write(store, remove("k", expected_version=1))
        await write(store, remove("k", expected_version=2))
        with pytest.raises(VersionConflict) as refused:
            await set_value(store, "k", 3, expected_version=2)
        assert refused.value.context["current_version"] == 0
        assert (await set_value(store, "k", 3, expected_version=0)).version == 3

    @proves("entries.history-kept", "entries.usage-exact")
    async def test_the_newest_versions_stay_readable(self, store: EntryStore, clock: ManualClock) -> None:
        created = clock.now_ms()
        for number in range(1, 12):
            await set_value(store, "k", "x" * number)
            clock.advance(10)
            assert tuple(await recount(store)) == (1, (await store.usage(SCOPE)).bytes)
        kept = await history(store, "k")
        assert [each.version for each in kept] == [11, 10, 9, 8, 7]
        assert [decode_json(each.value or "") for each in kept] == ["x" * number for number in range(11, 6, -1)]
        assert kept[0].created_at == created
        assert [each.updated_at for each in kept] == [created + 10 * number for number in range(10, 5, -1)]
        assert [each.version for each in await store.list_versions(SCOPE, "k", limit=2)] == [11, 10]
        found = await store.find_version(SCOPE, "k", 8)
        assert found is not None
        assert found.value == encode("x" * 8).decode()
        assert await store.find_version(SCOPE, "k", 6) is None
        assert await store.find_version(SCOPE, "k", 12) is None
        assert len(kept) == KEPT

    @proves("entries.usage-exact", "entries.transaction-whole")
    async def test_several_writes_to_one_key_in_a_transaction_count_right(self, store: EntryStore) -> None:
        for number in range(KEPT + 2):
            await set_value(store, "k", "x" * number)
        await write(store, put("k", "a"), put("k", "bb"), put("k", "ccc"))
        assert [each.version for each in await history(store, "k")] == [10, 9, 8, 7, 6]
        assert tuple(await recount(store)) == (1, (await store.usage(SCOPE)).bytes)
        await write(store, remove("k"), put("k", "d"), put("k", "e"))
        assert [each.version for each in await history(store, "k")] == [12, 11]
        assert tuple(await recount(store)) == (1, (await store.usage(SCOPE)).bytes)

    @proves("entries.quota-refused", "entries.lighter-write-allowed", "entries.usage-exact")
    async def test_a_write_over_the_limit_changes_nothing(self, store: EntryStore) -> None:
        await set_value(store, "big", "x" * 100)
        await set_value(store, "small", "x")
        used = (await store.usage(SCOPE)).bytes
        assert used == weight("big", encode("x" * 100).decode()) + weight("small", '"x"')
        needed = weight("new", '"y"')
        await set_value(store, "new", "y", limit_bytes=used + needed)
        with pytest.raises(QuotaExceeded) as refused:
            await set_value(store, "more", "y", limit_bytes=used + needed)
        assert refused.value.context["used"] == used + needed
        assert refused.value.context["largest_keys"][0] == {"key": "big", "bytes": weight("big", "x" * 102)}
        assert "more" not in await values(store)
        lighter = await set_value(store, "big", "", limit_bytes=10, keep_versions=0)
        assert lighter.version == 2
        with pytest.raises(QuotaExceeded):
            await set_value(store, "fourth", 1, limit_keys=3)
        assert (await set_value(store, "small", 2, limit_keys=3)).version == 2

    @proves("entries.prefix-exact", "entries.pages")
    async def test_a_prefix_means_its_own_letters(self, store: EntryStore) -> None:
        top = chr(0x10FFFF)
        keys = [
            "a",
            "a%",
            "a_",
            "ab",
            "a.b",
            "A",
            "á",
            "b",
            "a*",
            f"a{top}",
            f"a{top}{top}",
            "it's",
            "\u8a9e",
            "\ud7ff",
        ]
        for key in keys:
            await set_value(store, key, key)
        for prefix in ["", "a", "a%", "a_", "A", "á", f"a{top}", "%", "_", "it'", "\u8a9e", "\ud7ff", "zz"]:
            expected = sorted(key for key in keys if key.startswith(prefix))
            assert list(await values(store, prefix=prefix)) == expected, prefix
        seen: list[str] = []
        after: str | None = None
        while True:
            page = await store.list_entries(SCOPE, after=after, limit=4)
            seen.extend(entry.key for entry in page.items)
            assert page.total == len(keys)
            assert all(entry.value is None for entry in page.items)
            if not page.has_more:
                break
            after = page.items[-1].key
        assert seen == sorted(keys)

    @proves("entries.transaction-whole", "entries.events-in-order")
    async def test_of_several_changes_all_are_made_or_none(self, store: EntryStore) -> None:
        done = await write(store, put("a", 1), put("b", 2), put("a", 3), remove("b"))
        assert [result.version for result in done.results] == [1, 1, 2, 1]
        assert await values(store) == {"a": 3}
        with pytest.raises(VersionConflict):
            await write(store, put("c", 1), remove("a"), put("d", 1, expected_version=9))
        assert await values(store) == {"a": 3}
        told = await store.list_events(0)
        assert [(event.key, event.operation, event.version) for event in told.events] == [
            ("a", "put", 1),
            ("b", "put", 1),
            ("a", "put", 2),
            ("b", "delete", 1),
        ]
        assert {event.revision for event in told.events} == {done.revision}

    @proves("entries.sent-again-once")
    async def test_the_same_request_again_gets_the_first_answer(self, store: EntryStore) -> None:
        first = await write(store, put("k", 1, expected_version=0), once="call-1", audit=({"what": "set"},))
        again = await write(store, put("k", 1, expected_version=0), once="call-1", audit=({"what": "set"},))
        assert (again.revision, again.results, again.repeated) == (first.revision, first.results, True)
        assert len(await store.list_audit()) == 1
        with pytest.raises(InvalidInput):
            await write(store, put("k", 2, expected_version=0), once="call-1")
        assert await values(store) == {"k": 1}

    @proves("entries.events-in-order", "entries.events-compacted")
    async def test_changes_are_told_in_order_and_what_is_gone_is_named(
        self, store: EntryStore, clock: ManualClock
    ) -> None:
        for number in range(10):
            await write(store, put(f"a{number}", number), put(f"b{number}", number, scope="shared"))
            clock.advance(100)
        seen: list[tuple[int, str]] = []
        after = 0
        while True:
            page = await store.list_events(after, limit=3)
            seen.extend((event.revision, event.key) for event in page.events)
            after = page.reached
            if after == page.head:
                break
        assert seen == [(n + 1, f"{letter}{n}") for n in range(10) for letter in "ab"]
        only = await store.list_events(0, scope="shared", prefix="b1")
        assert ([event.key for event in only.events], only.reached) == (["b1"], 10)
        assert await store.revision_at(clock.now_ms() - 450) == 6
        assert [await store.revision_at(0), await store.revision_at(clock.now_ms())] == [0, 10]
        assert await store.prune_events(before_ms=clock.now_ms() - 750, keep=1_000) == 3
        rest = await store.list_events(0)
        assert (rest.compacted, next(event.revision for event in rest.events)) == (3, 4)
        assert await store.prune_events(before_ms=0, keep=4) == 8
        assert len((await store.list_events(0)).events) == 4

    @proves("entries.listeners-are-woken")
    async def test_a_commit_of_another_handle_wakes_who_listens(self, handles: Handles[Backend]) -> None:
        here, there = entries_of(await handles.open()), entries_of(await handles.open())
        async with here.listen() as waiting:
            assert not await waiting.wait(0.01)
            heard = asyncio.ensure_future(waiting.wait(PATIENCE))
            await set_value(there, "k", 1)
            assert await heard

    @proves("entries.audit-in-the-transaction")
    async def test_the_audit_log_is_one_chain_with_the_writes(self, store: EntryStore) -> None:
        await write(store, put("k", 1), audit=({"what": "set", "key": "k"},))
        await write(store, audit=({"what": "get"}, {"what": "list"}))
        with pytest.raises(VersionConflict):
            await write(store, put("k", 1, expected_version=9), audit=({"what": "refused"},))
        rows = await store.list_audit()
        assert [row.seq for row in rows] == [1, 2, 3]
        assert decode_json(rows[0].entry) == {"what": "set", "key": "k", "revision": 1}
        assert verify_rows(rows, await store.store_id()).intact
        assert [row.seq for row in await store.list_audit(1, limit=1)] == [2]
        assert await store.prune_audit(2) == 2
        assert [row.seq for row in await store.list_audit()] == [3]

    @proves("entries.namespaces-apart")
    async def test_no_namespace_sees_another(self, handles: Handles[Backend]) -> None:
        here, there = entries_of(await handles.open()), entries_of(await handles.open(namespace="there"))
        await write(here, put("secret", "here"), audit=({"what": "set"},))
        assert await there.find(SCOPE, "secret") is None
        assert await values(there) == {}
        assert (await there.list_events(0)).head == 0
        assert await there.list_audit() == ()
        assert await there.list_scopes() == ()
        assert (await there.overview()).scopes == ()
        assert await here.store_id() != await there.store_id()
        assert (await set_value(there, "secret", "there", expected_version=0)).version == 1
        assert await values(here) == {"secret": "here"}

    @proves("entries.events-by-time")
    async def test_a_clock_that_was_set_back_hides_no_change(self, store: EntryStore, clock: ManualClock) -> None:
        for step in (100, 200, -250, 100):
            clock.advance(step)
            await write(store, put("k", step, scope="shared"))
        began = clock.now_ms() - 150
        # They were made at 100, 300, 50 and 150.
        assert [await store.revision_at(began + at) for at in (0, 51, 101, 151, 301)] == [0, 0, 1, 1, 4]

    @proves("entries.overview")
    async def test_an_overview_shows_everything_at_one_revision(self, parts: Backend, store: EntryStore) -> None:
        await parts.state.create_session("s-1", CreateSession(agent_type="ann"))
        await write(store, put("a", "x"), put("b", "y", scope="shared"), put("row", {"n": 1}, scope="sys.alerts"))
        seen = await store.overview(["sys.alerts"])
        assert seen.revision == 1
        assert [(usage.scope, usage.keys) for usage in seen.scopes] == [(SCOPE, 1), ("shared", 1), ("sys.alerts", 1)]
        assert [(session.session_id, session.agent) for session in seen.sessions] == [("s-1", "ann")]
        assert [entry.value for entry in seen.system["sys.alerts"]] == ['{"n":1}']

    @proves("entries.overview")
    async def test_an_overview_counts_everything_and_lists_the_latest(
        self, parts: Backend, store: EntryStore, clock: ManualClock
    ) -> None:
        for number, agent in enumerate(("ann", "bob", "ann", "ann")):
            await parts.state.create_session(f"s-{number}", CreateSession(agent_type=agent))
            await write(store, put("a", number, scope=session_scope(f"s-{number}")))
            clock.advance(1)
        await parts.state.start_run(StartRun(session_id="s-1", run_id="run-1"))
        seen = await store.overview(sessions=2)
        assert seen.agents == {
            "ann": AgentSummary(sessions=3, running=0),
            "bob": AgentSummary(sessions=1, running=1),
        }
        assert [(session.session_id, session.run_status) for session in seen.sessions] == [
            ("s-1", "running"),
            ("s-3", None),
        ]
        assert [(usage.scope, usage.keys, usage.bytes) for usage in seen.scopes] == [("session:", 4, 8)]

    @proves("entries.waiting-calls")
    async def test_calls_that_wait_are_found_with_those_who_wait(self, parts: Backend, store: EntryStore) -> None:
        for agent in ("ann", "bob"):
            await start(parts.state, agent, f"r-{agent}", create=CreateSession(agent_type=agent))
            asks = waiting(parts.state, f"call-{agent}", agent, run_id=f"r-{agent}")
            await suspend(parts.state, 1, asks, session_id=agent, fence=fence_of(f"r-{agent}"))

        async def found(agent: str | None = None) -> list[str]:
            return [call.tool_call_id for call in (await store.glance(agent=agent)).pending]

        assert await found() == [call.tool_call_id for call in (await store.overview()).pending]
        assert [await found(), await found("ann"), await found("bob"), await found("eve")] == [
            ["call-ann", "call-bob"],
            ["call-ann"],
            ["call-bob"],
            [],
        ]

    @proves("entries.recent-runs")
    async def test_runs_are_listed_that_go_on_or_ended_since(
        self, parts: Backend, store: EntryStore, clock: ManualClock
    ) -> None:
        await parts.state.create_session("s-1", CreateSession(agent_type="ann"))
        ends: tuple[RunStatus | None, ...] = ("completed", "failed", None)
        for turn, status in enumerate(ends, 1):
            await parts.state.start_run(StartRun(session_id="s-1", run_id=f"run-{turn}"))
            clock.advance(100)
            if status is not None:
                await parts.state.update_run_status(f"run-{turn}", status)
        began = clock.now_ms() - 300

        async def listed(since: int) -> list[tuple[int, str, str]]:
            seen = await store.glance(runs_since=since)
            assert await store.glance(agent="ann", runs_since=since) == seen
            return [(run.turn, run.agent, run.status) for run in seen.runs]

        everything = [(1, "ann", "completed"), (2, "ann", "failed"), (3, "ann", "running")]
        assert await listed(0) == await listed(began + 100) == everything
        assert await listed(began + 101) == everything[1:]
        assert await listed(clock.now_ms()) == everything[2:]
        assert (await store.glance(agent="bob", runs_since=0)).runs == (await store.glance()).runs == ()
