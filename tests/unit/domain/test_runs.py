"""How a run moves, who may write under its fence, and when nobody drives it."""

from typing import Any

import pytest
from msgspec.structs import replace

from helix_agents.domain.errors import RunConflictError, SupersededError
from helix_agents.domain.runs import (
    SUSPENDED,
    Fence,
    KnownAs,
    Lease,
    RunMetadata,
    RunRecord,
    RunStatus,
    RunUpdate,
    check_fence,
    check_same_attempt,
    claimed,
    is_orphan,
    recorded,
    settled,
    updated,
)

NOW = 1_000
ENDED: tuple[RunStatus, ...] = ("completed", "failed", "interrupted", *sorted(SUSPENDED))


def run(**fields: Any) -> RunRecord:
    return RunRecord(**{"run_id": "r-1", "session_id": "s-1", "turn": 1, "started_at": 500, **fields})


def test_an_update_changes_what_it_names_and_leaves_the_rest():
    before = run(step_count=3, completion_reason="because", error="oh")
    assert updated(before, RunUpdate(), NOW) == before
    after = updated(before, RunUpdate(step_count=4, error="no"), NOW)
    assert after == run(step_count=4, completion_reason="because", error="no")


@pytest.mark.parametrize("status", ENDED)
def test_a_run_ends_with_any_status_but_running(status: RunStatus):
    after = updated(run(), RunUpdate(status=status), NOW)
    assert (after.status, after.ended_at) == (status, NOW)


def test_the_time_of_the_first_end_stays():
    ended = run(status="suspended_client_tool", ended_at=700)
    assert updated(ended, RunUpdate(status="failed"), NOW).ended_at == 700
    assert updated(ended, RunUpdate(status="running"), NOW).ended_at is None


def test_only_a_running_run_is_settled():
    assert settled(None, "failed", "superseded", NOW) is None
    assert settled(run(status="completed"), "failed", "superseded", NOW) is None
    expected = run(status="failed", completion_reason="superseded", ended_at=NOW)
    assert settled(run(), "failed", "superseded", NOW) == expected


def test_a_recorded_run_takes_the_next_turn_unless_told_otherwise():
    assert recorded("s-1", "r-1", RunMetadata(), 4, NOW) == run(turn=4, started_at=NOW)
    given = RunMetadata(turn=9, start_sequence=2, previous_run_id="p", parent_run_id="q", owner="o", workflow_id="w")
    assert recorded("s-1", "r-1", given, 4, NOW) == run(
        turn=9,
        start_sequence=2,
        previous_run_id="p",
        parent_run_id="q",
        owner="o",
        workflow_id="w",
        started_at=NOW,
    )


def test_a_claim_starts_the_next_attempt():
    after = claimed("s-1", run(owner="dead"), Fence(run_id="r-1"), "alive")
    assert after == run(attempt=2, owner="alive")


@pytest.mark.parametrize("current", [None, run(run_id="r-2"), run(attempt=2), run(status="completed")])
def test_a_claim_of_anything_but_the_running_attempt_is_refused(current: RunRecord | None):
    with pytest.raises(RunConflictError):
        claimed("s-1", current, Fence(run_id="r-1"), "alive")


def test_a_refusal_says_what_was_expected_and_what_is_there():
    with pytest.raises(RunConflictError, match=r"at run 'r-1' attempt 2 \(running\), not at .* 1 \(running\)"):
        claimed("s-1", run(attempt=2), Fence(run_id="r-1"), "alive")
    with pytest.raises(SupersededError, match="the session is at no run"):
        check_same_attempt("s-1", None, Fence(run_id="r-1"))


def test_a_run_that_is_claimed_keeps_its_name_or_gets_another():
    driven = run(workflow_id="w-1")
    assert claimed("s-1", driven, driven.fence, None).workflow_id == "w-1"
    assert claimed("s-1", driven, driven.fence, None, KnownAs(workflow_id="w-2")).workflow_id == "w-2"
    assert claimed("s-1", driven, driven.fence, None, KnownAs(workflow_id=None)).workflow_id is None


def test_the_current_attempt_may_write_while_it_runs():
    assert check_fence("s-1", run(), Fence(run_id="r-1")) == run()


@pytest.mark.parametrize("current", [None, run(run_id="r-2"), run(attempt=2)])
def test_an_older_run_or_attempt_may_not_write(current: RunRecord | None):
    for check in (check_fence, check_same_attempt):
        with pytest.raises(SupersededError) as refused:
            check("s-1", current, Fence(run_id="r-1"))
        assert (refused.value.run_id, refused.value.attempt) == ("r-1", 1)


def test_an_ended_run_may_not_write_but_is_recognised():
    ended = run(status="completed")
    assert check_same_attempt("s-1", ended, Fence(run_id="r-1")) == ended
    with pytest.raises(SupersededError, match="completed"):
        check_fence("s-1", ended, Fence(run_id="r-1"))


ALIVE, DEAD = Lease(owner="o", expires_at=NOW + 1), Lease(owner="o", expires_at=NOW)


@pytest.mark.parametrize(
    ("candidate", "lease", "parent", "orphan"),
    [
        (run(), None, None, True),
        (run(owner="o"), None, None, True),
        (run(owner="o"), DEAD, None, True),
        (run(owner="o"), ALIVE, None, False),
        (run(owner="o"), DEAD, run(run_id="p", status="running"), False),
        (run(owner="o"), DEAD, run(run_id="p", status="failed"), True),
        (run(status="completed"), None, None, False),
        (run(status="suspended_client_tool"), None, None, False),
    ],
)
def test_a_running_run_without_a_live_process_or_parent_is_an_orphan(
    candidate: RunRecord, lease: Lease | None, parent: RunRecord | None, orphan: bool
):
    assert is_orphan(candidate, lease, parent, NOW) is orphan
    assert is_orphan(replace(candidate, attempt=5), lease, parent, NOW) is orphan
