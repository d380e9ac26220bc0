"""A stop request: what writing one does, and which commits consume it."""

from helix_agents.domain.commits import StepCommit
from helix_agents.domain.ids import RunId
from helix_agents.domain.sessions import InterruptFlag, SessionState, StopKind


def raised(
    existing: InterruptFlag | None, run_id: RunId, kind: StopKind, reason: str | None, now: int
) -> InterruptFlag | None:
    """The flag to store, aimed at the running run; None if an abort of this run already exists, which nothing
    overrides."""
    aborts_it = existing is not None and existing.run_id == run_id and existing.kind == "abort"
    if aborts_it and kind == "interrupt":
        return None
    return InterruptFlag(run_id=run_id, kind=kind, reason=reason, set_at=now)


def aimed_at_current_run(session: SessionState, flag: InterruptFlag | None) -> InterruptFlag | None:
    """The flag, if it is aimed at the run that is current now; a flag for an older run is ignored."""
    return flag if flag is not None and flag.run_id == session.current_run_id else None


def comes_first(flag: InterruptFlag | None, commit: StepCommit) -> bool:
    """Whether a run was asked to stop before the commit that suspends it: it then continues, to take the stop."""
    return commit.suspend and flag is not None and flag.run_id == commit.fence.run_id


def is_taken(flag: InterruptFlag | None, commit: StepCommit) -> bool:
    """Whether a commit consumes a flag; an abort that its run has not seen, and ends as interrupted, is left."""
    if flag is None or not commit.take_stop or flag.run_id != commit.fence.run_id:
        return False
    return flag.kind == "interrupt" or commit.run is None or commit.run.status != "interrupted"
