"""Errands: the work that a call gives to another agent, under one name for the call and for the run that does it."""

from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.sessions import SessionState
from helix_agents.engine.effects import DELEGATED, PlannedCall

_OF_COMPANION = ".run"


def companion_run_id(call: SessionId) -> RunId:
    """The run that a companion call starts, from the id that was made for the call."""
    return f"{call}{_OF_COMPANION}"


def errand_of_run(session: SessionState, run: RunRecord) -> str | None:
    """The errand that a run works on; None for a run that works for no call."""
    if session.parent_session_id is None:
        return None
    if session.mode == "persistent" and run.run_id.endswith(_OF_COMPANION):
        return run.run_id.removesuffix(_OF_COMPANION)
    return None if run.parent_run_id is None else _errand(run.parent_run_id, session.session_id)


def errand_of_call(
    run: RunRecord, planned: PlannedCall, *, begun_here: bool, companion: SessionId | None = None
) -> str | None:
    """The errand that a call of this run gives to others.

    If an earlier run spoke to the companion, it continues for this run like any other child; the first time, the errand
    is named by the call itself.
    """
    if planned.child_session_id is None:
        return None
    if planned.kind in DELEGATED:
        return _errand(run.run_id, planned.child_session_id)
    if planned.kind != "companion":
        return None
    return planned.child_session_id if begun_here or companion is None else _errand(run.run_id, companion)


def _errand(run_id: RunId, child: SessionId) -> str:
    return f"{run_id}:{child}"
