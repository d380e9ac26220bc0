"""Queries across sessions: an index in a slot of its own, which follows the sessions and never leads.

A write that affects the index first leaves a *mark* there, then changes its session, then updates the index and removes
its mark. Every query first updates whatever is marked. So a process may die at any point: what it left undone is
marked, and the next query completes it. A mark outlives the time in which its write can still arrive; the script
refuses a later one.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from helix_agents.backends.redis.keys import LINE, Keys
from helix_agents.backends.redis.scripts import ATOMIC, INDEX_FIND, INDEX_PAGE, INDEX_PUT, INDEX_SWEEP
from helix_agents.backends.redis.server import RedisServer
from helix_agents.domain.records import Record, decode, encode

ARRIVES_WITHIN_MS = 5_000
MARKS_LAST_MS = 6_000
# The clocks of cluster nodes may differ.
CLUSTER_MARKS_LAST_MS = 15_000
GONE_LASTS_MS = 3_600_000

# The orders (sorted sets) that entries are listed in.
SESSIONS = "sessions"
STAGED = "staged"
QUEUED = "queued"
EXPIRING = "expiring"
RUNNING = "running"
UNTOLD = "untold"
DEADLINES = "deadlines"
READY = "ready"
USED = "used"
RESTING = "resting"
VANISHING = "vanishing"
MEMORIES = "memories"
UNEMBEDDED = "unembedded"
GONE = "gone"


def tree_order(tag: str) -> str:
    """The order that lists all entries of one slot, kept if sessions may expire."""
    return f"tree/{tag}"


def parts_by_parent(user_id: str | None = None) -> tuple[str, str]:
    """The two parts that list all sessions, or those of a user: without a parent, and with one."""
    return ("roots", "below") if user_id is None else (f"roots/{user_id}", f"below/{user_id}")


def expiring_part(status: str) -> str:
    """The part that lists the sessions with an expiry and this status."""
    return f"{EXPIRING}/{status}"


def mark_order(key: str, text: str) -> str:
    """The order that lists the sessions with one of our marks in their metadata."""
    return f"{key}/{text}"


class Entry(NamedTuple):
    """One thing that can be found: its id, its payload (empty if it is gone) and its position in each order."""

    id: str
    payload: bytes
    orders: tuple[tuple[str, float], ...]


class Mark(Record):
    """What a write is about to change, by kind, tag and names, and when."""

    at: int
    origins: tuple[tuple[str, ...], ...]


class Found(NamedTuple):
    """The index's answer; `total` is the number of entries that the page is taken from, None if it is no page."""

    at_us: bytes
    marks: dict[str, Mark]
    entries: list[tuple[str, bytes]]
    total: int | None = None


def entry_id(kind: str, *names: str) -> str:
    """The id of an entry; within an order, entries with equal scores sort by it."""
    return LINE.join((kind, *names))


def names_of(id: str) -> list[str]:
    """The names in an entry's id."""
    return id.split(LINE)[1:]


def marked_id(origin: tuple[str, ...]) -> str:
    """The id of the entry that is built from what a mark names."""
    kind, tag, *names = origin
    match kind:
        case "r":
            return entry_id(kind, names[1])
        case "c":
            return entry_id(kind, names[1], names[0])
        case "u":
            return entry_id(kind, tag, names[0])
        case _:
            return entry_id(kind, names[0])


def gone(id: str, now_ms: int) -> Entry:
    """The entry of something that no longer exists; it is remembered for a while, in case old news arrives late."""
    return Entry(id, b"", ((GONE, now_ms),))


class Index:
    """The index of one namespace."""

    def __init__(self, server: RedisServer, keys: Keys) -> None:
        self._server = server
        self.slot = keys.indexes
        self._entries = self.slot.key("entries")
        self._marks = self.slot.key("marks")
        self._orders = self.slot.key("z")

    async def mark(self, token: str, origins: Sequence[tuple[str, ...]]) -> int:
        """Record what is about to change; returns the deadline for the change."""
        now = self._server.now_ms()
        body = encode(Mark(at=now, origins=tuple(dict.fromkeys(origins))))
        await self._server.write(ATOMIC, "mark", (self._marks,), ("0 0 0 HSET 1 2", token, body))
        return now + ARRIVES_WITHIN_MS

    async def put(self, entries: Sequence[tuple[Entry, bytes]], *, unmark: Sequence[str] = ()) -> None:
        """Update entries, each with the revision it was built from, and remove marks."""
        args: list[Any] = [self._orders, len(unmark), *unmark]
        for entry, revision in entries:
            args += (entry.id, revision, entry.payload, len(entry.orders))
            for name, score in entry.orders:
                args += (name, score)
        await self._server.write(INDEX_PUT, "index", (self._entries, self._marks), args)

    async def find(
        self,
        *orders: str,
        down: bool = False,
        lowest: float | str = "-inf",
        highest: float | str = "+inf",
        limit: int = 0,
        besides: Sequence[str] = (),
    ) -> Found:
        """The entries of these orders within a range, and some by id."""
        keys = (self._entries, self._marks, *(self._orders + order for order in orders))
        args = ("down" if down else "up", lowest, highest, limit, *besides)
        at_us, marks, found = await self._server.read(INDEX_FIND, " ".join(orders) or "by id", keys, args)
        return self._heard(at_us, marks, found)

    async def page(
        self,
        order: str,
        *,
        parts: Sequence[str] = (),
        others: Sequence[str] = (),
        lowest: float | str = "-inf",
        highest: float | str = "+inf",
        offset: int = 0,
        limit: int = 0,
        vanished_by: float | str = "-inf",
    ) -> Found:
        """A page of an order, or of some parts of it, the newest first; `others` are its remaining parts.

        Without a total, the answer is everything in the order, because an entry of it vanished or is in none of its
        parts.
        """
        orders = (VANISHING, order, *parts, *others)
        keys = (self._entries, self._marks, *(self._orders + name for name in orders))
        args = (lowest, highest, offset, limit, vanished_by, len(parts))
        at_us, marks, total, found = await self._server.read(INDEX_PAGE, order, keys, args)
        return self._heard(at_us, marks, found)._replace(total=total if total >= 0 else None)

    def _heard(self, at_us: bytes, marks: list[bytes], found: list[bytes]) -> Found:
        self._server.heard(at_us)
        tokens = {marks[n].decode(): decode(marks[n + 1], Mark) for n in range(0, len(marks), 2)}
        return Found(at_us, tokens, [(found[n].decode(), found[n + 1]) for n in range(0, len(found), 2)])

    async def forget_gone(self) -> None:
        """Forget entries of things that are long gone."""
        before = self._server.now_ms() - GONE_LASTS_MS
        while await self._server.write(INDEX_SWEEP, "gone", (self._entries, self._orders + GONE), (before,)):
            pass
