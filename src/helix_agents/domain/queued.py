"""Turns that wait until their session is free: their messages, and the run that each will become."""

import hashlib
from collections.abc import Iterable, Set
from typing import NamedTuple

from msgspec.structs import replace

from helix_agents.domain.budgets import Budget
from helix_agents.domain.errors import QueueFullError
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.messages import UserMessage
from helix_agents.domain.records import JSON, Record
from helix_agents.domain.runs import SUSPENDED, RunRecord

MOST_QUEUED = 100
"""How many turns may wait in one session: beyond that the sender gets an error, so nothing grows without limit."""


class QueuedTurn(Record):
    """A turn that starts when those before it are over. Its run has an id from the start, so that it starts only once,
    whichever process starts it, and its sender can find it.

    A stop holds back the turns that wait. A turn that was sent after the stop is not held back: `after_stop_of` names
    the run whose stop no longer counts. The stop of a later run does count.
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
    """The id of the run that a message with this key starts; a repeated call is recognised by it forever."""
    digest = hashlib.sha256(f"{session_id}\x1f{key}".encode()).hexdigest()
    return f"run_{digest[:26]}"


class WaitingMessage(NamedTuple):
    """A message of a turn that waits, as pages show it. If its id is the message's own, sending the message again joins
    the turn; any other message is named after its run and its place."""

    id: str
    turn: QueuedTurn
    message: UserMessage


def waiting_messages(queued: Iterable[QueuedTurn], begun: Set[str | None]) -> tuple[WaitingMessage, ...]:
    """The visible messages of turns that wait, without turns that have started since: `begun` are the ids of the
    current run and of the messages in the conversation, as far as they have any, read after the queue."""
    found: list[WaitingMessage] = []
    for turn in queued:
        if not (begun - {None}).isdisjoint((turn.run_id, *(message.id for message in turn.messages))):
            continue
        for place, message in enumerate(turn.messages):
            joins = message.id is not None and run_id_for(turn.session_id, message.id) == turn.run_id
            name = message.id if message.id is not None and joins else f"{turn.run_id}.{place}"
            if not message.hidden:
                found.append(WaitingMessage(id=name, turn=turn, message=message))
    return tuple(found)


def sent_again(stored: QueuedTurn, turn: QueuedTurn) -> QueuedTurn:
    """A waiting turn after it was sent again: it is unchanged, except that a turn sent after a stop continues."""
    return stored if turn.after_stop_of is None else replace(stored, after_stop_of=turn.after_stop_of)


def kept_alive(expires_at: int | None, turn: QueuedTurn, now: int) -> int | None:
    """When a session expires after a turn was queued in it. Whoever sends a message takes part in the session, which
    therefore lives on; it never ends sooner because of a message."""
    if expires_at is None or turn.expires_in_ms is None:
        return expires_at
    return max(expires_at, now + turn.expires_in_ms)


def keeps_others_waiting(run: RunRecord | None) -> bool:
    """Whether a session's current run is running or waits for an answer: what comes after it has to wait."""
    return run is not None and (run.status == "running" or run.status in SUSPENDED)


def check_room(session_id: SessionId, waiting: int) -> None:
    """Check that one more turn may wait.

    Raises:
        QueueFullError: the maximum is waiting already.
    """
    if waiting >= MOST_QUEUED:
        raise QueueFullError(session_id, waiting)
