"""Continuing where the last page ended: a cursor is the last key, and is valid only for the same prefix."""

import base64
import binascii
from collections.abc import AsyncIterator

from helix_agents.capabilities.calls import Call
from helix_agents.domain.capability_errors import InvalidInput
from helix_agents.domain.entries import Entry, EntryPage
from helix_agents.domain.records import JSON
from helix_agents.ports.entries import MOST_LISTED, EntryStore


async def every_entry(store: EntryStore, scope: str, *, values: bool = True) -> AsyncIterator[Entry]:
    """All entries of a scope in key order, however many there are."""
    after: str | None = None
    while True:
        page = await store.list_entries(scope, after=after, limit=MOST_LISTED, values=values)
        for entry in page.items:
            yield entry
        if not page.has_more:
            return
        after = page.items[-1].key


class Pager:
    """The pages of one call with `limit` and `cursor`."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def read(self, scope: str, prefix: str, *, values: bool) -> EntryPage:
        """The page that the call asks for."""
        after = self._after(prefix)
        limit: int = self._call.inputs["limit"]
        return await self._call.store.list_entries(scope, prefix=prefix, after=after, limit=limit, values=values)

    def end(self, last: str | None, total: int) -> dict[str, JSON]:
        """What the result says about further pages."""
        cursor = None if last is None else base64.urlsafe_b64encode(last.encode()).decode()
        return {"truncated": last is not None, "next_cursor": cursor, "total_count": total}

    def _after(self, prefix: str) -> str | None:
        cursor: str | None = self._call.inputs["cursor"]
        if not cursor:
            return None
        try:
            after = base64.urlsafe_b64decode(cursor.encode()).decode()
        except (binascii.Error, ValueError) as problem:
            raise InvalidInput("The cursor is none that an answer gave.", {"cursor": cursor[:80]}) from problem
        if not after.startswith(prefix):
            raise InvalidInput("The cursor belongs to another prefix.", {"cursor": cursor[:80]})
        return after
