"""Turns that wait until their session is free: what is said in them, and the run that each will be."""

import hashlib

from msgspec.structs import replace

from helix_agents.domain.budgets import Budget
from helix_agents.domain.errors import QueueFullError
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.records import JSON, Record
from helix_agents.domain.runs import SUSPENDED, RunRecord

MOST_QUEUED = 100
"""So many turns may wait in one session: whoever sends more is told, and nothing grows without end."""


class QueuedTurn(Record):
    """A turn that begins when those before it are over. Its run has its id from the first, so that it begins once,
    whoever begins it, and whoever sent it finds it.

    A stop holds what waits. One that was sent after it goes on: the stop of that run, `after_stop_of`, holds nothing any
    more. A stop of a later one does.
    """

    session_id: SessionId
    run_id: RunId
    messages: tuple[UserMessage, ...]
    state: dict[str, JSON] | None = None
    expires_in_ms: int | None = None
    budget: Budget | None = None
    queued_at: int = 0
    after_stop_of: RunId | None = None


def run_id_for(session_id: SessionId, key: str) -> RunId:
    """The id of the run that a message with this key begins; it tells a repeated call for ever."""
    digest = hashlib.sha256(f"{session_id}\x1f{key}".encode()).hexdigest()
    return f"run_{digest[:26]}"


def sent_again(stored: QueuedTurn, turn: QueuedTurn) -> QueuedTurn:
    """A turn that waits, after it was sent once more: it stays as it is, but who sends it after a stop goes on."""
    return stored if turn.after_stop_of is None else replace(stored, after_stop_of=turn.after_stop_of)


def keeps_others_waiting(run: RunRecord | None) -> bool:
    """Whether a session's current run goes on, or waits for somebody: what comes after it has to wait."""
    return run is not None and (run.status == "running" or run.status in SUSPENDED)


def check_room(session_id: SessionId, waiting: int) -> None:
    """Let one more turn wait.

    Raises:
        QueueFullError: so many wait already.
    """
    if waiting >= MOST_QUEUED:
        raise QueueFullError(session_id, waiting)
