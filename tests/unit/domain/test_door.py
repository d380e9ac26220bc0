"""No impossible id gets past the door, wherever in a write it stands."""

from typing import Any, cast

import pytest

from helix_agents.domain import door
from helix_agents.domain.checkpoints import CheckpointMeta
from helix_agents.domain.commits import ParentLink, StartRun, StepCommit
from helix_agents.domain.effects import BeginEffect
from helix_agents.domain.errors import InvalidIdError, UnstorableValueError
from helix_agents.domain.pending import ApprovalAnswer, PendingCall, SubmitAnswer
from helix_agents.domain.runs import Fence, RunMetadata
from helix_agents.domain.sessions import CreateSession, SessionState
from helix_agents.domain.staging import StagedChange
from helix_agents.domain.sub_sessions import SubSessionRef
from helix_agents.domain.usage import UsageEntry

BAD = "line\nbreak"
FENCE = Fence(run_id="r-1")
META = CheckpointMeta(step_id="step-1", step_count=1)


def state(**fields: Any) -> SessionState:
    return SessionState(session_id="s-1", root_session_id="s-1", agent_type="writer", **fields)


def ref(child: str = "child", call: str = "c-1") -> SubSessionRef:
    return SubSessionRef(sub_session_id=child, agent_type="helper", tool_call_id=call, delegation="help")


def change(step: str = "step-1", call: str = "c-1") -> StagedChange:
    return StagedChange(step_id=step, tool_call_id=call)


def usage(**fields: Any) -> UsageEntry:
    settings: dict[str, Any] = {"session_id": "s-1", "root_session_id": "s-1", "run_id": "r-1", **fields}
    return UsageEntry(source_type="custom", source_name="metric", **settings)


def pending(**fields: Any) -> PendingCall:
    settings: dict[str, Any] = {"tool_call_id": "c-1", "session_id": "s-1", "root_session_id": "s-1", **fields}
    return PendingCall(kind="question", run_id="r-1", step_id="step-1", tool_name="ask", created_at=0, **settings)


def effect(**fields: Any) -> BeginEffect:
    settings: dict[str, Any] = {"tool_call_id": "c-1", "owner": "worker", **fields}
    return BeginEffect(session_id="s-1", fence=FENCE, tool_name="pay", idempotency_key="k", lease_ms=1, **settings)


def start(**fields: Any) -> StartRun:
    return StartRun(**{"session_id": "s-1", "run_id": "r-1", **fields})


def answer(given: Any) -> SubmitAnswer:
    return SubmitAnswer(session_id="s-1", tool_call_id="c-1", answer=given)


def commit(**fields: Any) -> StepCommit:
    return StepCommit(fence=FENCE, step=1, **fields)


def link(child: SubSessionRef, *stage: StagedChange) -> ParentLink:
    return ParentLink(session_id="p", fence=FENCE, ref=child, stage=stage)


def test_ordinary_ids_pass():
    door.check_create("s-1", CreateSession(parent_session_id="p", root_session_id="p", stream_id="x", user_id="ada"))
    door.check_saved(state(stream_id="x", user_id="ada", suspended_step_id="step-1"))
    door.check_run("r-1", RunMetadata(previous_run_id="r-0", parent_run_id="p", owner="worker"))
    door.check_usage(usage(user_id="ada"))
    door.check_effect(effect(stage=(change(),)))
    door.check_start(start(create=CreateSession(), parent=link(ref(), change()), owner="worker"))
    door.check_step(state(), META, commit(stage=(change(),), pending=(pending(),), refs=(ref(),), usage=(usage(),)))
    door.check_step(state(), META, None)


@pytest.mark.parametrize(
    ("check", "given"),
    [
        (door.check_create, (BAD, CreateSession())),
        (door.check_create, ("s-1", CreateSession(parent_session_id=BAD))),
        (door.check_create, ("s-1", CreateSession(root_session_id=BAD))),
        (door.check_create, ("s-1", CreateSession(stream_id=BAD))),
        (door.check_create, ("s-1", CreateSession(user_id=BAD))),
        (door.check_saved, (state(stream_id=BAD),)),
        (door.check_saved, (state(user_id=BAD),)),
        (door.check_saved, (state(suspended_step_id=BAD),)),
        (door.check_run, (BAD, RunMetadata())),
        (door.check_run, ("r-1", RunMetadata(previous_run_id=BAD))),
        (door.check_run, ("r-1", RunMetadata(parent_run_id=BAD))),
        (door.check_run, ("r-1", RunMetadata(owner=BAD))),
        (door.check_checkpoint, (CheckpointMeta(step_id=BAD, step_count=1),)),
        (door.check_staged, (change(step=BAD),)),
        (door.check_staged, (change(call=BAD),)),
        (door.check_ref, (ref(child=BAD),)),
        (door.check_ref, (ref(call=BAD),)),
        (door.check_usage, (usage(session_id=BAD),)),
        (door.check_usage, (usage(root_session_id=BAD),)),
        (door.check_usage, (usage(run_id=BAD),)),
        (door.check_usage, (usage(user_id=BAD),)),
        (door.check_effect, (effect(tool_call_id=BAD),)),
        (door.check_effect, (effect(owner=BAD),)),
        (door.check_effect, (effect(stage=(change(step=BAD),)),)),
        (door.check_create, ("s-1", CreateSession(user_id=cast("str", 5)))),
        (door.check_start, (start(run_id=BAD),)),
        (door.check_start, (start(previous_run_id=BAD),)),
        (door.check_start, (start(parent_run_id=BAD),)),
        (door.check_start, (start(owner=BAD),)),
        (door.check_start, (start(session_id=BAD, create=CreateSession()),)),
        (door.check_start, (start(parent=link(ref(child=BAD))),)),
        (door.check_start, (start(parent=link(ref(), change(call=BAD))),)),
        (door.check_step, (state(user_id=BAD), META, None)),
        (door.check_step, (state(), CheckpointMeta(step_id=BAD, step_count=1), None)),
        (door.check_step, (state(), META, commit(stage=(change(call=BAD),)))),
        (door.check_step, (state(), META, commit(pending=(pending(tool_call_id=BAD),)))),
        (door.check_step, (state(), META, commit(pending=(pending(session_id=BAD),)))),
        (door.check_step, (state(), META, commit(pending=(pending(root_session_id=BAD),)))),
        (door.check_step, (state(), META, commit(refs=(ref(child=BAD),)))),
        (door.check_step, (state(), META, commit(usage=(usage(run_id=BAD),)))),
    ],
)
def test_an_impossible_id_is_refused(check: Any, given: tuple[Any, ...]):
    with pytest.raises(InvalidIdError):
        check(*given)


@pytest.mark.parametrize(
    ("check", "given"),
    [
        (door.check_create, ("s-1", CreateSession(metadata=cast("dict[str, str]", {"order": 5})))),
        (door.check_create, ("s-1", CreateSession(tags=cast("tuple[str]", (5,))))),
        (door.check_answer, (answer(True),)),
        (door.check_answer, (answer({"approved": True}),)),
        (door.check_answer, (answer(ApprovalAnswer(approved=cast("bool", "yes"))),)),
    ],
)
def test_what_could_not_be_read_again_is_refused(check: Any, given: tuple[Any, ...]):
    with pytest.raises(UnstorableValueError):
        check(*given)
