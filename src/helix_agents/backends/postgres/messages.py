"""The transcript in Postgres."""

from collections.abc import Sequence

from helix_agents.backends.postgres.branches import cut_back
from helix_agents.backends.postgres.connection import Connection
from helix_agents.backends.postgres.facet import Facet
from helix_agents.backends.postgres.lineage import append_messages, messages_of
from helix_agents.backends.postgres.rows import load_session, put, save_session
from helix_agents.backends.session_rows import record_of
from helix_agents.domain.door import check_messages
from helix_agents.domain.errors import SessionNotFoundError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.messages import Message, StoredMessage
from helix_agents.domain.paging import DEFAULT_LIMIT, MAX_OFFSET, Page, check_page
from helix_agents.domain.session_changes import changed

# The session and its messages from `first` to `last`, with their total, in one statement and so as of one moment.
_MESSAGES = """
WITH RECURSIVE s AS (
    SELECT segment, message_count, {first} AS first, {last} AS last
    FROM __agents_sessions WHERE namespace = ?1 AND session_id = ?2
), chain AS (
    SELECT g.segment, g.parent, g.message_boundary AS low, s.message_count AS high
    FROM s JOIN __agents_segments g ON g.segment = s.segment
    UNION ALL
    SELECT g.segment, g.parent, g.message_boundary, least(c.low, c.high)
    FROM s, chain c JOIN __agents_segments g ON g.segment = c.parent WHERE c.low >= greatest(s.first, 1)
)
SELECT (
    SELECT string_agg('{{"sequence":' || m.sequence || ',"created_at":' || m.created_at || ',"message":' || m.body
        || '}}', ',' ORDER BY m.sequence)
    FROM chain c JOIN __agents_messages m
        ON m.id BETWEEN (c.segment << 32) + greatest(c.low + 1, s.first) AND (c.segment << 32) + least(c.high, s.last)
), s.message_count FROM s
"""
_TRANSCRIPT = _MESSAGES.format(first="?3::bigint", last="message_count")
_PAGE = _MESSAGES.format(first="message_count - ?3::bigint - ?4::bigint + 1", last="message_count - ?3::bigint")


class PostgresMessages(Facet):
    """The messages of a session."""

    async def append_messages(self, session_id: SessionId, messages: Sequence[Message]) -> int:
        check_messages(messages)
        bodies = self._encoded(session_id, messages)
        now = self._clock.now_ms()

        async def work(connection: Connection) -> int:
            row = await load_session(connection, self._namespace, session_id)
            if bodies:
                before = row.version
                put(row, changed(record_of(row), now))
                await append_messages(connection, row, bodies, now)
                self._state_writes.keep(row, before, connection)
                await save_session(connection, row)
            return row.message_count

        return await self._db.write(work)

    async def get_messages(
        self, session_id: SessionId, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[StoredMessage]:
        check_page(offset, limit)
        row = await self._db.one(_PAGE, (self._namespace, session_id, offset, limit))
        if row is None:
            raise SessionNotFoundError(session_id)
        return Page(items=tuple(reversed(messages_of(row[0]))), total=row[1], offset=offset, limit=limit)

    async def load_transcript(self, session_id: SessionId, *, after: int = 0) -> tuple[StoredMessage, ...]:
        first = min(max(after, 0), MAX_OFFSET) + 1
        row = await self._db.one(_TRANSCRIPT, (self._namespace, session_id, first))
        if row is None:
            raise SessionNotFoundError(session_id)
        return tuple(messages_of(row[0]))

    async def get_message_count(self, session_id: SessionId) -> int:
        row = await self._db.one(
            "SELECT message_count FROM __agents_sessions WHERE namespace = ? AND session_id = ?",
            (self._namespace, session_id),
        )
        if row is None:
            raise SessionNotFoundError(session_id)
        return row[0]

    async def truncate_messages(self, session_id: SessionId, count: int) -> int:
        count, now = max(0, count), self._clock.now_ms()

        async def work(connection: Connection) -> int:
            row = await load_session(connection, self._namespace, session_id)
            if count < row.message_count:
                put(row, changed(record_of(row), now))
                await cut_back(connection, row, row.segment, count, row.state_count)
                await save_session(connection, row)
            return row.message_count

        return await self._db.write(work)
