"""What writing a stop does, given what is there, and which commits answer it."""

import pytest

from helix_agents.domain.commits import StepCommit
from helix_agents.domain.flags import aimed_at_current_run, comes_first, is_taken, raised
from helix_agents.domain.runs import RunRecord, RunStatus, RunUpdate
from helix_agents.domain.sessions import InterruptFlag, SessionState, StopKind

RUN = RunRecord(run_id="r-1", session_id="s-1", turn=1, started_at=0)


def flag(kind: StopKind = "interrupt", run_id: str = "r-1") -> InterruptFlag:
    return InterruptFlag(run_id=run_id, kind=kind, reason="first", set_at=1)


@pytest.mark.parametrize(
    ("existing", "kind"),
    [
        (None, "interrupt"),
        (flag(), "interrupt"),
        (flag(), "abort"),
        (flag("abort"), "abort"),
        (flag("abort", "r-0"), "interrupt"),
    ],
)
def test_a_stop_is_aimed_at_the_run_that_is_going(existing: InterruptFlag | None, kind: StopKind):
    assert raised(existing, RUN.run_id, kind, "now", 5) == InterruptFlag(
        run_id="r-1", kind=kind, reason="now", set_at=5
    )


def test_an_interrupt_does_not_replace_an_abort():
    assert raised(flag("abort"), RUN.run_id, "interrupt", "now", 5) is None


def test_a_stop_for_an_older_run_counts_as_none():
    session = SessionState(session_id="s-1", root_session_id="s-1", agent_type="writer", current_run_id="r-1")
    assert aimed_at_current_run(session, None) is None
    assert aimed_at_current_run(session, flag()) == flag()
    assert aimed_at_current_run(session, flag(run_id="r-0")) is None


def test_a_stop_comes_before_the_commit_that_suspends_its_run():
    suspending = StepCommit(fence=RUN.fence, step=1, suspend=True)
    assert comes_first(flag(), suspending)
    assert not comes_first(None, suspending)
    assert not comes_first(flag(run_id="r-0"), suspending)
    assert not comes_first(flag(), StepCommit(fence=RUN.fence, step=1))


@pytest.mark.parametrize(
    ("found", "status", "taken"),
    [
        (flag(), "interrupted", True),
        (flag(), None, True),
        (flag("abort"), "failed", True),
        (flag("abort"), "interrupted", False),
        (flag("abort"), None, True),
        (flag(run_id="r-0"), "interrupted", False),
        (None, "interrupted", False),
    ],
)
def test_a_commit_takes_the_stop_that_its_run_has_seen(
    found: InterruptFlag | None, status: RunStatus | None, taken: bool
):
    update = None if status is None else RunUpdate(status=status)
    assert is_taken(found, StepCommit(fence=RUN.fence, step=1, take_stop=True, run=update)) is taken
    assert not is_taken(found, StepCommit(fence=RUN.fence, step=1, run=update))
