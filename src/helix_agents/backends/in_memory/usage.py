"""Where usage is counted, across sessions."""

from collections.abc import Iterable, Sequence

import msgspec

from helix_agents.backends.in_memory.handle import Handle, own, page_of
from helix_agents.backends.in_memory.rows import tree
from helix_agents.backends.in_memory.transaction import Transaction
from helix_agents.domain import door
from helix_agents.domain.ids import SessionId
from helix_agents.domain.paging import DEFAULT_LIMIT, Page, check_page
from helix_agents.domain.usage import UsageEntry, UsageFilter, UsageOfDay, UsageRollup, by_day, matches, roll_up
from helix_agents.ports.usage_store import UsageStore


def record_usage(tx: Transaction, entries: Iterable[UsageEntry]) -> int:
    """Store entries; one that is already stored is not counted again. Returns how many were new."""
    new = 0
    for entry in entries:
        key = (entry.run_id, entry.attempt, entry.step, entry.n)
        if key not in tx.tables.usage:
            tx.put(tx.tables.usage, key, msgspec.structs.replace(entry, recorded_at=entry.recorded_at or tx.now))
            new += 1
    return new


class InMemoryUsageStore(Handle):
    """The usage of sessions, in a memory that may hold the sessions as well."""

    async def record_usage(self, entries: Sequence[UsageEntry]) -> int:
        private = [own(entry) for entry in entries]
        for entry in private:
            door.check_usage(entry)
        async with self._writing("record_usage") as tx:
            return record_usage(tx, private)

    async def query_usage(
        self, where: UsageFilter | None = None, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[UsageEntry]:
        check_page(offset, limit)
        if where is not None:
            door.check_numbers(where)
        asked = where or UsageFilter()
        with self._reading() as tables:
            found = [entry for entry in tables.usage.values() if matches(entry, asked)]
        found.sort(
            key=lambda entry: (entry.recorded_at, entry.run_id, entry.attempt, entry.step, entry.n), reverse=True
        )
        return page_of(found, offset, limit, own)

    async def get_usage_by_day(self, where: UsageFilter | None = None) -> tuple[UsageOfDay, ...]:
        asked = where or UsageFilter()
        door.check_numbers(asked)
        with self._reading() as tables:
            return by_day(entry for entry in tables.usage.values() if matches(entry, asked))

    async def get_usage_rollup(self, session_id: SessionId) -> UsageRollup:
        with self._reading() as tables:
            members = set(tree(tables, session_id))
            # Even where the sessions are not stored here, every usage entry knows its root.
            found = [
                entry
                for entry in tables.usage.values()
                if entry.session_id in members or entry.root_session_id == session_id
            ]
        return roll_up(found)

    async def delete_usage(self, session_id: SessionId) -> int:
        async with self._writing("delete_usage") as tx:
            keys = [key for key, entry in tx.tables.usage.items() if entry.session_id == session_id]
            for key in keys:
                tx.remove(tx.tables.usage, key)
        return len(keys)


_: type[UsageStore] = InMemoryUsageStore
