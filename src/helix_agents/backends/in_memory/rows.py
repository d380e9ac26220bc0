"""Row lookups: a session, its current run, and the sessions below it."""

from collections.abc import Iterator

from helix_agents.backends.in_memory.tables import SessionRow, Tables
from helix_agents.domain.commits import is_detached
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
    """Whether the session exists and its current run is going."""
    if session_id not in tables.sessions:
        return False
    run = current_run(tables, session_id)
    return run is not None and run.status == "running"


def tree(tables: Tables, session_id: SessionId) -> list[SessionId]:
    """The session and every session below it, each after its parent."""
    found = {session_id: None}
    ahead = [session_id]
    for member in ahead:
        # A session may name any parent, even one below itself, so no session is visited twice.
        new = [child for child in tables.children.get(member, ()) if child not in found]
        found.update(dict.fromkeys(new))
        ahead.extend(new)
    return ahead


def tree_calls(tables: Tables, session_id: SessionId) -> Iterator[PendingCall]:
    """The pending calls, in any state, that the session and the sessions below it own."""
    root = session_row(tables, session_id).record.root_session_id
    calls = tuple(tables.pending.get(root, {}).values())
    if root == session_id:
        yield from calls
        return
    members = set(tree(tables, session_id))
    yield from (call for call in calls if call.session_id in members)


def driver_of(tables: Tables, session_id: SessionId) -> SessionId:
    """The session whose run drives this one: the nearest detached companion, itself or above, or else the root."""
    member: SessionId | None = session_id
    seen: set[SessionId] = set()
    while member in tables.sessions and member not in seen:
        seen.add(member)
        record = tables.sessions[member].record
        if is_detached(record, current_run(tables, member)):
            return member
        member = record.parent_session_id
    return session_row(tables, session_id).record.root_session_id


def driven_calls(tables: Tables, session_id: SessionId) -> Iterator[PendingCall]:
    """The tree's calls, except those of companions that are driven on their own."""
    driver = driver_of(tables, session_id)
    yield from (call for call in tree_calls(tables, session_id) if driver_of(tables, call.session_id) == driver)
