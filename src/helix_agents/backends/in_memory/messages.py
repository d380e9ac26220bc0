"""The transcript: immutable rows, stored once, shared with branches."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, cast

from helix_agents.backends.in_memory.handle import Handle
from helix_agents.backends.in_memory.history import standing_at, with_messages
from helix_agents.backends.in_memory.lineage import MessageEntry, newest_messages
from helix_agents.backends.in_memory.rows import session_row
from helix_agents.domain import door
from helix_agents.domain.ids import SessionId
from helix_agents.domain.messages import Message, StoredMessage
from helix_agents.domain.paging import DEFAULT_LIMIT, Page, check_page
from helix_agents.domain.records import decode
from helix_agents.domain.session_changes import changed


def message_of(entry: MessageEntry) -> Message:
    """The message that was stored."""
    return decode(entry.data, cast("Any", Message))


def _stored(sequence: int, entry: MessageEntry) -> StoredMessage:
    return StoredMessage(sequence=sequence, message=message_of(entry), created_at=entry.created_at)


class InMemoryMessages(Handle):
    """The facet `Messages`."""

    async def append_messages(self, session_id: SessionId, messages: Sequence[Message]) -> int:
        door.check_messages(messages)
        async with self._writing("append_messages") as tx:
            row = session_row(tx.tables, session_id)
            if not messages:
                return row.record.message_count
            row = with_messages(tx, replace(row, record=changed(row.record, tx.now)), messages)
            tx.put(tx.tables.sessions, session_id, row)
        return row.record.message_count

    async def get_messages(
        self, session_id: SessionId, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[StoredMessage]:
        check_page(offset, limit)
        with self._reading() as tables:
            row = session_row(tables, session_id)
            total = row.record.message_count
            entries = tuple(islice(newest_messages(row.segment, max(0, total - offset)), limit))
        items = tuple(_stored(sequence, entry) for sequence, entry in entries)
        return Page(items=items, total=total, offset=offset, limit=limit)

    async def load_transcript(self, session_id: SessionId, *, after: int = 0) -> tuple[StoredMessage, ...]:
        with self._reading() as tables:
            row = session_row(tables, session_id)
            count = row.record.message_count
            entries = list(islice(newest_messages(row.segment, count), max(0, count - max(0, after))))
        return tuple(_stored(sequence, entry) for sequence, entry in reversed(entries))

    async def get_message_count(self, session_id: SessionId) -> int:
        with self._reading() as tables:
            return session_row(tables, session_id).record.message_count

    async def truncate_messages(self, session_id: SessionId, count: int) -> int:
        count = max(0, count)
        async with self._writing("truncate_messages") as tx:
            row = session_row(tx.tables, session_id)
            if count >= row.record.message_count:
                return row.record.message_count
            row = replace(row, record=changed(row.record, tx.now))
            row = standing_at(tx, row, row.segment, messages=count, states=row.state_count)
            tx.put(tx.tables.sessions, session_id, row)
        return count
