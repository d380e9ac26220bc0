"""The names by which durable engines know turns: operators find a conversation under the same name on each engine."""

import hashlib

from helix_agents.domain.ids import SessionId
from helix_agents.domain.runs import RunRecord

LONGEST_BYTES = 768
"""The part of a name that a session's id may take: Temporal allows 1,000 bytes."""


def name_turn(prefix: str, agent_type: str, session_id: SessionId, turn: int) -> str:
    """The workflow of a turn; the first turn has the plainest name."""
    name = f"{prefix}__{agent_type}__{name_session(session_id)}"
    return name if turn == 1 else f"{name}__resume-{turn}"


def name_session(session_id: SessionId) -> str:
    """A session's name in engines; an id that is too long for them is replaced by its beginning and a digest."""
    written = session_id.encode()
    if len(written) <= LONGEST_BYTES:
        return session_id
    return f"{session_id[:64]}~{hashlib.sha256(written).hexdigest()[:32]}"


def belongs_to(prefix: str, run: RunRecord) -> bool:
    """Whether a run's workflow has this prefix."""
    return run.workflow_id is not None and run.workflow_id.startswith(f"{prefix}__")


def prefix_of(run: RunRecord, agent_type: str) -> str | None:
    """The prefix of a run's workflow; None if it has no name, or one that was not made here."""
    rest = name_turn("", agent_type, run.session_id, run.turn)
    if run.workflow_id is None or not run.workflow_id.endswith(rest):
        return None
    return run.workflow_id.removesuffix(rest)


def workflow_of(run: RunRecord) -> str:
    """The workflow of this attempt."""
    assert run.workflow_id is not None
    return run.workflow_id if run.attempt == 1 else f"{run.workflow_id}__a{run.attempt}"
