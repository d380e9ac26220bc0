"""What answers, deadlines and runs do to a call that waits."""

from typing import Any

import pytest
from msgspec.structs import replace

from helix_agents.domain.pending import (
    OPEN,
    UNKNOWN_OUTCOME,
    Answer,
    AnswerAlreadyCompleted,
    AnswerLate,
    AnswerNotFound,
    AnswerRefused,
    ApprovalAnswer,
    PendingCall,
    PendingFilter,
    PendingState,
    SubmitAnswer,
    ToolAnswer,
    abandon,
    accepted,
    answer,
    ask,
    completed_at,
    consume,
    deliver_late_answer,
    drop,
    expire,
    is_overdue,
    matches,
    ready_since,
    unknown_since,
)

NOW = 1_000
STATES: tuple[PendingState, ...] = ("waiting", "answered", "expired", "consumed", "dropped")
YES = ToolAnswer(result="yes")
NO = ToolAnswer(result="no")


def call(state: PendingState = "waiting", **fields: Any) -> PendingCall:
    settings: dict[str, Any] = {"kind": "client_tool", "tool_name": "ask", "created_at": 10, **fields}
    return PendingCall(
        tool_call_id="c-1",
        session_id="child",
        root_session_id="root",
        run_id="r-1",
        step_id="step-1",
        state=state,
        **settings,
    )


def submission(given: Answer = YES, **fields: Any) -> SubmitAnswer:
    return SubmitAnswer(session_id="root", tool_call_id="c-1", answer=given, **fields)


@pytest.mark.parametrize("state", ["waiting", "expired"])
def test_an_answer_before_any_run_saw_the_end_of_a_call_is_stored(state: PendingState):
    row, rejected = answer(call(state), submission(), NOW)
    assert rejected is None
    assert row == replace(call(state), state="answered", answer=YES, answered_at=NOW)


def test_an_unknown_call_is_not_found():
    assert answer(None, submission(), NOW) == (None, AnswerNotFound())


@pytest.mark.parametrize(
    "settled",
    [call("answered", answer=NO), call("consumed", answer=NO), call("dropped")],
    ids=["answered", "consumed with an answer", "dropped"],
)
def test_a_call_that_was_answered_or_given_up_keeps_what_it_has(settled: PendingCall):
    assert answer(settled, submission(), NOW) == (None, AnswerAlreadyCompleted(call=settled))


def test_an_answer_after_a_consumed_timeout_is_kept_once():
    timed_out = call("consumed", expired_at=900, consumed_at=950)
    late = replace(timed_out, late_answer=YES)
    assert answer(timed_out, submission(YES), NOW) == (late, AnswerLate(call=late, recorded=True))
    assert answer(late, submission(NO), NOW + 1) == (None, AnswerLate(call=late, recorded=False))


@pytest.mark.parametrize("state", ["waiting", "expired"])
@pytest.mark.parametrize(
    ("fields", "given"),
    [
        ({"kind": "client_tool"}, submission(ApprovalAnswer(approved=True))),
        ({"kind": "question"}, submission(ApprovalAnswer(approved=True))),
        ({"kind": "approval"}, submission(YES)),
        ({"kind": "approval", "approval_id": "a-1"}, submission(ApprovalAnswer(approved=True), approval_id="a-2")),
    ],
)
def test_an_answer_that_does_not_fit_is_refused_and_not_stored(
    state: PendingState, fields: dict[str, Any], given: SubmitAnswer
):
    row, outcome = answer(call(state, **fields), given, NOW)
    assert row is None
    assert isinstance(outcome, AnswerRefused)


@pytest.mark.parametrize(
    ("fields", "given"),
    [
        ({"kind": "approval", "approval_id": "a-1"}, submission(ApprovalAnswer(approved=True))),
        ({"kind": "approval", "approval_id": "a-1"}, submission(ApprovalAnswer(approved=True), approval_id="a-1")),
        # Whoever knows what became of a call may say it in place of a decision.
        ({"kind": "approval", "approval_id": "a-1", "reason": "unknown_outcome"}, submission(YES)),
    ],
    ids=["no approval id", "its approval id", "an outcome that is known after all"],
)
def test_an_answer_that_fits_is_stored(fields: dict[str, Any], given: SubmitAnswer):
    row, outcome = answer(call(**fields), given, NOW)
    assert outcome is None
    assert row is not None
    assert row.answer == given.answer


def test_an_ended_call_is_recognised_before_its_answer_is_judged():
    settled = call("answered", answer=NO)
    wrong_kind = submission(ApprovalAnswer(approved=True))
    assert answer(settled, wrong_kind, NOW) == (None, AnswerAlreadyCompleted(call=settled))


@pytest.mark.parametrize(
    ("running", "still_waiting", "next_"),
    [(True, 0, "nothing"), (True, 2, "nothing"), (False, 2, "wait"), (False, 0, "resume")],
)
def test_an_accepted_answer_says_what_is_needed_next(running: bool, still_waiting: int, next_: str):
    outcome = accepted(call("answered"), running=running, still_waiting=still_waiting)
    assert (outcome.next, outcome.still_waiting) == (next_, still_waiting)


@pytest.mark.parametrize(
    ("waiting", "overdue"),
    [
        (call(deadline=NOW), True),
        (call(deadline=NOW - 1), True),
        (call(deadline=NOW + 1), False),
        (call(deadline=None), False),
        (call("answered", deadline=NOW - 1), False),
        (call("dropped", deadline=NOW - 1), False),
    ],
)
def test_a_call_expires_when_it_waits_and_its_deadline_has_come(waiting: PendingCall, overdue: bool):
    assert is_overdue(waiting, NOW) is overdue
    expected = replace(waiting, state="expired", expired_at=NOW) if overdue else None
    assert expire(waiting, NOW) == expected


@pytest.mark.parametrize("state", STATES)
def test_a_call_is_asked_again_only_after_it_ended(state: PendingState):
    again = call(reason="unknown_outcome")
    assert ask(call(state), again) == (None if state in OPEN else again)


def test_a_new_call_is_asked():
    assert ask(None, call()) == call()


def test_a_call_that_is_asked_about_again_has_been_unknown_since_the_first_time():
    first = call("consumed", reason=UNKNOWN_OUTCOME, created_at=5)
    second = ask(first, call(reason=UNKNOWN_OUTCOME, created_at=7))
    assert second is not None
    third = ask(replace(second, state="dropped"), call(reason=UNKNOWN_OUTCOME, created_at=9))
    assert third is not None
    assert [unknown_since(each) for each in (first, second, third)] == [5, 5, 5]
    assert unknown_since(call("consumed")) is None
    in_another_step = replace(call(reason=UNKNOWN_OUTCOME, created_at=9), step_id="another")
    assert ask(first, in_another_step) == in_another_step
    approval = call("consumed", created_at=5)
    about_it = call(reason=UNKNOWN_OUTCOME, created_at=7)
    assert ask(approval, about_it) == about_it


@pytest.mark.parametrize("state", STATES)
def test_a_run_consumes_what_was_answered_or_expired(state: PendingState):
    ready = state in ("answered", "expired")
    assert consume(call(state), NOW) == (replace(call(state), state="consumed", consumed_at=NOW) if ready else None)


@pytest.mark.parametrize("state", STATES)
def test_a_failed_run_gives_up_what_nobody_answered(state: PendingState):
    assert drop(call(state)) == (call("dropped") if state == "waiting" else None)


@pytest.mark.parametrize("state", STATES)
def test_a_conversation_that_moves_on_gives_up_everything_open(state: PendingState):
    assert abandon(call(state)) == (call("dropped") if state in OPEN else None)


def test_a_late_answer_is_delivered_once():
    late = call("consumed", late_answer=YES)
    told = replace(late, late_answer_delivered=True)
    assert deliver_late_answer(late) == told
    assert deliver_late_answer(told) is None
    assert deliver_late_answer(call("consumed")) is None


@pytest.mark.parametrize(
    ("row", "ready", "completed"),
    [
        (call(), None, None),
        (call("answered", answered_at=5), 5, 5),
        (call("answered", expired_at=4, answered_at=5), 5, 5),
        (call("expired", expired_at=4), 4, None),
        (call("consumed", expired_at=4, consumed_at=6), None, 6),
        (call("consumed", answered_at=5, consumed_at=6), None, 5),
        (call("dropped"), None, None),
        (call("dropped", answered_at=5), None, 5),
    ],
)
def test_a_call_tells_when_it_became_ready_and_when_it_was_completed(
    row: PendingCall, ready: int | None, completed: int | None
):
    assert (ready_since(row), completed_at(row)) == (ready, completed)


@pytest.mark.parametrize(
    ("where", "found"),
    [
        (PendingFilter(), True),
        (PendingFilter(session_id="child"), True),
        (PendingFilter(session_id="root"), False),
        (PendingFilter(root_session_id="root"), True),
        (PendingFilter(root_session_id="child"), False),
        (PendingFilter(user_id="ada"), True),
        (PendingFilter(user_id="bob"), False),
        (PendingFilter(tool_name="ask"), True),
        (PendingFilter(tool_name="pay"), False),
        (PendingFilter(kind="client_tool"), True),
        (PendingFilter(kind="approval"), False),
        (PendingFilter(states=()), True),
        (PendingFilter(states=("answered",)), False),
        (PendingFilter(created_before=11), True),
        (PendingFilter(created_before=10), False),
    ],
)
def test_a_filter_asks_for_everything_it_names(where: PendingFilter, found: bool):
    assert matches(call(), where, "ada") is found
