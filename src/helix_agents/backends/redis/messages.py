"""The transcript: immutable rows, stored once, shared with branches."""

from collections.abc import Sequence

from helix_agents.backends.redis.facet import Facet
from helix_agents.backends.redis.lineage import (
    add_messages,
    bring_messages,
    read_messages,
    session_line,
    stand_at,
)
from helix_agents.backends.redis.rows import last_seen, load_session, save_session
from helix_agents.backends.redis.transaction import Transaction
from helix_agents.domain import door
from helix_agents.domain.ids import SessionId
from helix_agents.domain.messages import Message, StoredMessage
from helix_agents.domain.paging import DEFAULT_LIMIT, Page, check_page
from helix_agents.domain.session_changes import changed


def _page(total: int, offset: int, limit: int) -> tuple[int, int]:
    """The first and the last number of a page that starts this far from the end."""
    last = total - offset
    return max(1, last - limit + 1), last


class RedisMessages(Facet):
    """The facet `Messages`."""

    async def append_messages(self, session_id: SessionId, messages: Sequence[Message]) -> int:
        door.check_messages(messages)

        async def work(tx: Transaction) -> int:
            known = await load_session(tx, session_id)
            if messages:
                known.value.record = changed(known.value.record, tx.now)
                add_messages(tx, known, messages)
            return known.value.record.message_count

        return await self._write("append_messages", session_id, work)

    async def get_messages(
        self, session_id: SessionId, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[StoredMessage]:
        check_page(offset, limit)

        async def work(tx: Transaction) -> Page[StoredMessage]:
            seen = last_seen(tx, session_id)
            if seen is not None:
                bring_messages(tx, seen, *_page(seen.record.message_count, offset, limit))
            known = await load_session(tx, session_id)
            total = known.value.record.message_count
            items = await read_messages(tx, known, *_page(total, offset, limit))
            return Page(items=tuple(reversed(items)), total=total, offset=offset, limit=limit)

        return await self._read("get_messages", session_id, work)

    async def load_transcript(self, session_id: SessionId, *, after: int = 0) -> tuple[StoredMessage, ...]:
        async def work(tx: Transaction) -> tuple[StoredMessage, ...]:
            seen = last_seen(tx, session_id)
            if seen is not None:
                bring_messages(tx, seen, max(0, after) + 1, seen.record.message_count)
            known = await load_session(tx, session_id)
            return tuple(await read_messages(tx, known, max(0, after) + 1, known.value.record.message_count))

        return await self._read("load_transcript", session_id, work)

    async def get_message_count(self, session_id: SessionId) -> int:
        async def work(tx: Transaction) -> int:
            return (await load_session(tx, session_id)).value.record.message_count

        return await self._read("get_message_count", session_id, work)

    async def truncate_messages(self, session_id: SessionId, count: int) -> int:
        count = max(0, count)

        async def work(tx: Transaction) -> int:
            known = await load_session(tx, session_id)
            session = known.value
            if count >= session.record.message_count:
                return session.record.message_count
            session.record = changed(session.record, tx.now)
            await stand_at(tx, known, session_line(session), messages=count, state=session.row.state)
            save_session(tx, known)
            return count

        return await self._write("truncate_messages", session_id, work)
