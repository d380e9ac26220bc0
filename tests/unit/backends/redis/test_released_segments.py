"""What is left of a history once sessions are deleted, however many others share it."""

from collections import Counter
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from helix_agents.backends.redis.keys import Slot
from helix_agents.backends.redis.lineage import Reach, Segment, Segments, release
from helix_agents.backends.redis.rows import Stretch
from helix_agents.backends.redis.transaction import Transaction
from helix_agents.domain.sessions import BranchPoint
from helix_agents.ports.backend import open_backend
from helix_agents.testing.redis_service import ForeignRedis, RedisService
from helix_agents.testing.scenes import said

SLOT = Slot("")
MUCH = 1_000


class Stored:
    """The segments of a slot and how long their lists are, as the commands of deletions leave them."""

    def __init__(self, rows: dict[str, Segment]) -> None:
        self.slot = SLOT
        self.rows = dict(rows)
        self.lengths = {key(name): MUCH for name in rows for key in (SLOT.messages, SLOT.states)}
        self.commands = 0

    def do(self, command: str, key: str, *given: Any) -> None:
        self.commands += 1
        match command:
            case "UNLINK":
                self.lengths.pop(key, None)
            case "LTRIM":
                self.lengths[key] = min(self.lengths.get(key, 0), given[1] + 1)
            case "HDEL":
                del self.rows[given[0]]
            case _:
                owner = self.rows[given[0]]
                self.rows[given[0]] = Segment(owner=None, line=owner.line)


def plainly(rows: dict[str, Segment], owners: set[str]) -> dict[str, Reach]:
    """What is left: for each segment without a living owner, how much of it is seen; by looking at all of them."""
    below = Counter(segment.parent for segment in rows.values())
    seen: dict[str, Reach] = {}
    kept: dict[str, Reach] = {}
    ahead = [name for name in rows if not below[name]]
    for name in ahead:
        segment = rows[name]
        messages, states = segment.line[0].messages, segment.line[0].states
        is_kept = segment.owner is not None and segment.owner not in owners
        if not is_kept and name in seen:
            kept[name] = seen[name][0] - messages, seen[name][1] - states
            messages, states = min(messages, seen[name][0]), min(states, seen[name][1])
        parent = segment.parent
        if parent is None:
            continue
        if is_kept or name in seen:
            most = seen.get(parent, (0, 0))
            seen[parent] = max(most[0], messages), max(most[1], states)
        below[parent] -= 1
        if not below[parent]:
            ahead.append(parent)
    return kept


@st.composite
def histories(draw: st.DrawFn) -> dict[str, Segment]:
    """Sessions that branched from each other and were cut, some of them more than once."""
    rows: dict[str, Segment] = {}
    for number in range(draw(st.integers(1, 14))):
        name, owner = f"s{number}", f"o{draw(st.integers(0, 5))}"
        line = (Stretch(segment=name),)
        if rows and draw(st.booleans()):
            parent = draw(st.sampled_from(sorted(rows)))
            at = rows[parent].line[0]
            ends = at.messages + draw(st.integers(1, 9)), at.states + draw(st.integers(1, 9))
            line = (Stretch(segment=name, messages=ends[0], states=ends[1]), rows[parent].line[0])
        rows[name] = Segment(owner=owner, line=line)
    return rows


@given(rows=histories(), order=st.permutations([{f"o{number}"} for number in range(6)]), at_once=st.integers(1, 3))
def test_deleting_session_by_session_leaves_what_looking_at_everything_would(
    rows: dict[str, Segment], order: list[set[str]], at_once: int
) -> None:
    stored, segments = Stored(rows), Segments(dict(rows))
    gone: set[str] = set()
    for first in range(0, len(order), at_once):
        owners = set[str]().union(*order[first : first + at_once])
        gone |= owners
        release(cast("Transaction", stored), segments, owners)
        expected = plainly(rows, gone)
        kept = {name for name, segment in rows.items() if segment.owner not in gone}
        assert stored.rows.keys() == kept | expected.keys() == segments.rows.keys()
        assert all(stored.rows[name].owner is None for name in expected)
        for name, (messages, states) in expected.items():
            assert stored.lengths.get(SLOT.messages(name), 0) == max(messages, 0)
            assert stored.lengths.get(SLOT.states(name), 0) == max(states, 0)
        assert all(stored.lengths[SLOT.messages(name)] == MUCH for name in kept)
        # What is read again is what was remembered.
        again = Segments(dict(stored.rows))
        for name in stored.rows:
            assert again.seen(name) == segments.seen(name)
    assert stored.rows == {}


def test_a_branch_among_many_is_released_without_looking_at_the_others() -> None:
    origin = Stretch(segment="template", messages=0, states=0)
    rows = {"template": Segment(owner=None, line=(origin,))}
    for number in range(2_000):
        name = f"b{number}"
        rows[name] = Segment(owner=name, line=(Stretch(segment=name, messages=5, states=5), origin))
    segments = Segments(rows)
    looked: list[str] = []

    class Watched(dict[str, Segment]):
        def __getitem__(self, name: str) -> Segment:
            looked.append(name)
            return super().__getitem__(name)

    stored = Stored(rows)
    segments.rows = Watched(segments.rows)
    release(cast("Transaction", stored), segments, {"b7"})
    assert (len(stored.rows), stored.commands) == (2_000, 3)
    assert len(looked) < 20


async def test_deleting_one_of_many_branches_after_the_other_moves_no_more_for_more_of_them(
    redis_service: RedisService | ForeignRedis, client: Redis
) -> None:
    async def moved() -> int:
        stats = await client.info("stats")
        return stats["total_net_output_bytes"] + stats["total_net_input_bytes"]

    costs: list[int] = []
    for branches in (40, 160):
        async with await open_backend(redis_service.new_url()) as backend:
            store = backend.state
            await store.create_session("template")
            await store.append_messages("template", [said("one"), said("two")])
            for number in range(branches):
                await store.clone_session(BranchPoint(from_session_id="template"), f"b-{number}")
            await store.delete_session("b-0")
            before = await moved()
            alone = await moved() - before
            before = await moved()
            for number in range(1, 21):
                await store.delete_session(f"b-{number}")
            costs.append(await moved() - before - alone)
            assert len(await store.load_transcript("b-30")) == 2
    assert costs[1] < 1.2 * costs[0]


async def test_two_processes_that_delete_branches_in_turns_leave_what_others_see(
    redis_service: RedisService | ForeignRedis,
) -> None:
    url = redis_service.new_url()
    async with await open_backend(url) as first, await open_backend(url) as second:
        one, other = first.state, second.state
        await one.create_session("template")
        for number in range(1, 9):
            await one.append_messages("template", [said(f"message {number}")])
            await other.clone_session(BranchPoint(from_session_id="template"), f"b-{number}")
            await (one, other)[number % 2].append_messages(f"b-{number}", [said("and more")])
        await one.delete_session("template")
        for number in (8, 3, 6, 1, 7):
            await (one, other)[number % 2].delete_session(f"b-{number}")
            await one.clone_session(BranchPoint(from_session_id="b-5", message_count=2), f"c-{number}")
        for store in (one, other):
            assert [len(await store.load_transcript(f"b-{number}")) for number in (2, 4, 5)] == [3, 5, 6]
            assert len(await store.load_transcript("c-1")) == 2
