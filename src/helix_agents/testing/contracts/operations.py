"""Every operation of the state store once, by name, as a call on a session: for rules that hold for all of them."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from msgspec.structs import replace

from helix_agents.domain.commits import SettleSession, StartRun
from helix_agents.domain.ids import SessionId
from helix_agents.domain.queued import QueueChange
from helix_agents.domain.sessions import BranchPoint, SessionState
from helix_agents.domain.sub_sessions import SubSessionRefUpdate
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.scenes import child_ref, commit, effect, queued, said, set_key, staged, step_meta

Operation: TypeAlias = Callable[[SessionStateStore, SessionId], Awaitable[Any]]


def record(session_id: SessionId, **fields: Any) -> SessionState:
    """A session record made by hand."""
    return SessionState(session_id=session_id, agent_type="writer", root_session_id=session_id, **fields)


COMMITS: Mapping[str, Operation] = {
    "save_state": lambda store, session: store.save_state(session, record(session)),
    "merge_custom_state": lambda store, session: store.merge_custom_state(session, set_key("a", 1)),
    "update_status": lambda store, session: store.update_status(session, "paused"),
    "compare_and_set_status": lambda store, session: store.compare_and_set_status(session, ("active",), "paused"),
    "increment_step_count": lambda store, session: store.increment_step_count(session),
    "increment_resume_count": lambda store, session: store.increment_resume_count(session),
    "patch_metadata": lambda store, session: store.patch_metadata(session, {"a": "1"}),
    "append_messages": lambda store, session: store.append_messages(session, [said("one"), said("two")]),
    "truncate_messages": lambda store, session: store.truncate_messages(session, 0),
    "create_run": lambda store, session: store.create_run(session, "r-other"),
    "create_checkpoint": lambda store, session: store.create_checkpoint(session, step_meta()),
    "promote_staging": lambda store, session: store.promote_staging(session, step_meta()),
    "start_run": lambda store, session: store.start_run(StartRun(session_id=session, run_id="r-other")),
    "save_state_and_promote_staging": lambda store, session: store.save_state_and_promote_staging(
        session, record(session), [said("hi")], step_meta()
    ),
    "fenced step commit": lambda store, session: commit(store, session_id=session),
    "settle_session": lambda store, session: store.settle_session(
        SettleSession(session_id=session, expected=("active",), status="failed")
    ),
}
"""Writes that are commits of the session record; they fit a session with a message and a running run `r-1`."""

ROWS_OF_OTHERS: Mapping[str, Operation] = {
    "add_sub_session_refs": lambda store, session: store.add_sub_session_refs(session, [child_ref("child")]),
    "update_sub_session_ref": lambda store, session: store.update_sub_session_ref(
        session, SubSessionRefUpdate(sub_session_id="child", status="completed")
    ),
    "stage_changes": lambda store, session: store.stage_changes(session, staged("c-1")),
    "discard_staging": lambda store, session: store.discard_staging(session),
    "set_interrupt_flag": lambda store, session: store.set_interrupt_flag(session, "enough"),
    "check_interrupt_flag": lambda store, session: store.check_interrupt_flag(session),
    "clear_interrupt_flag": lambda store, session: store.clear_interrupt_flag(session),
    "begin_effect": lambda store, session: store.begin_effect(replace(effect("c-2"), session_id=session)),
    "queue_turn": lambda store, session: store.queue_turn(queued("r-queued", session_id=session)),
    "change_queued": lambda store, session: store.change_queued(session, "r-queued", QueueChange(first=True)),
    "drop_queued": lambda store, session: store.drop_queued(session, "r-queued"),
}
"""Writes that leave the session record alone."""

READS: Mapping[str, Operation] = {
    "load_state": lambda store, session: store.load_state(session),
    "get_messages": lambda store, session: store.get_messages(session),
    "load_transcript": lambda store, session: store.load_transcript(session),
    "get_message_count": lambda store, session: store.get_message_count(session),
    "list_runs": lambda store, session: store.list_runs(session),
    "list_checkpoints": lambda store, session: store.list_checkpoints(session),
    "load_checkpoint_state": lambda store, session: store.load_checkpoint_state(session, "ckpt"),
    "get_sub_session_refs": lambda store, session: store.get_sub_session_refs(session),
    "get_staged_changes": lambda store, session: store.get_staged_changes(session, "step"),
    "has_staged_changes": lambda store, session: store.has_staged_changes(session),
    "find_interrupt_flag": lambda store, session: store.find_interrupt_flag(session),
    "wait_for_interrupt": lambda store, session: store.wait_for_interrupt(session, 0),
    "list_effects": lambda store, session: store.list_effects(session),
    "list_queued": lambda store, session: store.list_queued(session),
    "find_queued": lambda store, session: store.find_queued(session, "r-queued"),
    "clone_session": lambda store, session: store.clone_session(BranchPoint(from_session_id=session), "clone"),
}
"""What is asked of one session, and cloning, which leaves its source alone."""

ON_ONE_SESSION: Mapping[str, Operation] = {
    **{name: call for name, call in COMMITS.items() if name != "fenced step commit"},
    **ROWS_OF_OTHERS,
    **READS,
    "renew_effect": lambda store, session: store.renew_effect(session, "c-1", "worker-1", 1_000),
    "finish_effect": lambda store, session: store.finish_effect(session, "c-1", "worker-1", None),
}
"""Every operation that needs its session to be there."""
