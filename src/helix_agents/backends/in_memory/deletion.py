"""How a session and everything below it is deleted while its branches stay whole."""

from helix_agents.backends.in_memory.entry_rows import delete_session_entries
from helix_agents.backends.in_memory.flags import flag_topic
from helix_agents.backends.in_memory.lineage import release
from helix_agents.backends.in_memory.memory import Memory, SharedStream
from helix_agents.backends.in_memory.rows import tree
from helix_agents.backends.in_memory.transaction import Transaction
from helix_agents.domain.ids import SessionId, StreamId


def delete_tree(tx: Transaction, memory: Memory, namespace: str, session_id: SessionId) -> None:
    """Remove the session and every session below it; a missing session is fine."""
    row = tx.tables.sessions.get(session_id)
    if row is None:
        return
    parent_id = row.record.parent_session_id
    if parent_id in tx.tables.children:
        others = [child for child in tx.tables.children[parent_id] if child != session_id]
        tx.put(tx.tables.children, parent_id, others)
    members = set(tree(tx.tables, session_id))
    for member in members:
        _delete_stream(tx, memory, namespace, tx.tables.sessions[member].record.stream_id or member)
        _delete_rows(tx, member)
    tx.afterwards(lambda: memory.wakeups.ring([flag_topic(namespace, member) for member in members]))
    for key in [key for key, entry in tx.tables.usage.items() if entry.session_id in members]:
        tx.remove(tx.tables.usage, key)


def _delete_rows(tx: Transaction, session_id: SessionId) -> None:
    tables = tx.tables
    for segment in tables.segments.get(session_id, ()):
        tx.afterwards(lambda segment=segment: release(segment))
    for run_id in tables.session_runs.get(session_id, ()):
        tx.remove(tables.runs, run_id)
        tx.remove(tables.starts, run_id)
    calls = tables.pending.get(tables.sessions[session_id].record.root_session_id, {})
    for call_id in [call_id for call_id, call in calls.items() if call.session_id == session_id]:
        tx.remove(calls, call_id)
    tx.remove(tables.pending, session_id)
    tx.remove(tables.flags, session_id)
    tx.remove(tables.staged, session_id)
    tx.remove(tables.effects, session_id)
    tx.remove(tables.queued, session_id)
    tx.remove(tables.taken, session_id)
    tx.remove(tables.refs, session_id)
    tx.remove(tables.checkpoints, session_id)
    tx.remove(tables.session_runs, session_id)
    tx.remove(tables.segments, session_id)
    tx.remove(tables.children, session_id)
    tx.remove(tables.sessions, session_id)
    delete_session_entries(tx, session_id)


def _delete_stream(tx: Transaction, memory: Memory, namespace: str, stream_id: StreamId) -> None:
    stream: SharedStream | None = memory.streams.get((namespace, stream_id))
    if stream is not None:
        tx.remove(memory.streams, (namespace, stream_id))
        tx.afterwards(stream.end_readers)
