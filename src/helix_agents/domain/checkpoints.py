"""A checkpoint: the boundary a committed step left behind, to rewind to or to branch from."""

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
        raise CheckpointNotFoundError(session_id, f"message {messages} of {count}")


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
