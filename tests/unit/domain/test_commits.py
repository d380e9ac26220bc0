"""Which commits may write, which get their first answer again, and what they make of a run."""

from typing import Any

import pytest
from msgspec.structs import replace

from helix_agents.domain.commits import (
    Committed,
    ParentLink,
    RememberedCommit,
    SettleSession,
    StartRun,
    StepCommit,
    check_expectations,
    check_repeated_start,
    check_settle,
    check_step_commit,
    committed_run,
    given_up,
    has_open_step,
    is_detached,
    is_unsettled,
    settled_run,
    started_run,
    status_after,
    stream_end_of,
)
from helix_agents.domain.errors import RunAlreadyExistsError, RunConflictError, StaleStateError, SupersededError
from helix_agents.domain.pending import PendingCall
from helix_agents.domain.runs import Fence, RunRecord, RunUpdate
from helix_agents.domain.sessions import SessionState, StatusConflict, SuspensionContext
from helix_agents.domain.streams import StreamAppend, StreamEnd, StreamRest
from helix_agents.domain.sub_sessions import SubSessionRef

NOW = 1_000
FENCE = Fence(run_id="r-1")
ANSWER = Committed(checkpoint_id="cp-1", new_version=5)


def run(**fields: Any) -> RunRecord:
    return RunRecord(**{"run_id": "r-1", "session_id": "s-1", "turn": 1, "started_at": 500, **fields})


def session(**fields: Any) -> SessionState:
    return SessionState(session_id="s-1", root_session_id="s-1", agent_type="writer", **fields)


def step(number: int, round_: int = 0, fence: Fence = FENCE) -> StepCommit:
    return StepCommit(fence=fence, step=number, round=round_)


def remembered(number: int, round_: int = 0, fence: Fence = FENCE) -> RememberedCommit:
    return RememberedCommit(fence=fence, step=number, round=round_, answer=ANSWER)


@pytest.mark.parametrize("last", [None, remembered(1), remembered(2, 0), remembered(5, fence=Fence(run_id="r-0"))])
def test_a_new_commit_of_the_current_attempt_may_write(last: RememberedCommit | None):
    assert check_step_commit("s-1", run(), step(2, 1), last) is None


@pytest.mark.parametrize("status", ["running", "completed", "suspended_client_tool"])
def test_the_same_commit_gets_its_first_answer_even_after_it_ended_the_run(status: Any):
    assert check_step_commit("s-1", run(status=status), step(2, 1), remembered(2, 1)) == ANSWER


@pytest.mark.parametrize(
    ("current", "commit", "last"),
    [
        (None, step(2), None),
        (run(run_id="r-2"), step(2), remembered(2)),
        (run(attempt=2), step(2), remembered(2)),
        (run(status="completed"), step(3), remembered(2)),
        (run(), step(1), remembered(2)),
        (run(), step(2, 0), remembered(2, 1)),
        (run(attempt=2), step(2, fence=Fence(run_id="r-1", attempt=2)), remembered(2)),
    ],
    ids=["no run", "other run", "older attempt", "ended", "older step", "older round", "step of an older attempt"],
)
def test_every_other_commit_is_superseded(current: RunRecord | None, commit: StepCommit, last: RememberedCommit | None):
    with pytest.raises(SupersededError):
        check_step_commit("s-1", current, commit, last)


def test_a_commit_records_its_step_and_ends_the_run_it_says_ended():
    update = RunUpdate(status="completed", completion_reason="done")
    after = committed_run(run(), update, 3, again=False, now=NOW)
    assert after == run(status="completed", completion_reason="done", step_count=3, ended_at=NOW)
    assert committed_run(run(), RunUpdate(step_count=7), 3, again=False, now=NOW).step_count == 7


def test_a_suspension_that_finds_an_answer_lets_the_run_go_on():
    update = RunUpdate(status="suspended_client_tool", completion_reason="waits")
    assert committed_run(run(), update, 3, again=True, now=NOW) == run(step_count=3)


START = StartRun(session_id="s-1", run_id="r-1")


def test_a_start_is_new_when_its_run_id_is():
    assert check_repeated_start(START, None, "r-0") is False


def test_a_start_sent_again_by_its_own_caller_is_recognised():
    assert check_repeated_start(START, run(), "r-1") is True
    assert check_repeated_start(START, run(status="completed"), "r-1") is True


@pytest.mark.parametrize(("existing", "current"), [(run(), "r-2"), (run(attempt=2), "r-1")])
def test_a_repeated_start_is_refused_when_the_session_went_on(existing: RunRecord, current: str):
    with pytest.raises(RunConflictError):
        check_repeated_start(START, existing, current)


def test_a_run_id_of_another_session_is_taken():
    with pytest.raises(RunAlreadyExistsError):
        check_repeated_start(START, run(session_id="s-2"), None)


@pytest.mark.parametrize(
    ("expected", "current"),
    [
        ({}, run()),
        ({}, None),
        ({"expected_version": 3}, None),
        ({"expected_version": 3, "expected_run": FENCE}, run()),
        ({"expected_run": FENCE}, run(status="completed")),
    ],
)
def test_a_start_passes_whose_caller_read_what_is_there(expected: dict[str, Any], current: RunRecord | None):
    check_expectations(StartRun(session_id="s-1", run_id="r-9", **expected), session(version=3), current)


@pytest.mark.parametrize(
    ("expected", "current", "error"),
    [
        ({"expected_version": 2}, None, StaleStateError),
        ({"expected_version": 3}, run(), RunConflictError),
        ({"expected_run": FENCE}, None, RunConflictError),
        ({"expected_run": FENCE}, run(attempt=2), RunConflictError),
        ({"expected_run": FENCE}, run(run_id="r-2"), RunConflictError),
    ],
)
def test_a_start_is_refused_whose_caller_read_something_else(
    expected: dict[str, Any], current: RunRecord | None, error: type[Exception]
):
    with pytest.raises(error):
        check_expectations(StartRun(session_id="s-1", run_id="r-9", **expected), session(version=3), current)


def test_a_started_run_says_what_its_start_said():
    start = StartRun(
        session_id="s-1",
        run_id="r-1",
        start_sequence=4,
        previous_run_id="r-0",
        parent_run_id="p-1",
        owner="worker",
        workflow_id="w",
    )
    assert started_run(start, 2, NOW) == run(
        turn=2,
        start_sequence=4,
        previous_run_id="r-0",
        parent_run_id="p-1",
        owner="worker",
        workflow_id="w",
        started_at=NOW,
    )


def test_a_child_is_driven_by_the_run_that_started_it():
    ref = SubSessionRef(sub_session_id="s-1", agent_type="helper", tool_call_id="c-1", delegation="help")
    link = ParentLink(session_id="parent", fence=Fence(run_id="p-1"), ref=ref)
    assert started_run(StartRun(session_id="s-1", run_id="r-1", parent=link), 1, NOW).parent_run_id == "p-1"
    companion = replace(link, ref=replace(ref, mode="persistent"))
    assert started_run(StartRun(session_id="s-1", run_id="r-1", parent=companion), 1, NOW).parent_run_id is None


@pytest.mark.parametrize(
    ("request_", "conflict"),
    [
        ({}, False),
        ({"expected_version": 3, "expected_run": FENCE}, False),
        ({"expected": ("paused",)}, True),
        ({"expected_version": 2}, True),
        ({"expected_run": Fence(run_id="r-1", attempt=2)}, True),
        ({"expired_by": NOW}, False),
        ({"expired_by": NOW - 1}, True),
    ],
)
def test_a_session_is_settled_only_as_it_is_expected(request_: dict[str, Any], conflict: bool):
    settle = SettleSession(**{"session_id": "s-1", "expected": ("active",), "status": "failed", **request_})
    found = check_settle(settle, session(version=3, expires_at=NOW), run())
    assert found == (StatusConflict(current_status="active", current_version=3) if conflict else None)


def test_a_session_that_never_ran_or_never_expires_is_settled_as_one():
    settle = SettleSession(session_id="s-1", expected=("active",), status="failed")
    conflict = StatusConflict(current_status="active", current_version=1)
    assert check_settle(settle, session(), None) is None
    assert check_settle(replace(settle, expected_run=FENCE), session(), None) == conflict
    assert check_settle(replace(settle, expired_by=NOW), session(), None) == conflict


@pytest.mark.parametrize(
    ("stored", "given", "after"),
    [
        ("active", "active", "active"),
        ("paused", "active", "paused"),
        ("paused", "completed", "completed"),
        ("active", "paused", "paused"),
    ],
)
def test_a_run_that_goes_on_leaves_a_pause_in_place(stored: Any, given: Any, after: Any):
    assert status_after(stored, given) == after


def test_a_session_waits_in_a_step_that_either_field_names():
    context = SuspensionContext(kind="suspended_client_tool", run_id="r-1", step_id="step-1", step=1)
    assert not has_open_step(session())
    assert has_open_step(session(suspension_context=context))
    assert has_open_step(session(suspended_step_id="step-1"))


@pytest.mark.parametrize(
    ("mode", "current", "detached"),
    [
        ("persistent", None, True),
        ("persistent", run(), True),
        ("persistent", run(parent_run_id="p-1"), False),
        ("ephemeral", run(), False),
        (None, None, False),
    ],
)
def test_a_companion_that_no_run_of_its_parent_drives_stands_on_its_own(mode: Any, current: Any, detached: bool):
    assert is_detached(session(mode=mode), current) is detached


LAST = StreamAppend(stream_id="s-1", run_id="r-1", attempt=1, writer=1, chunks=())
END = StreamEnd(rest=StreamRest(status="paused"), markers=())


@pytest.mark.parametrize(
    ("fields", "again", "end"),
    [
        ({"stream": LAST, "stream_end": END}, False, (LAST, END)),
        ({"stream": LAST, "stream_end": END}, True, None),
        ({"stream": LAST}, False, None),
        ({"stream_end": END}, False, None),
    ],
)
def test_a_stream_ends_with_the_commit_that_says_so_unless_the_run_goes_on(fields: Any, again: bool, end: Any):
    assert stream_end_of(StepCommit(fence=FENCE, step=1, **fields), again=again) == end


@pytest.mark.parametrize(
    ("status", "unsettled"),
    [("active", True), ("interrupted", True), ("paused", True), ("completed", False), ("failed", False)],
)
def test_sessions_below_are_settled_unless_they_ended(status: Any, unsettled: bool):
    assert is_unsettled(session(status=status)) is unsettled


@pytest.mark.parametrize("status", ["running", "suspended_awaiting_children"])
def test_settling_ends_a_run_that_goes_or_waits(status: Any):
    settle = SettleSession(
        session_id="s-1", expected=("active",), status="failed", error="gone", failure_reason="session_expired"
    )
    after = settled_run(run(status=status), settle, NOW)
    assert after == run(status="failed", completion_reason="session_expired", error="gone", ended_at=NOW)


@pytest.mark.parametrize("ended", [None, run(status="completed"), run(status="failed"), run(status="interrupted")])
def test_settling_leaves_a_run_that_ended(ended: RunRecord | None):
    settle = SettleSession(session_id="s-1", expected=("active",), status="failed")
    assert settled_run(ended, settle, NOW) is None


def waiting(call_id: str, **fields: Any) -> PendingCall:
    return PendingCall(
        tool_call_id=call_id,
        kind="question",
        session_id="s-1",
        root_session_id="s-1",
        run_id="r-1",
        step_id="step-1",
        tool_name="ask",
        created_at=0,
        **fields,
    )


@pytest.mark.parametrize(
    ("start", "dropped"),
    [
        ({}, []),
        ({"abandon_pending": True}, ["waiting", "answered"]),
        ({"rewind_to": "cp"}, ["waiting", "answered"]),
        ({"drop_unanswered": True}, ["waiting"]),
    ],
)
def test_a_start_gives_up_the_calls_it_says(start: dict[str, Any], dropped: list[str]):
    calls = [waiting("waiting"), waiting("answered", state="answered"), waiting("consumed", state="consumed")]
    rows = given_up(StartRun(session_id="s-1", run_id="r-2", **start), calls)
    assert [(row.tool_call_id, row.state) for row in rows] == [(call_id, "dropped") for call_id in dropped]
