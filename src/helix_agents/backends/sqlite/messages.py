"""The transcript in SQLite."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from helix_agents.backends.session_rows import put_record, record_of
from helix_agents.backends.sqlite.branches import cut_back
from helix_agents.backends.sqlite.connection import Connection
from helix_agents.backends.sqlite.facet import Facet
from helix_agents.backends.sqlite.lineage import append_messages, read_messages
from helix_agents.backends.sqlite.rows import load_session, save_session
from helix_agents.domain.door import check_messages
from helix_agents.domain.ids import SessionId
from helix_agents.domain.messages import Message, StoredMessage
from helix_agents.domain.paging import DEFAULT_LIMIT, Page, check_page
from helix_agents.domain.session_changes import changed

T = TypeVar("T")

# Up to this many messages are read in the calling thread; more would block the event loop.
READ_INLINE = 100


class SQLiteMessages(Facet):
    """The messages of a session."""

    async def append_messages(self, session_id: SessionId, messages: Sequence[Message]) -> int:
        check_messages(messages)
        bodies = self._encoded(session_id, messages)
        now = self._clock.now_ms()

        def work(connection: Connection) -> int:
            row = load_session(connection, self._namespace, session_id)
            if bodies:
                before = row.version
                put_record(row, changed(record_of(row), now))
                append_messages(connection, row, bodies, now)
                self._state_writes.keep(row, before)
                save_session(connection, row)
            return row.message_count

        return await self._db.write(work)

    async def get_messages(
        self, session_id: SessionId, *, offset: int = 0, limit: int = DEFAULT_LIMIT
    ) -> Page[StoredMessage]:
        check_page(offset, limit)

        def work(connection: Connection, most: int | None) -> Page[StoredMessage] | None:
            row = load_session(connection, self._namespace, session_id)
            last = row.message_count - offset
            first = max(1, last - limit + 1)
            if most is not None and last - first >= most:
                return None
            found = read_messages(connection, row.segment, first, last)
            return Page(items=tuple(reversed(found)), total=row.message_count, offset=offset, limit=limit)

        return await self._read_messages(work)

    async def load_transcript(self, session_id: SessionId, *, after: int = 0) -> tuple[StoredMessage, ...]:
        def work(connection: Connection, most: int | None) -> tuple[StoredMessage, ...] | None:
            row = load_session(connection, self._namespace, session_id)
            if most is not None and row.message_count - after > most:
                return None
            return tuple(read_messages(connection, row.segment, after + 1, row.message_count))

        return await self._read_messages(work)

    async def _read_messages(self, work: Callable[[Connection, int | None], T | None]) -> T:
        """Read in the calling thread, or in another if the work returns None because there are too many messages."""
        found = await self._db.read_by_key(lambda connection: work(connection, READ_INLINE))
        if found is None:
            found = await self._db.read(lambda connection: work(connection, None))
        assert found is not None, "without a bound there are never too many"
        return found

    async def get_message_count(self, session_id: SessionId) -> int:
        def work(connection: Connection) -> int:
            return load_session(connection, self._namespace, session_id).message_count

        return await self._db.read_by_key(work)

    async def truncate_messages(self, session_id: SessionId, count: int) -> int:
        count, now = max(0, count), self._clock.now_ms()

        def work(connection: Connection) -> int:
            row = load_session(connection, self._namespace, session_id)
            if count < row.message_count:
                put_record(row, changed(record_of(row), now))
                cut_back(connection, row, row.segment, count, row.state_count)
                save_session(connection, row)
            return row.message_count

        return await self._db.write(work)
