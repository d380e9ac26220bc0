"""A checkpoint: the boundary left by a committed step, to rewind to or to branch from."""

from dataclasses import dataclass, field

from helix_agents.domain.errors import CheckpointNotFoundError
from helix_agents.domain.ids import CheckpointId, RunId, SessionId, StepId
from helix_agents.domain.records import Record
from helix_agents.domain.sessions import CheckpointSource, SessionStatus
from helix_agents.domain.writes import NO_WRITES, StepWrites

BEGINNING: CheckpointId = "beginning"
"""A point that every session can be rewound to or branched from: no messages, and the state the session was created
with. For a branch it is the beginning of the session it came from, as long as that session exists."""


def check_cut(session_id: SessionId, messages: int, count: int) -> None:
    """Check that a session has enough messages to be cut here.

    Raises:
        CheckpointNotFoundError: the session has fewer.
    """
    if not 0 <= messages <= count:
        raise CheckpointNotFoundError(session_id, asked_messages=messages, message_count=count)


@dataclass
class Cut:
    """A cut after a number of messages of a session, and the search up the session's history for the state that belongs
    to it.

    That is the state of the newest checkpoint within the cut: the session's own, or, before a branch started, that of
    the session it came from. Before the first checkpoint it is the state that the session was created with. If that
    session is gone, this cannot be known, and the branch gets the state that it started with.

    A store goes through the history stretch by stretch, newest first. In each it looks for a checkpoint `within`, and
    if there is none it calls `without_checkpoint`.
    """

    messages: int
    states: int
    _began_with: int | None = field(default=None, init=False)

    @property
    def within(self) -> tuple[int, int]:
        """The most messages and state writes that a checkpoint may cover."""
        return self.messages, self.states

    def without_checkpoint(self, *, owned: bool, made_with: int | None, messages: int, states: int) -> int | None:
        """How many state writes belong to the cut; None if the stretch above decides.

        Args:
            owned: Whether the stretch's session exists.
            made_with: How many state writes that session was created with, if it starts with this stretch.
            messages: How many messages of the stretch above are visible from this one.
            states: How many of its state writes are visible.
        """
        if self._began_with is None:
            self._began_with = made_with
        if self.messages >= messages and not owned:
            return (self._began_with or 0) if self.states else 0
        if self.messages >= messages and made_with is not None:
            return made_with
        self.messages, self.states = min(self.messages, messages), min(self.states, states)
        return None


class CheckpointMeta(Record):
    """The position of a commit: its step and the stream position it accounts for."""

    step_id: StepId
    step_count: int
    stream_sequence: int = 0


class Checkpoint(Record):
    """Messages by count, and the step's writes; the state is rebuilt from them on demand, never copied."""

    checkpoint_id: CheckpointId
    session_id: SessionId
    run_id: RunId | None = None
    step_id: StepId | None = None
    step_count: int
    status: SessionStatus
    message_count: int
    stream_sequence: int = 0
    writes: StepWrites = NO_WRITES
    source: CheckpointSource
    version: int
    created_at: int
