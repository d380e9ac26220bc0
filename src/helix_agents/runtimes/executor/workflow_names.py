"""Under which names durable engines know turns: an operator finds the same conversation by the same name on each."""

from helix_agents.domain.ids import SessionId
from helix_agents.domain.runs import RunRecord


def name_turn(prefix: str, agent_type: str, session_id: SessionId, turn: int) -> str:
    """The workflow of a turn; the first one has the plainest name."""
    name = f"{prefix}__{agent_type}__{session_id}"
    return name if turn == 1 else f"{name}__resume-{turn}"


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
