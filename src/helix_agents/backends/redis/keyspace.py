"""One namespace on a server: where its sessions are, what is known of them here, and how they are changed."""

import asyncio
import contextlib
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from helix_agents.backends.redis.errors import LookAgainError
from helix_agents.backends.redis.index import (
    CLUSTER_MARKS_LAST_MS,
    MARKS_LAST_MS,
    Entry,
    Found,
    Index,
    Mark,
    marked_id,
    tree_order,
)
from helix_agents.backends.redis.keys import Keys, Slot
from helix_agents.backends.redis.scripts import ATOMIC
from helix_agents.backends.redis.server import RedisServer
from helix_agents.backends.redis.transaction import Command, Known, Ran, Transaction
from helix_agents.domain.errors import StoreError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.records import decode
from helix_agents.ports.clock import Clock, IdSource
from helix_agents.ports.state_store import StoreLimits
from helix_agents.system import RandomIds

T = TypeVar("T")
Work = Callable[[Transaction], Awaitable[T]]
Project = Callable[[str, Sequence[str]], Awaitable[list[tuple[Entry, bytes]]]]
Expire = Callable[[Transaction], Awaitable[None]]

REMEMBERED = 4_096
"""How many entities are remembered, and how many places."""

NO_LIMITS = StoreLimits()
NONE = b"-"


class Whereabouts(NamedTuple):
    """Where something is stored; `settled` if a record or its creation said so, not if it is merely assumed."""

    tag: str
    settled: bool


class ServerClock:
    """The clock of the server, which all its clients share."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server

    def now_ms(self) -> int:
        return self._server.now_ms()


class Announcement:
    """The mark that a write leaves in the index, if it affects the index, before it is made.

    A process that finds the mark updates the index. The mark stays if the write was made, or if that is unknown.
    """

    def __init__(self, index: Index, ids: IdSource) -> None:
        self._index = index
        self._ids = ids
        self._stays = False
        self.token = ""
        self.is_out = False

    async def make(self, tx: Transaction) -> int:
        """Record what is about to change; returns the deadline for the change, 0 for none."""
        latest = 0
        if tx.entries:
            self.token = self.token or self._ids.new("mark")
            self.is_out = True
            latest = await self._index.mark(self.token, tuple(origin for _, _, origin in tx.entries.values()))
        # If the write is interrupted from here on, it is unknown whether it was made.
        self._stays = True
        return latest

    def refused(self) -> None:
        """Record that the write was not made."""
        self._stays = False

    async def withdraw(self) -> None:
        """Remove the mark, unless it has to stay."""
        if self.is_out and not self._stays:
            with contextlib.suppress(StoreError):
                await self._index.put((), unmark=(self.token,))


class Keyspace:
    """What the parts of a backend share. It remembers what it wrote, so that the next change needs no reading."""

    def __init__(self, server: RedisServer, namespace: str) -> None:
        self.server = server
        self.keys = Keys(server.prefix, namespace)
        self.index = Index(server, self.keys)
        self.ids: IdSource = RandomIds()
        self.project: Project | None = None
        self.expire: Expire | None = None
        self.state_ttl_ms: int | None = None
        self._cache: OrderedDict[str, Known[Any]] = OrderedDict()
        self._places: OrderedDict[str, Whereabouts] = OrderedDict()
        self._turns: dict[str, asyncio.Lock] = {}

    # -- where things are stored --------------------------------------------------------------------------

    async def locate(self, name: SessionId, *, fresh: bool = False) -> str:
        """The tag of the slot that holds the session or stream of this name, or would hold it by default."""
        if not fresh and name in self._places:
            self._places.move_to_end(name)
            return self._places[name].tag
        slot = self.keys.slot(name)
        ran = await self.run("place", (), (("HGET", slot.place(name), "tag"),), 0)
        found: bytes | None = ran.replies[0]
        tag = found.decode() if found else name
        self.place(name, tag, settled=found is not None)
        return tag

    def place(self, name: SessionId, tag: str, *, settled: bool = True) -> None:
        """Remember where a session is.

        A session that is not found there is looked for again, but a stream only if no session was seen there either.
        """
        self._places[name] = Whereabouts(tag, settled)
        self._places.move_to_end(name)
        if len(self._places) > REMEMBERED:
            self._places.popitem(last=False)

    # -- what is known ----------------------------------------------------------------------------------

    def take(self, key: str) -> Known[Any] | None:
        return self._cache.pop(key, None)

    def peek(self, key: str) -> Known[Any] | None:
        return self._cache.get(key)

    def forget(self) -> None:
        """Forget everything."""
        self._cache.clear()
        self._places.clear()

    def _keep(self, known: Known[Any]) -> None:
        self._cache[known.key] = known
        if len(self._cache) > REMEMBERED:
            self._cache.popitem(last=False)

    # -- reading and writing ----------------------------------------------------------------------------

    async def read(self, what: str, name: SessionId, work: Work[T], *, clock: Clock) -> T:
        """Run work that changes nothing, on a consistent view of the slot that holds a session."""
        again = False
        while True:
            certain = again or name not in self._places
            tag = await self.locate(name, fresh=again)
            tx = self._transaction(what, name, tag, clock, NO_LIMITS, fresh=True, certain=certain)
            try:
                return await work(tx)
            except LookAgainError:
                again = True

    async def write(
        self,
        what: str,
        name: SessionId,
        work: Work[T],
        *,
        clock: Clock,
        limits: StoreLimits = NO_LIMITS,
        tag: str | None = None,
    ) -> T:
        """Run work that changes the slot that holds a session, or the one with this tag.

        A refusal, or the finding that nothing needs to change, is always based on the server's answer, never on memory
        alone.
        """
        announcement = Announcement(self.index, self.ids)
        tries = 0
        try:
            while True:
                async with self._turn(tag or name) if tries else contextlib.nullcontext():
                    tx = await self._begin(what, name, clock, limits, tag=tag, again=tries > 0)
                    try:
                        result = await self._decide(tx, work)
                        if not tx.writes:
                            self._keep_all(tx)
                            return result
                        await self._commit(tx, announcement)
                    except LookAgainError:
                        tries = await self._next_try(tries)
                        continue
                if announcement.is_out:
                    await self._follow(tx, announcement.token)
                return result
        finally:
            await announcement.withdraw()

    async def _begin(
        self, what: str, name: SessionId, clock: Clock, limits: StoreLimits, *, tag: str | None, again: bool
    ) -> Transaction:
        """One try of a write: the first one trusts what is remembered, later ones ask the server."""
        certain = again or tag is not None or name not in self._places
        here = tag or await self.locate(name, fresh=again)
        return self._transaction(what, name, here, clock, limits, fresh=again, certain=certain)

    async def _decide(self, tx: Transaction, work: Work[T]) -> T:
        """Have the work decide what to change.

        Raises:
            LookAgainError: the work refused or found nothing to change, based on remembered data.
        """
        try:
            result = await work(tx)
            if self.expire is not None:
                await self.expire(tx)
        except Exception as refusal:
            if tx.used_cache and not isinstance(refusal, LookAgainError):
                raise LookAgainError(tx.what) from refusal
            raise
        for finish in tx.before_commit:
            finish()
        if tx.used_cache and not tx.writes:
            raise LookAgainError(tx.what)
        return result

    async def _commit(self, tx: Transaction, announcement: Announcement) -> None:
        """Make the change, announced beforehand if it affects the index, and remember the result.

        Raises:
            LookAgainError: something was no longer as expected; nothing was done.
        """
        latest = await announcement.make(tx)
        expectations = tx.expectations()
        ran = await self.run(tx.what, expectations, tx.commands, latest, write=True)
        tx.at_us = ran.at_us
        if ran.damaged:
            raise tx.damaged(str(ran.differs))
        if ran.differs is not None:
            announcement.refused()
            raise LookAgainError(ran.differs)
        revisions = dict(zip((key for key, kind, _ in expectations if kind != "#"), ran.revisions, strict=True))
        for known in tx.known.values():
            known.revision = revisions[known.key]
            if known.key in tx.touched:
                known.value = None
        for key in tx.touched:
            # What is remembered of it is out of date.
            self.take(key)
        self._keep_all(tx)

    def _keep_all(self, tx: Transaction) -> None:
        for known in tx.known.values():
            if known.revision and known.value is not None:
                self._keep(known)

    async def run(
        self,
        what: str,
        expectations: Sequence[tuple[str, str, bytes | int]],
        commands: Sequence[Command],
        latest_ms: int,
        *,
        write: bool = False,
    ) -> Ran:
        """Send one script: expectations first, then commands."""
        numbers: dict[str, int] = {}
        plan = [f"{latest_ms} {0 if write else 1} {len(expectations)}"]
        for key, kind, value in expectations:
            word = (value or NONE).decode() if isinstance(value, bytes) else value
            plan.append(f"{numbers.setdefault(key, len(numbers) + 1)} {kind} {word}")
        args: list[Any] = [""]
        for name, key, *rest in commands:
            number = 0 if key is None else numbers.setdefault(key, len(numbers) + 1)
            plan.append(f"{name} {number} {len(rest)}")
            args += rest
        args[0] = " ".join(plan)
        if write:
            line: bytes = await self.server.write(ATOMIC, what, tuple(numbers), args)
            code, at_us, *words = line.split()
            answer: list[Any] = [int(code), at_us, [b"" if word == NONE else word for word in words], []]
        else:
            answer = await self.server.read(ATOMIC, what, tuple(numbers), args)
        self.server.heard(answer[1])
        if answer[0] == 1:
            return Ran(answer[1], answer[2], answer[3], None, False)
        number = int(answer[2][0] if write else answer[2])
        differs = next((key for key, place in numbers.items() if place == number), "its time")
        return Ran(answer[1], [], [], differs, answer[0] == -1)

    def _transaction(
        self, what: str, name: str, tag: str, clock: Clock, limits: StoreLimits, *, fresh: bool, certain: bool
    ) -> Transaction:
        place = self._places.get(name)
        return Transaction(
            self,
            tag,
            self.slot(tag),
            what=what,
            now=clock.now_ms(),
            ids=self.ids,
            limits=limits,
            fresh=fresh,
            certain=certain,
            settled=place is not None and place.settled,
        )

    def slot(self, tag: str) -> Slot:
        """The slot of a tag."""
        return self.keys.slot(tag)

    @contextlib.asynccontextmanager
    async def _turn(self, name: str):
        """Tasks of this process whose writes collided here take turns, so that their retries do not collide again."""
        lock = self._turns.setdefault(name, asyncio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():
                self._turns.pop(name, None)

    async def _next_try(self, tries: int) -> int:
        if tries > 2:
            # Other processes compete too; uneven waits keep us from colliding again and again.
            await asyncio.sleep(random.uniform(0, min(0.001 * 2**tries, 0.05)))
        return tries + 1

    # -- the index --------------------------------------------------------------------------------------

    async def _follow(self, tx: Transaction, token: str) -> None:
        """Update the index. The change is already made; if this fails, the mark leaves the work to the next query."""
        entries = [(self._in_tree(entry, tx.tag), self._revision_of(tx, key)) for key, entry, _ in tx.entries.values()]
        with contextlib.suppress(StoreError):
            await self.index.put(entries, unmark=(token,))

    def _in_tree(self, entry: Entry, tag: str) -> Entry:
        """The entry, also listed with all others of its slot if sessions may expire and all have to be forgotten."""
        if self.state_ttl_ms is None or not entry.payload:
            return entry
        return entry._replace(orders=(*entry.orders, (tree_order(tag), 0.0)))

    def _revision_of(self, tx: Transaction, key: str) -> bytes:
        known = tx.known.get(key)
        return known.revision if known is not None and known.revision else tx.at_us

    async def find(self, *orders: str, **options: Any) -> Found:
        """Query the index, updating marked entries first."""
        found = await self.index.find(*orders, **options)
        # A query by id need not wait for other entries.
        wanted = None if orders else set(options.get("besides", ()))
        if not await self._repair(found.marks, wanted):
            return found
        return await self.index.find(*orders, **options)

    async def page(self, order: str, **options: Any) -> Found:
        """The same for a page of one order."""
        found = await self.index.page(order, **options)
        return await self.index.page(order, **options) if await self._repair(found.marks, None) else found

    async def entry(self, name: str, kind: type[T]) -> T | None:
        """The index's record of one thing, by its id."""
        found = await self.find(besides=[name])
        return decode(found.entries[0][1], kind) if found.entries else None

    async def doubt(self, origins: Sequence[tuple[str, ...]]) -> None:
        """Make the index check again entries that point to things that do not exist.

        Its node may have lost the news, as happens when one node takes over from another. For a thing that was only
        just deleted, the check changes nothing.
        """
        if origins:
            with contextlib.suppress(StoreError):
                await self.index.mark(self.ids.new("mark"), origins)

    async def _repair(self, marks: dict[str, Mark], wanted: set[str] | None) -> bool:
        """Update what is both marked and wanted; returns whether there was anything."""
        named = dict.fromkeys(origin for mark in marks.values() for origin in mark.origins)
        origins = [origin for origin in named if wanted is None or marked_id(origin) in wanted]
        if not origins or self.project is None:
            return False
        now = self.server.now_ms()
        projected = await asyncio.gather(*(self.project(kind, names) for kind, *names in origins))
        entries = [
            (self._in_tree(entry, tag), revision)
            for (_, tag, *_), found in zip(origins, projected, strict=True)
            for entry, revision in found
        ]
        lasts = CLUSTER_MARKS_LAST_MS if self.server.cluster else MARKS_LAST_MS
        old = [token for token, mark in marks.items() if mark.at < now - lasts] if wanted is None else []
        await self.index.put(entries, unmark=old)
        return True
