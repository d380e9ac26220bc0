"""Finding rows: a session, its current run, and the sessions below it."""

from collections.abc import Iterator

from helix_agents.backends.in_memory.tables import SessionRow, Tables
from helix_agents.domain.errors import SessionNotFoundError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.pending import PendingCall
from helix_agents.domain.runs import RunRecord


def session_row(tables: Tables, session_id: SessionId) -> SessionRow:
    """The session's row.

    Raises:
        SessionNotFoundError: there is no such session.
    """
    row = tables.sessions.get(session_id)
    if row is None:
        raise SessionNotFoundError(session_id)
    return row


def current_run(tables: Tables, session_id: SessionId) -> RunRecord | None:
    """The session's current run.

    Raises:
        SessionNotFoundError: there is no such session.
    """
    run_id = session_row(tables, session_id).record.current_run_id
    return None if run_id is None else tables.runs[run_id]


def is_running(tables: Tables, session_id: SessionId) -> bool:
    """Whether the session is there and its current run is going."""
    if session_id not in tables.sessions:
        return False
    run = current_run(tables, session_id)
    return run is not None and run.status == "running"


def tree(tables: Tables, session_id: SessionId) -> list[SessionId]:
    """The session and every session below it, each after its parent."""
    found = {session_id: None}
    ahead = [session_id]
    for member in ahead:
        # A session may name any parent, even one below itself: nobody is visited twice.
        new = [child for child in tables.children.get(member, ()) if child not in found]
        found.update(dict.fromkeys(new))
        ahead.extend(new)
    return ahead


def tree_calls(tables: Tables, session_id: SessionId) -> Iterator[PendingCall]:
    """The pending calls, in whatever state, that the session and the sessions below it own."""
    root = session_row(tables, session_id).record.root_session_id
    calls = tuple(tables.pending.get(root, {}).values())
    if root == session_id:
        yield from calls
        return
    members = set(tree(tables, session_id))
    yield from (call for call in calls if call.session_id in members)
