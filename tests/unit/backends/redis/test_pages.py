"""A page of a listing costs what is on it, however many sessions and calls there are besides."""

from redis.asyncio import Redis

from helix_agents.backends.redis import RedisStateStore
from helix_agents.backends.redis.index import entry_id, expiring_part, parts_by_parent
from helix_agents.domain.sessions import MARKS, CreateSession, SessionFilter
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.scenes import commit, fence_of, start, waiting

FEW, MANY = 20, 120
LONG_AGO = 1
ASKED = {
    "all": None,
    "roots": SessionFilter(roots_only=True),
    "user": SessionFilter(user_id="ann"),
    "roots of a user": SessionFilter(user_id="ann", roots_only=True),
    "tree": SessionFilter(root_session_id="root"),
    "children": SessionFilter(parent_session_id="root"),
    "marked": SessionFilter(metadata={MARKS[0]: "open"}),
    "since": SessionFilter(created_from=5, user_id="ann"),
    "expired and live": SessionFilter(expires_before=5, statuses=("active", "paused")),
}


async def crowd(store: SessionStateStore, first: int, last: int) -> None:
    """Sessions that every question is about, but for those that are live and expired."""
    for n in range(first, last):
        common = CreateSession(user_id="ann", metadata={MARKS[0]: "open"}, expires_at=LONG_AGO)
        await store.create_session(f"root-{n}", common)
        await store.update_status(f"root-{n}", "failed")
        child = CreateSession(user_id="ann", parent_session_id="root", root_session_id="root")
        await store.create_session(f"child-{n}", child)
        await start(store, f"waits-{n}", f"run-{n}")
        about = {"session_id": f"waits-{n}", "fence": fence_of(f"run-{n}")}
        await commit(store, 1, **about, pending=(waiting(store, "now", f"waits-{n}"),))  # pyright: ignore[reportArgumentType]


async def bytes_answered(client: Redis, store: SessionStateStore, where: SessionFilter | str | None) -> int:
    """What the server sends for one page. It may also send news to a subscriber meanwhile, so the least of several."""

    async def sent() -> int:
        return (await client.info("stats"))["total_net_output_bytes"]

    each: list[int] = []
    for _ in range(3):
        before = await sent()
        if isinstance(where, str):
            await store.list_pending(offset=3, limit=3)
        else:
            await store.list_sessions(where, offset=3, limit=3)
        each.append(await sent() - before)
    return min(each)


async def test_a_page_costs_what_is_on_it(store: RedisStateStore, client: Redis) -> None:
    asked: dict[str, SessionFilter | str | None] = {**ASKED, "pending": "pending"}
    await store.create_session("root", CreateSession(user_id="ann", expires_at=LONG_AGO))
    await crowd(store, 0, FEW)
    few = {name: await bytes_answered(client, store, where) for name, where in asked.items()}
    await crowd(store, FEW, MANY)
    more = {name: await bytes_answered(client, store, where) - few[name] for name, where in asked.items()}
    # How long numbers are varies.
    assert {name: much for name, much in more.items() if much >= 2 * (MANY - FEW)} == {}


async def test_pages_follow_each_other_without_gap(store: RedisStateStore) -> None:
    await store.create_session("root", CreateSession(user_id="ann"))
    await crowd(store, 0, 7)
    for where in ASKED.values():
        whole = await store.list_sessions(where, limit=200)
        pages = [await store.list_sessions(where, offset=at, limit=4) for at in range(0, whole.total + 4, 4)]
        assert [item for page in pages for item in page] == list(whole)
        assert {page.total for page in pages} == {len(whole)}


async def test_sessions_that_stand_in_no_part_of_an_order_are_listed_too(store: RedisStateStore, client: Redis) -> None:
    """As those do that were stored before orders had parts."""
    for name in ("old", "new"):
        await store.create_session(name, CreateSession(user_id="ann", expires_at=LONG_AGO))
    await store.create_session("below", CreateSession(parent_session_id="old", user_id="ann"))
    orders = store._space.index._orders
    for part in (*parts_by_parent(), *parts_by_parent("ann"), expiring_part("active")):
        await client.zrem(f"{orders}{part}", entry_id("s", "old"), entry_id("s", "below"))

    async def found(where: SessionFilter) -> list[str]:
        page = await store.list_sessions(where)
        assert page.total == len(page)
        return sorted(item.session_id for item in page)

    for where in (
        SessionFilter(roots_only=True),
        SessionFilter(user_id="ann", roots_only=True),
        SessionFilter(expires_before=5, statuses=("active",)),
    ):
        assert await found(where) == ["new", "old"]
