"""Where usage is counted, across sessions."""

import asyncio
from collections.abc import Iterable, Sequence

import msgspec

from helix_agents.backends.redis import index
from helix_agents.backends.redis.facet import Facet
from helix_agents.backends.redis.index import entry_id, names_of
from helix_agents.backends.redis.keyspace import NO_LIMITS, ServerClock
from helix_agents.backends.redis.projection import keyspace_on
from helix_agents.backends.redis.rows import RunEntry, Session, SessionEntry, find_session, tree
from helix_agents.backends.redis.server import RedisServer
from helix_agents.backends.redis.transaction import Known, Transaction
from helix_agents.backends.redis.usage_rows import field_of, unused_entry, used_entry
from helix_agents.domain import door
from helix_agents.domain.ids import SessionId
from helix_agents.domain.paging import DEFAULT_LIMIT, Page, check_page
from helix_agents.domain.records import decode, encode
from helix_agents.domain.usage import UsageEntry, UsageFilter, UsageOfDay, UsageRollup, by_day, matches, roll_up
from helix_agents.ports.clock import Clock
from helix_agents.ports.usage_store import UsageStore

TaggedSession = tuple[str, SessionId]


class RedisUsageStore(Facet):
    """The usage of sessions, beside the sessions if they are stored here too."""

    def __init__(self, server: RedisServer, *, namespace: str = "", clock: Clock | None = None) -> None:
        space = keyspace_on(server.use(), namespace)
        super().__init__(space, clock=clock or ServerClock(server), limits=NO_LIMITS)

    async def record_usage(self, entries: Sequence[UsageEntry]) -> int:
        by_session: dict[SessionId, list[UsageEntry]] = {}
        for entry in entries:
            door.check_usage(entry)
            by_session.setdefault(entry.session_id, []).append(entry)
        return sum([await self._record(session_id, given) for session_id, given in by_session.items()])

    async def _record(self, session_id: SessionId, entries: Sequence[UsageEntry]) -> int:
        async def work(tx: Transaction) -> int:
            session = await find_session(tx, session_id)
            key, guard_key = tx.slot.usage(session_id), tx.slot.usage_guard(session_id)
            guard: Known[None] = await tx.load(guard_key, (), lambda _: None)
            (rows,) = await tx.read(("HGETALL", key))
            there = {rows[n].decode() for n in range(0, len(rows), 2)}
            roots = {decode(rows[n + 1], UsageEntry).root_session_id for n in range(0, len(rows), 2)}
            new = {field_of(entry): entry for entry in reversed(entries) if field_of(entry) not in there}
            if not new:
                return 0
            tx.change(guard)
            for field, entry in new.items():
                stamped = msgspec.structs.replace(entry, recorded_at=entry.recorded_at or tx.now)
                tx.do("HSETNX", key, field, encode(stamped))
                roots.add(entry.root_session_id)
            if session is not None:
                # Set here, because from now on the session's steps add nothing to the index about its usage.
                roots.add(session.value.record.root_session_id)
                _mark(tx, session, used=True)
            tx.index(guard_key, used_entry(tx.tag, session_id, roots), ("u", tx.tag, session_id))
            return len(new)

        return await self._write("record_usage", session_id, work)

    async def query_usage(
        self, where: UsageFilter | None = None, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[UsageEntry]:
        check_page(offset, limit)
        found = await self._matching(where or UsageFilter())
        found.sort(key=lambda each: (each.recorded_at, each.run_id, each.attempt, each.step, each.n), reverse=True)
        return Page(items=tuple(found[offset : offset + limit]), total=len(found), offset=offset, limit=limit)

    async def get_usage_by_day(self, where: UsageFilter | None = None) -> tuple[UsageOfDay, ...]:
        return by_day(await self._matching(where or UsageFilter()))

    async def _matching(self, where: UsageFilter) -> list[UsageEntry]:
        door.check_numbers(where)
        places = await self._places(await self._orders_for(where))
        if where.session_id is not None:
            places = [place for place in places if place[1] == where.session_id]
        return [entry for entry in await self._entries(places) if matches(entry, where)]

    async def get_usage_rollup(self, session_id: SessionId) -> UsageRollup:
        async def work(tx: Transaction) -> set[TaggedSession]:
            if await find_session(tx, session_id) is None:
                return {(tx.tag, session_id)}
            return {(tx.tag, member) for member in await tree(tx, session_id)}

        members = await self._read("usage_rollup", session_id, work)
        # Even where the sessions are not stored here, every usage entry knows its root.
        places = {*members, *await self._places((f"used/{session_id}",))}
        names = {name for _, name in members}
        entries = await self._entries(sorted(places))
        return roll_up(e for e in entries if e.session_id in names or e.root_session_id == session_id)

    async def delete_usage(self, session_id: SessionId) -> int:
        orders = await self._orders_for(UsageFilter(session_id=session_id))
        places = [place for place in await self._places(orders) if place[1] == session_id]
        return sum([await self._delete(*place) for place in places])

    async def _delete(self, tag: str, session_id: SessionId) -> int:
        async def work(tx: Transaction) -> int:
            key, guard_key = tx.slot.usage(session_id), tx.slot.usage_guard(session_id)
            guard: Known[None] = await tx.load(guard_key, (), lambda _: None)
            session = await find_session(tx, session_id)
            (count,) = await tx.read(("HLEN", key))
            tx.change(guard)
            tx.do("UNLINK", key)
            if session is not None:
                _mark(tx, session, used=False)
            tx.index(guard_key, unused_entry(tx.tag, session_id, tx.now), ("u", tx.tag, session_id))
            return count

        return await self._write("delete_usage", session_id, work, tag=tag)

    async def _orders_for(self, where: UsageFilter) -> tuple[str, ...]:
        """The smallest orders that hold everything a filter can match."""
        root, session_id = where.root_session_id, where.session_id
        if root is not None:
            return (f"used/{root}",)
        if session_id is None and where.run_id is not None:
            run = await self._space.entry(entry_id("r", where.run_id), RunEntry)
            session_id = run.run.session_id if run is not None else None
        if session_id is None:
            return (index.USED,)
        # Earlier versions listed the usage of a child session under its root only.
        session = await self._space.entry(entry_id("s", session_id), SessionEntry)
        roots = () if session is None else (f"used/{session.session.root_session_id}",)
        return tuple(dict.fromkeys((f"used/{session_id}", *roots)))

    async def _places(self, orders: Iterable[str]) -> list[TaggedSession]:
        """The places of usage that these orders of the index list."""
        found = await self._space.find(*orders)
        named = dict.fromkeys(name for name, _ in found.entries)
        return [(tag, session_id) for tag, session_id in map(names_of, named)]

    async def _entries(self, places: Iterable[TaggedSession]) -> list[UsageEntry]:
        async def read(tag: str, session_id: SessionId) -> list[UsageEntry]:
            command = ("HVALS", self._space.slot(tag).usage(session_id))
            (rows,) = (await self._space.run("usage", (), (command,), 0)).replies
            return [decode(row, UsageEntry) for row in rows]

        return [entry for found in await asyncio.gather(*(read(*place) for place in places)) for entry in found]

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._keyspace.server.close()


def _mark(tx: Transaction, session: Known[Session], *, used: bool) -> None:
    """Record on the session whether the index lists its usage."""
    if session.value.row.used != used:
        session.value.set(used=used)
        tx.change(session)
        tx.do("HSET", session.key, *session.value.unstored()[0])


_: type[UsageStore] = RedisUsageStore
