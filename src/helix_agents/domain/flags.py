"""A stop request: what writing one does, given what is there."""

from helix_agents.domain.runs import RunRecord
from helix_agents.domain.sessions import InterruptFlag, SessionState, StopKind


def raised(
    existing: InterruptFlag | None, run: RunRecord, kind: StopKind, reason: str | None, now: int
) -> InterruptFlag | None:
    """The flag to store, aimed at a run that is going; None when an abort of this run stands and nothing tops it."""
    aborts_it = existing is not None and existing.run_id == run.run_id and existing.kind == "abort"
    if aborts_it and kind == "interrupt":
        return None
    return InterruptFlag(run_id=run.run_id, kind=kind, reason=reason, set_at=now)


def aimed_at_current_run(session: SessionState, flag: InterruptFlag | None) -> InterruptFlag | None:
    """The flag, if it is meant for the run that is current now; one meant for an older run counts as none."""
    return flag if flag is not None and flag.run_id == session.current_run_id else None
