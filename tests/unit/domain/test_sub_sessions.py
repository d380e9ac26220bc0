"""How a reference to a child changes."""

from helix_agents.domain.sub_sessions import RemoteChild, SubSessionRef, SubSessionRefUpdate, updated

REF = SubSessionRef(sub_session_id="child", agent_type="helper", tool_call_id="c-1", delegation="help", error="old")


def test_an_update_changes_what_it_names_and_leaves_the_rest():
    after = updated(REF, SubSessionRefUpdate(sub_session_id="child", status="completed", result=7), 50)
    assert (after.status, after.result, after.error, after.updated_at) == ("completed", 7, "old", 50)
    assert updated(after, SubSessionRefUpdate(sub_session_id="child"), 50) == after


def test_a_child_that_is_asked_again_belongs_to_another_call():
    remote = RemoteChild(url="https://example.test", agent="helper", session_id="r")
    update = SubSessionRefUpdate(
        sub_session_id="child", tool_call_id="c-2", delegation="more", error="new", remote=remote
    )
    after = updated(REF, update, 50)
    assert (after.tool_call_id, after.delegation, after.error, after.remote) == ("c-2", "more", "new", remote)
