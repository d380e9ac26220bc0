"""Under which names durable engines know turns: an operator finds the same conversation by the same name on each."""

import hashlib

from helix_agents.domain.ids import SessionId
from helix_agents.domain.runs import RunRecord

LONGEST_BYTES = 768
"""So much of a name may be a session's id: Temporal takes 1,000 bytes."""


def name_turn(prefix: str, agent_type: str, session_id: SessionId, turn: int) -> str:
    """The workflow of a turn; the first one has the plainest name."""
    name = f"{prefix}__{agent_type}__{name_session(session_id)}"
    return name if turn == 1 else f"{name}__resume-{turn}"


def name_session(session_id: SessionId) -> str:
    """A session as engines know it; an id that is longer than they take stands there by its beginning and a digest."""
    written = session_id.encode()
    if len(written) <= LONGEST_BYTES:
        return session_id
    return f"{session_id[:64]}~{hashlib.sha256(written).hexdigest()[:32]}"


def belongs_to(prefix: str, run: RunRecord) -> bool:
    """Whether a run's workflow is one of those with this prefix."""
    return run.workflow_id is not None and run.workflow_id.startswith(f"{prefix}__")


def prefix_of(run: RunRecord, agent_type: str) -> str | None:
    """With which prefix a run's workflow was named; None where it has no name, or one that was not made here."""
    rest = name_turn("", agent_type, run.session_id, run.turn)
    if run.workflow_id is None or not run.workflow_id.endswith(rest):
        return None
    return run.workflow_id.removesuffix(rest)


def workflow_of(run: RunRecord) -> str:
    """The workflow of this attempt."""
    assert run.workflow_id is not None
    return run.workflow_id if run.attempt == 1 else f"{run.workflow_id}__a{run.attempt}"
