"""Callers' filters as SQL conditions; every value is bound."""

from typing import TypeAlias

from helix_agents.domain.pending import PendingFilter
from helix_agents.domain.usage import UsageFilter

Bound: TypeAlias = str | int


def pending_conditions(namespace: str, where: PendingFilter) -> tuple[str, list[Bound]]:
    """Conditions on the rows of pending calls in a namespace, which the statement calls `p`."""
    conditions: list[str] = []
    values: list[Bound] = []
    for column, value in (
        ("p.session_id =", where.session_id),
        ("p.root_session_id =", where.root_session_id),
        ("p.tool_name =", where.tool_name),
        ("p.kind =", where.kind),
        ("p.created_at <", where.created_before),
    ):
        if value is not None:
            conditions.append(f"{column} ?")
            values.append(value)
    if where.states:
        conditions.append(f"p.state IN ({', '.join('?' * len(where.states))})")
        values.extend(where.states)
    if where.user_id is not None:
        # A list of sessions rather than a condition on each call: a user has few sessions, while many calls of others
        # may wait.
        conditions.append(
            "p.session_id IN (SELECT s.session_id FROM __agents_sessions s WHERE s.namespace = ? AND s.user_id = ?)"
        )
        values.extend((namespace, where.user_id))
    return "".join(f" AND {condition}" for condition in conditions), values


def usage_conditions(where: UsageFilter) -> tuple[str, list[Bound]]:
    """Conditions on the rows of usage."""
    given: tuple[tuple[str, Bound | None], ...] = (
        ("session_id =", where.session_id),
        ("root_session_id =", where.root_session_id),
        ("run_id =", where.run_id),
        ("user_id =", where.user_id),
        ("agent_type =", where.agent_type),
        ("source_type =", where.source_type),
        ("source_name =", where.source_name),
        ("recorded_at >=", where.recorded_from),
        ("recorded_at <=", where.recorded_to),
    )
    held = [(column, value) for column, value in given if value is not None]
    return "".join(f" AND {column} ?" for column, _ in held), [value for _, value in held]
