"""What each kind of write makes of a session's record."""

from typing import Any

import pytest
from msgspec.structs import replace

from helix_agents.domain.checkpoints import Checkpoint
from helix_agents.domain.commits import RunStartCommitted, SettleSession, StartRun
from helix_agents.domain.errors import ModeIsWriteOnceError
from helix_agents.domain.runs import RunRecord
from helix_agents.domain.session_changes import (
    BEGAN,
    MOST_EARLIER,
    branched,
    changed,
    created,
    first_begun,
    held_by,
    holder_at,
    holder_of,
    of_version,
    pointed_at,
    savable,
    saved,
    settled,
    started,
    with_metadata,
    with_status,
)
from helix_agents.domain.sessions import (
    BranchPoint,
    ChildWait,
    CreateSession,
    EarlierVersion,
    Holder,
    InterruptContext,
    InterruptFlag,
    SessionState,
    SuspensionContext,
    TracingContext,
    WorkspaceRef,
)
from helix_agents.domain.writes import Replace, StepWrites

NOW = 1_000
SUSPENDED: dict[str, Any] = {
    "suspension_context": SuspensionContext(kind="suspended_client_tool", run_id="r-1", step_id="step-1", step=1),
    "suspended_step_id": "step-1",
    "suspended_awaiting_children": {"c-1": ChildWait(tool_call_id="c-1", child_session_id="k", agent_type="helper")},
}


def session(**fields: Any) -> SessionState:
    settings: dict[str, Any] = {"agent_type": "writer", "root_session_id": "s-1", "version": 3, **fields}
    return SessionState(session_id="s-1", created_at=500, updated_at=500, **settings)


def test_a_session_is_created_as_asked():
    options = CreateSession(
        agent_type="writer",
        agent_version=2,
        stream_id="stream",
        mode="persistent",
        user_id="ada",
        tags=("a",),
        metadata={"k": "v"},
        expires_at=9,
        tracing_context=TracingContext(trace_id="t", root_span_id="s"),
        workspace_ref=WorkspaceRef(provider_id="p", ref="r"),
    )
    assert created("s-1", options, NOW, parent=None) == SessionState(
        session_id="s-1",
        root_session_id="s-1",
        agent_type="writer",
        agent_version=2,
        stream_id="stream",
        mode="persistent",
        user_id="ada",
        tags=("a",),
        metadata={"k": "v"},
        expires_at=9,
        tracing_context=TracingContext(trace_id="t", root_span_id="s"),
        workspace_ref=WorkspaceRef(provider_id="p", ref="r"),
        created_at=NOW,
        updated_at=NOW,
    )


@pytest.mark.parametrize(
    ("options", "parent", "root"),
    [
        (CreateSession(), None, "new"),
        (CreateSession(parent_session_id="s-1"), session(root_session_id="top"), "top"),
        (CreateSession(parent_session_id="s-1"), None, "s-1"),
        (CreateSession(parent_session_id="s-1", root_session_id="given"), session(), "given"),
    ],
)
def test_a_child_belongs_to_its_parents_root(options: CreateSession, parent: SessionState | None, root: str):
    assert created("new", options, NOW, parent=parent).root_session_id == root


def test_a_branch_is_a_root_with_agent_and_user_of_its_source():
    source = session(
        agent_version=4,
        user_id="ada",
        tags=("old",),
        metadata={"old": "1"},
        parent_session_id="p",
        root_session_id="top",
        step_count=7,
        expires_at=9,
    )
    options = CreateSession(tags=("new",), expires_at=99, parent_session_id="p")
    assert branched("branch", source, options, NOW, holder=Holder("writer", 4)) == SessionState(
        session_id="branch",
        root_session_id="branch",
        agent_type="writer",
        agent_version=4,
        user_id="ada",
        tags=("new",),
        expires_at=99,
        created_at=NOW,
        updated_at=NOW,
    )
    assert branched("branch", source, CreateSession(user_id="bob"), NOW, holder=Holder("writer", 4)).user_id == "bob"


def test_a_change_is_one_version():
    assert changed(session(), NOW, step_count=4) == replace(session(), version=4, updated_at=NOW, step_count=4)


def test_saving_takes_the_record_and_keeps_what_is_the_stores_own():
    stored = session(resume_count=2, message_count=5, current_run_id="r-1", checkpoint_id="cp", parent_session_id="p")
    given = SessionState(
        session_id="other",
        agent_type="reader",
        root_session_id="other",
        status="paused",
        step_count=9,
        output=1,
        error="e",
        failure_reason="f",
        mode="standard",
        version=77,
        resume_count=77,
        message_count=77,
        current_run_id="other",
        checkpoint_id="other",
        created_at=77,
    )
    assert saved(stored, given, NOW) == replace(
        stored,
        agent_type="reader",
        status="paused",
        step_count=9,
        output=1,
        error="e",
        failure_reason="f",
        mode="standard",
        version=4,
        updated_at=NOW,
    )


@pytest.mark.parametrize("given", [None, "standard"])
def test_a_mode_is_set_once(given: Any):
    stored = session(mode="persistent")
    with pytest.raises(ModeIsWriteOnceError):
        saved(stored, session(mode=given), NOW)
    assert saved(stored, session(mode="persistent"), NOW).mode == "persistent"


def test_saving_does_not_look_at_the_rows_of_others():
    full = session(
        custom_state={"a": 1},
        interrupt_flag=InterruptFlag(run_id="r-1", set_at=1),
        completed_client_tool_calls={"c": 1},
        client_tool_call_ownership={"c": "s-1"},
    )
    assert savable(full) == session(custom_state={"a": 1})
    assert savable(full, with_custom_state=False) == session()


def test_a_status_comes_with_its_context_and_what_is_not_given_stays():
    context = InterruptContext(reason="stop")
    after = with_status(session(error="old"), "interrupted", NOW, interrupt_context=context)
    expected = session(status="interrupted", interrupt_context=context, error="old", version=4)
    assert after == replace(expected, updated_at=NOW)
    assert with_status(after, "failed", NOW, error="new", failure_reason="why").error == "new"


def test_metadata_is_patched_key_by_key():
    after = with_metadata(session(metadata={"a": "1", "b": "2", "c": "3"}), {"a": "9", "b": None, "d": "4"}, NOW)
    assert after.metadata == {"a": "9", "c": "3", "d": "4"}
    assert after.version == 4


def test_a_started_session_is_fresh():
    worn = session(
        status="failed",
        step_count=6,
        output=1,
        error="e",
        failure_reason="f",
        interrupt_context=InterruptContext(),
        resume_count=1,
        resumed=True,
        expires_at=5,
        **SUSPENDED,
    )
    start = StartRun(session_id="s-1", run_id="r-2")
    assert started(worn, start, 8, NOW) == replace(
        session(resume_count=1, expires_at=5, current_run_id="r-2", message_count=8, version=4), updated_at=NOW
    )


def test_a_start_keeps_and_counts_what_it_says():
    worn = session(step_count=6, resume_count=1, **SUSPENDED)
    start = StartRun(
        session_id="s-1",
        run_id="r-2",
        keep_step_count=True,
        keep_suspension=True,
        count_resume=True,
        expires_at=99,
        agent_version=5,
    )
    assert started(worn, start, 0, NOW) == replace(
        worn,
        version=4,
        updated_at=NOW,
        current_run_id="r-2",
        resume_count=2,
        resumed=True,
        expires_at=99,
        agent_version=5,
        earlier_versions=(EarlierVersion(agent_version=1, until=4),),
    )


def test_a_session_that_goes_back_is_of_the_version_that_its_state_was_of_there():
    earlier = (EarlierVersion(agent_version=1, until=3), EarlierVersion(agent_version=2, until=5))
    now = session(version=8, agent_version=3, earlier_versions=earlier)
    assert [holder_at(now, version).version for version in (0, 3, 4, 5, 6)] == [1, 1, 2, 2, 3]
    branch = branched("branch", now, CreateSession(), NOW, holder=Holder("writer", 2))
    assert [holder_at(branch, version).version for version in (0, BEGAN)] == [1, 2]
    start = StartRun(session_id="s-1", run_id="r-2")
    back = started(now, start, 0, NOW, back_to=Holder("writer", 1))
    assert (back.agent_version, holder_at(back, 8).version, holder_at(back, 4).version) == (1, 3, 2)
    moved = started(now, replace(start, agent_version=3), 0, NOW, back_to=Holder("writer", 1))
    assert [holder_at(moved, version).version for version in (3, 8, 9, 10)] == [1, 3, 1, 3]


def test_a_session_knows_who_had_it_at_each_point():
    begun = session(version=8)
    newer = of_version(begun, 2, until=3)
    handed = held_by(newer, Holder("editor", 7), until=5)
    assert (handed.agent_type, handed.held_by, handed.worked_by, handed.agent_version) == (
        "writer",
        "editor",
        "editor",
        7,
    )
    assert [holder_at(handed, version) for version in (0, 3, 4, 5, 6)] == [
        *[Holder("writer", 1)] * 2,
        *[Holder("writer", 2)] * 2,
        Holder("editor", 7),
    ]
    assert held_by(handed, holder_of(handed), until=7) is handed
    back = started(handed, StartRun(session_id="s-1", run_id="r-2"), 0, NOW, back_to=Holder("writer", 2))
    assert (back.held_by, back.worked_by, back.agent_version) == (None, "writer", 2)
    assert [holder_at(back, version) for version in (3, 5, 8, 9)] == [
        Holder("writer", 1), Holder("writer", 2), Holder("editor", 7), Holder("writer", 2)
    ]  # fmt: skip
    branch = branched("branch", handed, CreateSession(), NOW, holder=Holder("editor", 7))
    assert (branch.agent_type, branch.held_by) == ("writer", "editor")
    assert [holder_at(branch, version) for version in (0, BEGAN)] == [Holder("writer", 1), Holder("editor", 7)]


def test_a_session_does_not_remember_every_change_of_version_for_ever():
    after = session()
    for until in range(1_000):
        after = of_version(after, 1 + until % 2, until=until)
    assert len(after.earlier_versions) == MOST_EARLIER
    assert after.earlier_versions[-1].until == 999


def test_a_settled_session_waits_for_nobody():
    settle = SettleSession(
        session_id="s-1", expected=("active",), status="failed", error="e", failure_reason="session_expired", output=7
    )
    after = settled(session(**SUSPENDED), settle, NOW)
    expected = session(status="failed", error="e", failure_reason="session_expired", version=4)
    assert after == replace(expected, updated_at=NOW, output=7)


def test_a_session_settled_with_its_parent_gets_no_output():
    settle = SettleSession(session_id="parent", expected=("active",), status="failed", output=7)
    assert settled(session(), settle, NOW).output is None


def test_what_a_settlement_does_not_say_stays():
    before = session(output=7, error="e", failure_reason="f", interrupt_context=InterruptContext(reason="r"))
    after = settled(before, SettleSession(session_id="s-1", expected=("active",), status="interrupted"), NOW)
    assert after == replace(before, status="interrupted", version=4, updated_at=NOW)


def test_what_is_known_of_a_session_that_its_start_made_is_what_a_store_would_load():
    start = StartRun(
        session_id="s-1", run_id="r-1", create=CreateSession(agent_type="writer", custom_state={"n": 1}, user_id="ada")
    )
    run = RunRecord(run_id="r-1", session_id="s-1", turn=1, started_at=NOW)
    made = first_begun(start, RunStartCommitted(run=run, new_version=2, message_count=3))
    assert made == SessionState(
        session_id="s-1",
        root_session_id="s-1",
        agent_type="writer",
        custom_state={"n": 1},
        user_id="ada",
        version=2,
        current_run_id="r-1",
        message_count=3,
        created_at=NOW,
        updated_at=NOW,
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"create": None},
        {"create": CreateSession(branch=BranchPoint(from_session_id="s-0"))},
        {"create": CreateSession(parent_session_id="p", root_session_id="p")},
        {"writes": StepWrites(ops=(Replace(key="n", value=2),))},
    ],
    ids=["there before", "a branch", "a child", "more than its options"],
)
def test_a_session_that_its_start_does_not_say_all_of_has_to_be_loaded(fields: dict[str, Any]):
    start = StartRun(**{"session_id": "s-1", "run_id": "r-1", "create": CreateSession(), **fields})
    run = RunRecord(run_id="r-1", session_id="s-1", turn=1, started_at=NOW)
    assert first_begun(start, RunStartCommitted(run=run, new_version=2, message_count=3)) is None


def test_the_pointer_moves_to_a_checkpoint():
    checkpoint = Checkpoint(
        checkpoint_id="cp",
        session_id="s-1",
        step_count=1,
        status="active",
        message_count=0,
        source="staging",
        version=3,
        created_at=NOW,
    )
    after = pointed_at(session(), checkpoint)
    assert after == replace(session(), checkpoint_id="cp", checkpointed_at=NOW, checkpoint_source="staging")
