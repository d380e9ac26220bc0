"""The contract of listings: which sessions a filter finds, in which order, and how every listing is paged."""

import hashlib
from typing import Any

import pytest

from helix_agents.domain.errors import InvalidPageError
from helix_agents.domain.paging import Page
from helix_agents.domain.pending import PendingFilter
from helix_agents.domain.sessions import MARKS, CreateSession, SessionFilter
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.clock import START_MS, ManualClock
from helix_agents.testing.contracts.store_handles import StoreContract, StoreHandles
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.scenes import SESSION, commit, said, start, waiting

LISTINGS: dict[str, tuple[str, ...]] = {
    "list_sessions": (),
    "get_messages": (SESSION,),
    "list_runs": (SESSION,),
    "list_checkpoints": (SESSION,),
    "list_pending": (),
}
"""Each listing and what it is asked about."""

AWKWARD_VALUES = (
    "plain",
    "100%",
    "under_score",
    "it's",
    'a"b',
    "a,b",
    '["plain"]',
    "*",
    "Plain",
    "plàin",
    "a\\b",
    "$.x",
)


class ListingContract(StoreContract):
    """Filters, order and pages."""

    @proves("listing.newest-first")
    async def test_the_newest_session_comes_first_and_ties_go_by_id(
        self, store: SessionStateStore, clock: ManualClock
    ) -> None:
        for session in ("b", "c", "a"):
            await store.create_session(session)
        clock.advance(1)
        await store.create_session("aa")
        assert await _found(store) == ["aa", "c", "b", "a"]

    @proves("listing.filters")
    async def test_a_summary_tells_how_the_session_stands(self, store: SessionStateStore, clock: ManualClock) -> None:
        created = clock.now_ms()
        await store.create_session("root")
        await start(
            store,
            create=CreateSession(
                agent_type="writer",
                user_id="ann",
                tags=("x", "y"),
                metadata={"k": "v"},
                parent_session_id="root",
                root_session_id="root",
                expires_at=created + 5,
            ),
        )
        clock.advance(3)
        await commit(store, messages=[said("a")], state={"step_count": 1, "status": "paused"})
        (summary,) = (await store.list_sessions(SessionFilter(user_id="ann"))).items
        loaded = await store.load_state(SESSION)
        for name in type(summary).__struct_fields__:
            assert getattr(summary, name) == getattr(loaded, name), name
        assert (summary.created_at, summary.updated_at, summary.current_run_id) == (created, created + 3, "r-1")

    @proves("listing.filters")
    async def test_each_filter_finds_what_it_names(self, store: SessionStateStore, clock: ManualClock) -> None:
        made: dict[str, CreateSession] = {
            "one": CreateSession(
                user_id="ann", tags=("x", "y"), metadata={"k": "v", "l": "w"}, expires_at=START_MS + 9
            ),
            "two": CreateSession(user_id="bob", tags=("x",), metadata={"k": "v"}, agent_type="writer"),
            "three": CreateSession(parent_session_id="one", root_session_id="one", expires_at=START_MS + 10),
        }
        for session, options in made.items():
            await store.create_session(session, options)
            clock.advance(10)
        await store.update_status("two", "paused")
        await store.update_status("three", "failed")
        assert await _found(store, user_id="ann") == ["one"]
        assert await _found(store, agent_type="writer") == ["two"]
        assert await _found(store, statuses=("paused", "failed")) == ["three", "two"]
        assert await _found(store, statuses=()) == ["three", "two", "one"]
        assert await _found(store, parent_session_id="one") == ["three"]
        assert await _found(store, root_session_id="one") == ["three", "one"]
        assert await _found(store, roots_only=True) == ["two", "one"]
        assert await _found(store, tags=("x",)) == ["two", "one"]
        assert await _found(store, tags=("x", "y")) == ["one"]
        assert await _found(store, metadata={"k": "v"}) == ["two", "one"]
        assert await _found(store, metadata={"k": "v", "l": "w"}) == ["one"]
        assert await _found(store, metadata={"k": "other"}) == []
        assert await _found(store, created_from=START_MS + 10) == ["three", "two"]
        assert await _found(store, created_to=START_MS + 10) == ["two", "one"]
        assert await _found(store, created_from=START_MS + 10, created_to=START_MS + 10) == ["two"]
        assert await _found(store, expires_before=START_MS + 10) == ["one"]

    @proves("listing.filters")
    async def test_tags_and_metadata_may_be_as_long_as_a_document(self, store: SessionStateStore) -> None:
        """Random text, like a picture or a key in Base64: it cannot be compressed."""
        noise = "".join(hashlib.sha256(str(n).encode()).hexdigest() for n in range(400))
        await store.create_session("one", CreateSession(tags=(noise,), metadata={"k": noise, MARKS[0]: noise}))
        await store.create_session("two")
        await start(store, "two", "r-2")
        await store.patch_metadata("two", {"k": noise + "?", noise: "v"})
        assert await _found(store, tags=(noise,)) == ["one"]
        assert await _found(store, metadata={"k": noise}) == ["one"]
        assert await _found(store, metadata={MARKS[0]: noise}) == ["one"]
        assert await _found(store, metadata={noise: "v", "k": noise + "?"}) == ["two"]
        assert await _found(store, tags=(noise[:-1],)) == []
        assert (await store.load_state("one")).metadata == {"k": noise, MARKS[0]: noise}

    @proves("listing.filters")
    async def test_a_filter_may_name_thousands_of_tags_and_keys(self, store: SessionStateStore) -> None:
        names = [f"name-{number}" for number in range(2_000)]
        everything = CreateSession(tags=tuple(names), metadata=dict.fromkeys(names, "v"))
        await store.create_session("all", everything)
        await store.create_session("but one", CreateSession(tags=tuple(names[1:]), metadata={}))
        assert await _found(store, tags=everything.tags) == ["all"]
        assert await _found(store, tags=everything.tags[1:]) == ["but one", "all"]
        assert await _found(store, metadata=everything.metadata) == ["all"]
        assert await _found(store, metadata={**everything.metadata, "name-9": "w"}) == []

    @proves("listing.filters-combine")
    async def test_everything_in_a_filter_must_hold(self, store: SessionStateStore) -> None:
        for number, (user, tag) in enumerate((("ann", "x"), ("ann", "y"), ("bob", "x"))):
            await store.create_session(f"s-{number}", CreateSession(user_id=user, tags=(tag,), metadata={"k": tag}))
        assert await _found(store, user_id="ann", tags=("x",), metadata={"k": "x"}, roots_only=True) == ["s-0"]
        assert await _found(store, user_id="bob", tags=("y",)) == []

    @proves("listing.marks")
    @pytest.mark.parametrize("mark", MARKS)
    async def test_a_marked_session_is_found_by_what_the_mark_says_now(
        self, handles: StoreHandles, store: SessionStateStore, mark: str
    ) -> None:
        other = await handles.open()
        await store.create_session("plain", CreateSession(metadata={"k": "open"}))
        await start(store, create=CreateSession(user_id="ann", metadata={mark: "open", "k": "v"}))
        assert await _found(other, metadata={mark: "open"}) == [SESSION]
        assert await _found(other, metadata={mark: "open", "k": "v"}, user_id="ann", statuses=("active",)) == [SESSION]
        assert await _found(other, metadata={mark: "open", "k": "w"}) == []
        await commit(store, state={"status": "failed"}, metadata={mark: "shut"})
        assert await _found(other, metadata={mark: "open"}) == []
        assert await _found(other, metadata={mark: "shut"}, statuses=("failed",)) == [SESSION]
        await store.patch_metadata(SESSION, {mark: None})
        assert await _found(other, metadata={mark: "shut"}) == []
        await store.patch_metadata("plain", {mark: "open"})
        assert await _found(other, metadata={mark: "open"}) == ["plain"]
        await store.delete_session("plain")
        assert await _found(other, metadata={mark: "open"}) == []

    @proves("ids.values-are-data")
    async def test_values_are_compared_as_they_are(self, store: SessionStateStore) -> None:
        for number, value in enumerate(AWKWARD_VALUES):
            await store.create_session(
                f"s-{number}",
                CreateSession(user_id=value, tags=(value,), metadata={value: value}, agent_type=value),
            )
        for number, value in enumerate(AWKWARD_VALUES):
            for where in ({"user_id": value}, {"tags": (value,)}, {"metadata": {value: value}}, {"agent_type": value}):
                assert await _found(store, **where) == [f"s-{number}"], where

    @proves("listing.pages-alike", "messages.newest-first", "checkpoints.newest-first")
    @pytest.mark.parametrize("name", LISTINGS)
    async def test_every_listing_pages_alike(self, store: SessionStateStore, clock: ManualClock, name: str) -> None:
        await _fill(store, clock, 7)
        everything = await _page(store, name)
        assert (everything.total, everything.offset, everything.limit, everything.has_more) == (7, 0, 50, False)
        assert len(everything.items) == 7
        pages = [await _page(store, name, offset=offset, limit=3) for offset in (0, 3, 6, 9)]
        assert tuple(item for page in pages for item in page.items) == everything.items
        assert [(page.total, page.offset, page.limit) for page in pages] == [(7, n, 3) for n in (0, 3, 6, 9)]
        assert [page.has_more for page in pages] == [True, True, False, False]
        whole = await _page(store, name, limit=200)
        assert whole.items == everything.items
        times = [getattr(item, "created_at", None) or item.started_at for item in everything.items]
        assert times == sorted(times, reverse=True)

    @proves("listing.bad-page-refused")
    @pytest.mark.parametrize("name", LISTINGS)
    async def test_a_page_that_no_listing_has_is_refused(self, store: SessionStateStore, name: str) -> None:
        await store.create_session(SESSION)
        for page in (
            {"offset": -1},
            {"offset": 2**63},
            {"offset": 10**30},
            {"limit": 0},
            {"limit": 201},
            {"limit": -5},
        ):
            with pytest.raises(InvalidPageError):
                await _page(store, name, **page)
        assert (await _page(store, name, offset=2**62)).items == ()


async def _fill(store: SessionStateStore, clock: ManualClock, count: int) -> None:
    """This many sessions, messages, runs, checkpoints and pending calls, each a little later than the one before."""
    for number in range(1, count + 1):
        clock.advance(5)
        if number > 1:
            await store.create_session(f"other-{number}")
        run = (await start(store, run_id=f"r-{number}")).run
        await commit(
            store,
            number,
            fence=run.fence,
            messages=[said(str(number))],
            pending=(waiting(store, f"call-{number}"),),
        )
    assert (await store.list_pending(PendingFilter(session_id=SESSION))).total == count


async def _found(store: SessionStateStore, **where: Any) -> list[str]:
    """The ids that a filter finds, in the order given."""
    return [each.session_id for each in (await store.list_sessions(SessionFilter(**where))).items]


async def _page(store: SessionStateStore, name: str, **page: int) -> Page[Any]:
    """One page of the listing of this name."""
    return await getattr(store, name)(*LISTINGS[name], **page)
