"""Index entries rebuilt from the sessions themselves, to complete the work of marks left behind by dead processes."""

from collections.abc import Sequence

from helix_agents.backends.redis.expiry import Expiry
from helix_agents.backends.redis.index import Entry, entry_id, gone
from helix_agents.backends.redis.keyspace import Keyspace
from helix_agents.backends.redis.memory_rows import MemoryKeys, counts_of, memories_entry, read_counts
from helix_agents.backends.redis.pending import call_entry
from helix_agents.backends.redis.rows import read_run, read_session, run_entry, run_row, session_entry, session_of
from helix_agents.backends.redis.server import RedisServer
from helix_agents.backends.redis.stream_rows import read_stream, stream_entry, stream_of
from helix_agents.backends.redis.usage_rows import used_entry
from helix_agents.domain.ids import SessionId, StreamId, ToolCallId, check_id
from helix_agents.domain.memories import EntityId
from helix_agents.domain.pending import PendingCall
from helix_agents.domain.records import decode
from helix_agents.domain.usage import UsageEntry


class Projection:
    """Reads what one mark names; every entry comes with the revision it was read at."""

    def __init__(self, space: Keyspace) -> None:
        self._space = space

    async def __call__(self, kind: str, names: Sequence[str]) -> list[tuple[Entry, bytes]]:
        tag, *rest = names
        match kind, rest:
            case "s", [session_id]:
                return [await self._session(tag, session_id)]
            case "r", [session_id, run_id]:
                return [await self._run(tag, session_id, run_id)]
            case "c", [root, call_id]:
                return [await self._call(tag, root, call_id)]
            case "u", [session_id]:
                return [await self._usage(tag, session_id)]
            case "m", [entity]:
                return [await self._memories(tag, entity)]
            case "h", [stream_id]:
                return [await self._stream(tag, stream_id)]
            case _:
                return []

    async def _session(self, tag: str, session_id: SessionId) -> tuple[Entry, bytes]:
        slot = self._space.slot(tag)
        key = slot.session(session_id)
        ran = await self._space.run("project", ((key, "?", b""),), (read_session(slot, session_id),), 0)
        session = session_of(ran.replies[0], ran.revisions[0], session_id)
        if session is None:
            return gone(entry_id("s", session_id), self._space.server.now_ms()), ran.at_us
        return session_entry(tag, session), ran.revisions[0]

    async def _run(self, tag: str, session_id: SessionId, run_id: str) -> tuple[Entry, bytes]:
        slot = self._space.slot(tag)
        watch = ((slot.session(session_id), "?", b""),)
        ran = await self._space.run("project", watch, (read_run(slot, session_id, run_id),), 0)
        row = run_row(*ran.replies[0])
        if row is None:
            return gone(entry_id("r", run_id), self._space.server.now_ms()), ran.at_us
        return run_entry(tag, row.run), ran.revisions[0]

    async def _call(self, tag: str, root: SessionId, call_id: ToolCallId) -> tuple[Entry, bytes]:
        slot = self._space.slot(tag)
        reads = (("HGET", slot.pending(root), call_id), ("HGET", slot.ended_calls(root), call_id))
        ran = await self._space.run("project", ((slot.pending(root), "?", b""),), reads, 0)
        row = ran.replies[0] or ran.replies[1]
        if row is None:
            return gone(entry_id("c", call_id, root), self._space.server.now_ms()), ran.at_us
        return call_entry(tag, decode(row, PendingCall)), ran.revisions[0]

    async def _usage(self, tag: str, session_id: SessionId) -> tuple[Entry, bytes]:
        slot = self._space.slot(tag)
        ran = await self._space.run("project", (), (("HVALS", slot.usage(session_id)),), 0)
        rows = ran.replies[0]
        if not rows:
            return gone(entry_id("u", tag, session_id), self._space.server.now_ms()), ran.at_us
        return used_entry(tag, session_id, [decode(row, UsageEntry).root_session_id for row in rows]), ran.at_us

    async def _memories(self, tag: str, entity: EntityId) -> tuple[Entry, bytes]:
        keys = MemoryKeys(self._space.slot(tag))
        ran = await self._space.run("project", ((keys.head, "?", b""),), (read_counts(keys),), 0)
        counts = counts_of(ran.replies[0])
        revision = ran.revisions[0] if counts.sources else ran.at_us
        return memories_entry(entity, counts, self._space.server.now_ms()), revision

    async def _stream(self, tag: str, stream_id: StreamId) -> tuple[Entry, bytes]:
        slot = self._space.slot(tag)
        watch = ((slot.stream(stream_id), "?", b""),)
        ran = await self._space.run("project", watch, (read_stream(slot, stream_id),), 0)
        stream = stream_of(ran.replies[0])
        if stream is None:
            return gone(entry_id("h", stream_id), self._space.server.now_ms()), ran.at_us
        return stream_entry(tag, stream.head), ran.revisions[0]


def keyspace_on(server: RedisServer, namespace: str) -> Keyspace:
    """The namespace on this server, one for all parts that share the server."""
    if namespace:
        check_id(namespace, "namespace")
    spaces = server.keyspaces
    if namespace not in spaces:
        space = Keyspace(server, namespace)
        space.project = Projection(space)
        space.expire = Expiry(space)
        spaces[namespace] = space
    return spaces[namespace]
