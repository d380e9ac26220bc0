"""History stored once: sessions and branches share segments of messages and state writes."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile

from helix_agents.domain.ids import SessionId
from helix_agents.domain.records import JSON, encode
from helix_agents.domain.writes import WriteOp, apply_writes


@dataclass(frozen=True, slots=True)
class MessageEntry:
    """One message as JSON, and when it arrived."""

    data: bytes
    created_at: int


@dataclass(frozen=True, slots=True)
class StateEntry:
    """The writes of one commit, and now and then the whole state after them.

    `weight` is the size of the writes since the last full state, `kept` the size of that state.
    """

    ops: tuple[WriteOp, ...]
    weight: int
    kept: int
    state: dict[str, JSON] | None


@dataclass(slots=True, eq=False)
class Segment:
    """A stretch of history with a log of messages and one of state writes, both numbered from 1.

    Numbers up to a boundary belong to the parent, those above it to the segment itself. Only the session that owns a
    segment and stands on it appends to it. A segment without an owner lives as long as another one sees a part of it.
    """

    owner: SessionId | None
    parent: "Segment | None" = None
    message_boundary: int = 0
    state_boundary: int = 0
    messages: list[MessageEntry] = field(default_factory=list[MessageEntry])
    states: list[StateEntry] = field(default_factory=list[StateEntry])
    children: "list[Segment]" = field(default_factory=list["Segment"])


def fork(segment: Segment, owner: SessionId, *, messages: int, states: int) -> Segment:
    """A new segment that sees this many messages and state writes of another one, at constant cost.

    Its parent is the oldest segment that holds both ends, so it keeps nothing alive that it cannot see.
    """
    while segment.parent and messages <= segment.message_boundary and states <= segment.state_boundary:
        segment = segment.parent
    return Segment(owner=owner, parent=segment, message_boundary=messages, state_boundary=states)


def newest_messages(segment: Segment, count: int) -> Iterator[tuple[int, MessageEntry]]:
    """The first `count` messages with their numbers, the newest first."""
    part: Segment | None = segment
    while part is not None and count > 0:
        for number in range(count, part.message_boundary, -1):
            yield number, part.messages[number - part.message_boundary - 1]
        count = min(count, part.message_boundary)
        part = part.parent


def messages_after(segment: Segment, number: int, most: int) -> list[MessageEntry]:
    """The messages of a segment after this number, the oldest first."""
    last = min(segment.message_boundary + len(segment.messages), number + most)
    newest = newest_messages(segment, last)
    return [entry for _, entry in takewhile(lambda each: each[0] > number, newest)][::-1]


def newest_states(segment: Segment, count: int) -> Iterator[StateEntry]:
    """The first `count` entries of the state log, the newest first."""
    part: Segment | None = segment
    while part is not None and count > 0:
        for number in range(count, part.state_boundary, -1):
            yield part.states[number - part.state_boundary - 1]
        count = min(count, part.state_boundary)
        part = part.parent


def state_at(segment: Segment, count: int) -> dict[str, JSON]:
    """The custom state after the first `count` state writes, built on the last full state."""
    later: list[StateEntry] = []
    state: dict[str, JSON] = {}
    for entry in newest_states(segment, count):
        if entry.state is not None:
            state = entry.state
            break
        later.append(entry)
    return apply_writes(state, (op for entry in reversed(later) for op in entry.ops))


def next_state_entry(segment: Segment, count: int, ops: tuple[WriteOp, ...], state: dict[str, JSON]) -> StateEntry:
    """The entry after the first `count` ones. It holds the full state if the writes since the last one outweigh it."""
    before = next(newest_states(segment, count), None)
    weight = len(encode(ops)) + (before.weight if before else 0)
    kept = before.kept if before else 0
    if weight <= kept:
        return StateEntry(ops, weight, kept, None)
    return StateEntry(ops, 0, len(encode(state)), state)


def release(segment: Segment) -> None:
    """Remove the owner, and erase what no session sees any more, here and further back."""
    segment.owner = None
    part: Segment | None = segment
    while part is not None and part.owner is None:
        if part.children:
            seen = max(child.message_boundary for child in part.children)
            del part.messages[max(0, seen - part.message_boundary) :]
            seen = max(child.state_boundary for child in part.children)
            del part.states[max(0, seen - part.state_boundary) :]
            return
        if part.parent is not None:
            part.parent.children.remove(part)
        part.messages.clear()
        part.states.clear()
        part = part.parent
