"""A session as its readers see it."""

from typing import Any

import pytest

from helix_agents.domain.pending import PendingCall, ToolAnswer
from helix_agents.domain.session_views import assembled, matches, summary
from helix_agents.domain.sessions import InterruptFlag, SessionFilter, SessionState


def session(**fields: Any) -> SessionState:
    return SessionState(
        **{"session_id": "s-1", "root_session_id": "s-1", "agent_type": "writer", "created_at": 100, **fields}
    )


def call(call_id: str, **fields: Any) -> PendingCall:
    settings: dict[str, Any] = {"session_id": "s-1", "root_session_id": "s-1", "created_at": 1, **fields}
    return PendingCall(
        tool_call_id=call_id, kind="client_tool", run_id="r-1", step_id="step-1", tool_name="ask", **settings
    )


CALLS = (
    call("late", created_at=9),
    call("below", session_id="child"),
    call("answered", state="answered", answer=ToolAnswer(), answered_at=5),
    call("expired", state="expired", expired_at=6),
    call("consumed", state="consumed", consumed_at=7),
    call("dropped", state="dropped"),
)


def test_a_root_knows_what_waits_in_its_tree_who_owns_it_and_what_was_completed():
    whole = assembled(session(), {"a": 1}, CALLS, None)
    assert whole.custom_state == {"a": 1}
    assert list(whole.pending_client_tool_calls) == ["answered", "below", "expired", "late"]
    assert whole.client_tool_call_ownership == {"answered": "s-1", "below": "child", "expired": "s-1", "late": "s-1"}
    assert whole.completed_client_tool_calls == {"answered": 5, "consumed": 7}


def test_a_child_knows_only_what_it_waits_for():
    own = call("below", session_id="child", state="answered", answered_at=5)
    whole = assembled(session(session_id="child"), {}, [own], None)
    assert whole.pending_client_tool_calls == {"below": own}
    assert whole.client_tool_call_ownership == {}
    assert whole.completed_client_tool_calls == {}


@pytest.mark.parametrize(("aimed_at", "counts"), [("r-1", True), ("r-0", False)])
def test_a_stop_counts_when_it_is_aimed_at_the_current_run(aimed_at: str, counts: bool):
    flag = InterruptFlag(run_id=aimed_at, set_at=1)
    whole = assembled(session(current_run_id="r-1"), {}, (), flag)
    assert whole.interrupt_flag == (flag if counts else None)


def test_a_summary_says_what_the_record_says():
    record = session(
        status="paused",
        step_count=1,
        message_count=2,
        version=3,
        user_id="ada",
        tags=("a",),
        metadata={"k": "v"},
        parent_session_id="p",
        root_session_id="top",
        current_run_id="r-1",
        expires_at=4,
        updated_at=200,
    )
    line = summary(record)
    assert {name: getattr(line, name) for name in line.__struct_fields__} == {
        name: getattr(record, name) for name in line.__struct_fields__
    }


RECORD = session(user_id="ada", tags=("a", "b"), metadata={"k": "v", "l": "w"}, parent_session_id="p", expires_at=50)


@pytest.mark.parametrize(
    ("where", "found"),
    [
        (SessionFilter(), True),
        (SessionFilter(user_id="ada"), True),
        (SessionFilter(user_id="bob"), False),
        (SessionFilter(agent_type="writer"), True),
        (SessionFilter(agent_type="reader"), False),
        (SessionFilter(statuses=("paused", "active")), True),
        (SessionFilter(statuses=("paused",)), False),
        (SessionFilter(parent_session_id="p"), True),
        (SessionFilter(parent_session_id="q"), False),
        (SessionFilter(roots_only=True), False),
        (SessionFilter(tags=("b", "a")), True),
        (SessionFilter(tags=("a", "c")), False),
        (SessionFilter(metadata={"k": "v"}), True),
        (SessionFilter(metadata={"k": "v", "l": "x"}), False),
        (SessionFilter(created_from=100, created_to=100), True),
        (SessionFilter(created_from=101), False),
        (SessionFilter(created_to=99), False),
        (SessionFilter(expires_before=51), True),
        (SessionFilter(expires_before=50), False),
    ],
)
def test_a_filter_asks_for_everything_it_names(where: SessionFilter, found: bool):
    assert matches(RECORD, where) is found


def test_a_session_that_never_expires_does_not_expire_before_anything():
    assert matches(session(), SessionFilter(expires_before=10**15)) is False
    assert matches(session(), SessionFilter(roots_only=True)) is True
