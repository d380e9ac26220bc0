"""Errands: what a call gives another agent to do, under one name for the call and for the run that does it."""

from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.sessions import SessionState
from helix_agents.engine.effects import DELEGATED, PlannedCall

_OF_COMPANION = ".run"


def companion_run_id(call: SessionId) -> RunId:
    """The run that a companion call starts, by the id that was minted for the call."""
    return f"{call}{_OF_COMPANION}"


def errand_of_run(session: SessionState, run: RunRecord) -> str | None:
    """For whom a run works; None for one that stands on its own."""
    if session.parent_session_id is None:
        return None
    if session.mode == "persistent" and run.run_id.endswith(_OF_COMPANION):
        return run.run_id.removesuffix(_OF_COMPANION)
    return None if run.parent_run_id is None else _errand(run.parent_run_id, session.session_id)


def errand_of_call(
    run: RunRecord, planned: PlannedCall, *, begun_here: bool, companion: SessionId | None = None
) -> str | None:
    """What a call of this run gives to others. A companion that was spoken to by an earlier run goes on for this one,
    as any child does; the first time, the errand is the call's own."""
    if planned.child_session_id is None:
        return None
    if planned.kind in DELEGATED:
        return _errand(run.run_id, planned.child_session_id)
    if planned.kind != "companion":
        return None
    return planned.child_session_id if begun_here or companion is None else _errand(run.run_id, companion)


def _errand(run_id: RunId, child: SessionId) -> str:
    return f"{run_id}:{child}"
