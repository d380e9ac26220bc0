"""A session that was cut again and again costs what is asked of it, and leaves what its branches see."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from redis.asyncio import Redis

from helix_agents.backends.redis import RedisStateStore
from helix_agents.backends.redis.keys import Keys, Slot
from helix_agents.backends.redis.lineage import Segment
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.records import decode, encode
from helix_agents.domain.sessions import BranchPoint
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.scenes import said
from tests.unit.backends.cut_sessions import check_what_is_left

Ask = Callable[[SessionStateStore, str], Awaitable[object]]


def slot_of(store: RedisStateStore, tag: str) -> Slot:
    return Keys(store.server.prefix, store.namespace).slot(tag)


async def cut_often(store: SessionStateStore, name: str, cuts: int) -> None:
    """A session with one more stretch of history for each of its messages."""
    await store.create_session(name)
    for count in range(1, cuts + 1):
        await store.append_messages(name, [UserMessage(content=f"kept {count}"), said("cut off")])
        await store.truncate_messages(name, count)


async def test_only_what_a_branch_sees_is_left_of_a_deleted_session(store: RedisStateStore, client: Redis) -> None:
    slot = slot_of(store, "source")

    async def rows(table: str) -> Sequence[Any]:
        if table == "segments":
            return [name for name in await client.hkeys(slot.segments) if name != b"#"]
        begins = {"messages": slot.messages(""), "state_log": slot.states(""), "checkpoints": slot.checkpoints("")}
        keys = [key async for key in client.scan_iter(count=10_000) if key.decode().startswith(begins[table])]
        return [row for key in keys for row in await client.lrange(key, 0, -1)]

    await check_what_is_left(store, rows)


@pytest.mark.parametrize(
    ("most", "ask"),
    [
        (1.2, lambda store, name: store.get_messages(name, limit=2)),
        (1.2, lambda store, name: store.truncate_messages(name, 38)),
        (1.2, lambda store, name: store.clone_session(BranchPoint(from_session_id=name), f"{name}-branch")),
        (1.2, lambda store, name: store.append_messages(name, [said("more")])),
        (1.2, lambda store, name: store.list_checkpoints(name)),
        (5.0, lambda store, name: store.load_transcript(name)),
        (
            5.0,
            lambda store, name: store.clone_session(
                BranchPoint(from_session_id=name, message_count=2), f"{name}-early"
            ),
        ),
        (5.0, lambda store, name: store.delete_session(name)),
    ],
    ids=["page", "cut", "branch", "append", "checkpoints", "transcript", "early-branch", "delete"],
)
async def test_a_session_that_was_cut_often_costs_what_is_asked(
    store: RedisStateStore, client: Redis, ask: Ask, most: float
) -> None:
    """What the server sends and is sent for four times the cuts: as much, or four times as much; never the square."""

    async def moved() -> int:
        stats = await client.info("stats")
        return stats["total_net_output_bytes"] + stats["total_net_input_bytes"]

    for cuts in (40, 160):
        await cut_often(store, f"s-{cuts}", cuts)
    costs: list[int] = []
    for cuts in (40, 160):
        await store.session_exists(f"s-{cuts}")
        before = await moved()
        alone = await moved() - before
        before = await moved()
        await ask(store, f"s-{cuts}")
        costs.append(await moved() - before - alone)
    assert costs[1] < most * costs[0]


async def test_what_is_stored_of_a_cut_does_not_grow_with_those_before(store: RedisStateStore, client: Redis) -> None:
    await cut_often(store, "s", 60)
    rows = await client.hvals(slot_of(store, "s").segments)
    assert max(len(row) for row in rows) < 300


async def test_whole_lines_as_they_were_stored_before_are_read(store: RedisStateStore, client: Redis) -> None:
    """Rows used to hold all that a segment stands on. Newer ones may stand on them."""
    await cut_often(store, "s", 6)
    slot = slot_of(store, "s")
    rows = {name: decode(row, Segment) for name, row in (await client.hgetall(slot.segments)).items() if name != b"#"}

    def whole(segment: Segment) -> Segment:
        line = list(segment.line)
        while (above := rows[line[-1].segment.encode()].line[1:]) and above:
            line += above
        return Segment(owner=segment.owner, line=tuple(line))

    await client.hset(slot.segments, mapping={name: encode(whole(segment)) for name, segment in rows.items()})
    await store.append_messages("s", [said("seven"), said("eight")])
    await store.truncate_messages("s", 7)
    await store.truncate_messages("s", 5)
    await store.clone_session(BranchPoint(from_session_id="s", message_count=4), "branch")
    texts = [row.message.content for row in await store.load_transcript("s")]  # pyright: ignore[reportAttributeAccessIssue]
    assert texts == [f"kept {number}" for number in range(1, 6)]
    await store.delete_session("s")
    assert len(await store.load_transcript("branch")) == 4
    await store.delete_session("branch")
    assert [key async for key in client.scan_iter(match=f"{slot.prefix}*", count=10_000)] == []
