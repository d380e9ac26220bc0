"""What writing a stop does, given what is there."""

import pytest

from helix_agents.domain.flags import aimed_at_current_run, raised
from helix_agents.domain.runs import RunRecord
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
    assert raised(existing, RUN, kind, "now", 5) == InterruptFlag(run_id="r-1", kind=kind, reason="now", set_at=5)


def test_an_interrupt_does_not_replace_an_abort():
    assert raised(flag("abort"), RUN, "interrupt", "now", 5) is None


def test_a_stop_for_an_older_run_counts_as_none():
    session = SessionState(session_id="s-1", root_session_id="s-1", agent_type="writer", current_run_id="r-1")
    assert aimed_at_current_run(session, None) is None
    assert aimed_at_current_run(session, flag()) == flag()
    assert aimed_at_current_run(session, flag(run_id="r-0")) is None
