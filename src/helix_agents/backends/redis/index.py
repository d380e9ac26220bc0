"""What is asked across sessions: an index in a slot of its own, which follows the sessions and never leads.

A write that changes what the index tells leaves a *mark* there first, then changes its session, then brings the index
up to date and takes its mark away. Whoever asks the index first brings up to date what is marked. So a process may die
at any point: what it left undone is marked, and done by the next who asks. A mark outlives the time in which its write
can still arrive; the script refuses one that comes later.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from helix_agents.backends.redis.keys import LINE, Keys
from helix_agents.backends.redis.scripts import ATOMIC, INDEX_FIND, INDEX_PAGE, INDEX_PUT, INDEX_SWEEP
from helix_agents.backends.redis.server import RedisServer
from helix_agents.domain.records import Record, decode, encode

ARRIVES_WITHIN_MS = 5_000
MARKS_LAST_MS = 6_000
# Between nodes of a cluster clocks may differ.
CLUSTER_MARKS_LAST_MS = 15_000
GONE_LASTS_MS = 3_600_000

# The orders entries stand in.
SESSIONS = "sessions"
STAGED = "staged"
QUEUED = "queued"
EXPIRING = "expiring"
RUNNING = "running"
DEADLINES = "deadlines"
READY = "ready"
USED = "used"
RESTING = "resting"
VANISHING = "vanishing"
MEMORIES = "memories"
UNEMBEDDED = "unembedded"
GONE = "gone"


def tree_order(tag: str) -> str:
    """The order of everything that is told of one slot, where sessions may expire."""
    return f"tree/{tag}"


def parts_by_parent(user_id: str | None = None) -> tuple[str, str]:
    """The parts in which all sessions, or those of a user, are told: without a parent, and with one."""
    return ("roots", "below") if user_id is None else (f"roots/{user_id}", f"below/{user_id}")


def expiring_part(status: str) -> str:
    """The part of the sessions with an expiry that have this status."""
    return f"{EXPIRING}/{status}"


def mark_order(key: str, text: str) -> str:
    """The order of the sessions with one of our marks in their metadata."""
    return f"{key}/{text}"


class Entry(NamedTuple):
    """One thing that can be found: its id, what is told of it (nothing if it is gone) and where it stands."""

    id: str
    payload: bytes
    orders: tuple[tuple[str, float], ...]


class Mark(Record):
    """What a write is about to change, by kind, tag and names, and when."""

    at: int
    origins: tuple[tuple[str, ...], ...]


class Found(NamedTuple):
    """What the index answered; `total` is how many entries the page is of, None if it is of no page."""

    at_us: bytes
    marks: dict[str, Mark]
    entries: list[tuple[str, bytes]]
    total: int | None = None


def entry_id(kind: str, *names: str) -> str:
    """The id of an entry; entries of one order sort by it where their scores are the same."""
    return LINE.join((kind, *names))


def names_of(id: str) -> list[str]:
    """The names in an entry's id."""
    return id.split(LINE)[1:]


def marked_id(origin: tuple[str, ...]) -> str:
    """The id of the entry that is made from what a mark names."""
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
    """The entry of something that is not there any more; it is remembered for a while, against late news."""
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
        """Say what is about to change; answers until when it may."""
        now = self._server.now_ms()
        body = encode(Mark(at=now, origins=tuple(dict.fromkeys(origins))))
        await self._server.write(ATOMIC, "mark", (self._marks,), ("0 0 0 HSET 1 2", token, body))
        return now + ARRIVES_WITHIN_MS

    async def put(self, entries: Sequence[tuple[Entry, bytes]], *, unmark: Sequence[str] = ()) -> None:
        """Bring entries up to date, each at the revision it was made at, and take marks away."""
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
        """Entries of these orders within a range, and some by id."""
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
        """A page of an order, or of those parts of it, the newest first; `others` are the parts it has besides.

        Without a total it is all that the order holds: something of it vanished, or stands in none of its parts.
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
        """Let go of what is remembered of things long gone."""
        before = self._server.now_ms() - GONE_LASTS_MS
        while await self._server.write(INDEX_SWEEP, "gone", (self._entries, self._orders + GONE), (before,)):
            pass
