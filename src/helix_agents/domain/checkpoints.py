"""A checkpoint: the boundary a committed step left behind, to rewind to or to branch from."""

from dataclasses import dataclass, field

from helix_agents.domain.errors import CheckpointNotFoundError
from helix_agents.domain.ids import CheckpointId, RunId, SessionId, StepId
from helix_agents.domain.records import Record
from helix_agents.domain.sessions import CheckpointSource, SessionStatus
from helix_agents.domain.writes import NO_WRITES, StepWrites

BEGINNING: CheckpointId = "beginning"
"""Where every session can be rewound to or branched from: no messages, and the state it was made with. That of a branch
is the beginning of the session it came from, as long as that is there."""


def check_cut(session_id: SessionId, messages: int, count: int) -> None:
    """Let a cut pass at one of a session's messages.

    Raises:
        CheckpointNotFoundError: the session has fewer.
    """
    if not 0 <= messages <= count:
        raise CheckpointNotFoundError(session_id, asked_messages=messages, message_count=count)


@dataclass
class Cut:
    """A cut after so many messages of a session, on its way up the session's history to the state that belongs to it.

    That is the state of the newest checkpoint within the cut: the session's own, or, before a branch began, that of the
    session it came from; and before the first one that which the session was made with. Where that session is gone
    nobody knows, and the branch has that which it began with.

    A store goes from stretch to stretch of the history, the newest first. In each it looks for a checkpoint `within`,
    and where there is none it asks `without_checkpoint`.
    """

    messages: int
    states: int
    _began_with: int | None = field(default=None, init=False)

    @property
    def within(self) -> tuple[int, int]:
        """How many messages and state writes a checkpoint may stand behind."""
        return self.messages, self.states

    def without_checkpoint(self, *, owned: bool, made_with: int | None, messages: int, states: int) -> int | None:
        """How many state writes belong to the cut, or None: that is decided in the stretch above.

        Args:
            owned: Whether the stretch's session is there.
            made_with: How many state writes that session was made with, if it begins with this stretch.
            messages: How many messages of the stretch above are seen from this one.
            states: How many of its state writes are.
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
    """Where a commit stands: its step and the stream position it answers for."""

    step_id: StepId
    step_count: int
    stream_sequence: int = 0


class Checkpoint(Record):
    """Messages by count and the step's writes; the state is rebuilt from them on demand, never copied."""

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
