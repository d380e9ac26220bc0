"""Messages that wait in a session: turns until it is free, and messages that the run in progress is to take in."""

import hashlib
from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple, TypeAlias, TypeGuard

from msgspec.structs import replace

from helix_agents.domain.budgets import Budget
from helix_agents.domain.errors import InvalidInputError, QueueFullError
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.messages import Message, UserMessage
from helix_agents.domain.records import JSON, Record
from helix_agents.domain.runs import SUSPENDED, RunRecord

MOST_QUEUED = 100
"""How many turns may wait in one session: beyond that the sender gets an error, so nothing grows without limit."""


STEERED = "steered"
"""Marks a user's message that a run took in while it was going; `metadata["helix"]` has this value."""


MESSAGES_ONLY = "a run in progress takes in messages only; leave it out, or use if_running='enqueue'"


class QueuedTurn(Record):
    """A turn that starts when those before it are over. Its run has an id from the start, so that it starts only once,
    whichever process starts it, and its sender can find it.

    If it `steers`, its messages are meant for the run in progress: the next step of that run takes them in. If the run
    ends first, it is a turn like any other, before those that do not steer.

    A stop holds back the turns that wait. A turn that was sent after the stop is not held back: `after_stop_of` names
    the run whose stop no longer counts. The stop of a later run does count.

    `place` orders turns that were moved: a smaller one comes first. `revision` counts the changes since it was sent, so
    that nobody starts it as it was before.
    """

    session_id: SessionId
    run_id: RunId
    messages: tuple[UserMessage, ...]
    state: dict[str, JSON] | None = None
    expires_in_ms: int | None = None
    budget: Budget | None = None
    queued_at: int = 0
    after_stop_of: RunId | None = None
    steers: bool = False
    place: int = 0
    revision: int = 0


class TakenTurn(Record):
    """A message that waited and that a run took in: it has no run of its own."""

    session_id: SessionId
    run_id: RunId
    taken_by: RunId


class QueueChange(Record):
    """A change to a turn that waits: other messages, whether it steers, or that it is to be the first."""

    messages: tuple[UserMessage, ...] | None = None
    steers: bool | None = None
    first: bool = False


class QueuedTurnChanged(Record):
    """The turn still waits, like this."""

    turn: QueuedTurn


class QueuedTurnDropped(Record):
    """The turn has left the queue and never starts."""

    run_id: RunId


class QueuedTurnBegun(Record):
    """It is too late: this run answers the message. It is the turn's own run, or the run that took the message in."""

    run_id: RunId


class NotQueued(Record):
    """No such turn waits, and no run answers it: it was dropped, or never waited here."""


ChangeOutcome: TypeAlias = QueuedTurnChanged | QueuedTurnBegun | NotQueued
DropOutcome: TypeAlias = QueuedTurnDropped | QueuedTurnBegun | NotQueued


def in_order(waiting: Iterable[QueuedTurn]) -> tuple[QueuedTurn, ...]:
    """Turns in the order in which they are taken or started, given in the order in which they arrived."""
    return tuple(sorted(waiting, key=lambda turn: (not turn.steers, turn.place)))


def changed(turn: QueuedTurn, change: QueueChange, waiting: Iterable[QueuedTurn]) -> QueuedTurn:
    """A waiting turn after a change; `waiting` are all turns of its queue.

    Raises:
        InvalidInputError: it cannot steer, because it brings what only a turn of its own can have.
    """
    steers = turn.steers if change.steers is None else change.steers
    if steers:
        check_steers(turn)
    place = turn.place if steers == turn.steers else 0
    if change.first:
        place = min((each.place for each in waiting if each.steers == steers), default=0) - 1
    messages = turn.messages if change.messages is None else change.messages
    return replace(turn, messages=messages, steers=steers, place=place, revision=turn.revision + 1)


def check_steers(turn: QueuedTurn) -> None:
    """Check that a run in progress could take a turn in and lose nothing of it.

    Raises:
        InvalidInputError: it could not; the message says what to do.
    """
    extra = _only_for_a_turn(turn)
    if extra:
        raise InvalidInputError(extra[0], MESSAGES_ONLY)


def _only_for_a_turn(turn: QueuedTurn) -> list[str]:
    given = {"state": turn.state, "budget": turn.budget}
    return [name for name, value in given.items() if value is not None]


def taken_in(turns: Iterable[QueuedTurn]) -> tuple[UserMessage, ...]:
    """The messages of these turns as the transcript of the run that takes them in shows them: marked, and each with an
    id, by which readers know it again."""
    return tuple(
        replace(
            message,
            id=message.id or f"{turn.run_id}.{place}",
            metadata={**message.metadata, "helix": STEERED},
        )
        for turn in turns
        for place, message in enumerate(turn.messages)
    )


def was_taken_in(message: UserMessage) -> bool:
    """Whether a run took this message in while it was going, so that no turn starts with it."""
    return message.metadata.get("helix") == STEERED


def asks_for_a_turn(message: Message) -> TypeGuard[UserMessage]:
    """Whether somebody began a turn with this message: it is shown, and no run that was going took it in."""
    return isinstance(message, UserMessage) and not message.hidden and not was_taken_in(message)


def said_last(messages: Sequence[Message]) -> list[UserMessage]:
    """What the user said last in a conversation: the message that began the turn, and those that it took in since."""
    said: list[UserMessage] = []
    for message in reversed(messages):
        if isinstance(message, UserMessage) and not message.hidden:
            said.append(message)
            if asks_for_a_turn(message):
                break
    return said[::-1]


def follows_a_step(messages: Iterable[Message]) -> bool:
    """Whether the first of these messages was taken in by the commit of a step: it came after all that the step did."""
    first = next(iter(messages), None)
    return isinstance(first, UserMessage) and was_taken_in(first)


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
    """A waiting turn after it was sent again: it is unchanged, except that a turn sent after a stop continues, and one
    that is now meant for the run in progress steers, if that run can take in all of it."""
    if turn.after_stop_of is not None:
        stored = replace(stored, after_stop_of=turn.after_stop_of)
    if turn.steers and not stored.steers and not _only_for_a_turn(stored):
        stored = replace(stored, steers=True, place=0, revision=stored.revision + 1)
    return stored


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
