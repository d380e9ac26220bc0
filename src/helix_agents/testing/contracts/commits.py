"""The contract of the step commit: everything in a step together, once, and only by the current run."""

import pytest
from msgspec.structs import replace

from helix_agents.domain.commits import Committed, ParentLink
from helix_agents.domain.errors import StaleStateError, SupersededError
from helix_agents.domain.messages import ToolMessage
from helix_agents.domain.runs import RunStatus, RunUpdate
from helix_agents.domain.sessions import (
    CreateSession,
    SessionFilter,
    StopKind,
    SuspensionContext,
)
from helix_agents.domain.sub_sessions import SubSessionRefUpdate
from helix_agents.domain.usage import UsageEntry
from helix_agents.domain.writes import MergeWarning
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.store_handles import StoreContract
from helix_agents.testing.observation import observe
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.scenes import (
    FENCE,
    RUN,
    SESSION,
    answer,
    append_to,
    asked,
    child_ref,
    commit,
    effect,
    fence_of,
    said,
    set_key,
    staged,
    start,
    step_meta,
    suspend,
    waiting,
)

SUSPENSION = SuspensionContext(kind="suspended_client_tool", run_id=RUN, step_id=step_meta().step_id, step=1)


class CommitsContract(StoreContract):
    """The step commit, and starting a child under its parent."""

    @proves("commits.everything-together")
    async def test_everything_of_a_step_is_there_with_its_commit(
        self, store: SessionStateStore, clock: ManualClock
    ) -> None:
        await start(store, create=CreateSession(custom_state={"list": [0]}))
        await store.add_sub_session_refs(SESSION, [child_ref("known")])
        await store.begin_effect(effect("pay-1"))
        await store.stage_changes(SESSION, staged("c-1", append_to("list", 1)))
        clock.advance(7)
        messages = (asked("c-1", "call-1"), ToolMessage(tool_call_id="c-1", tool_name="tool", content="done"))
        answered = await suspend(
            store,
            1,
            waiting(store, "call-1"),
            messages=messages,
            writes=append_to("list", 2),
            refs=(child_ref("new"),),
            ref_updates=(SubSessionRefUpdate(sub_session_id="known", status="suspended"),),
            forget_effects=("pay-1",),
            state={"step_count": 1, "suspended_step_id": step_meta().step_id, "suspension_context": SUSPENSION},
        )
        found = await store.load_state(SESSION)
        assert (found.version, found.custom_state, found.step_count) == (2, {"list": [0, 1, 2]}, 1)
        assert (found.suspended_step_id, found.suspension_context) == (step_meta().step_id, SUSPENSION)
        assert (found.checkpoint_id, found.updated_at) == (answered.checkpoint_id, clock.now_ms())
        assert (answered.new_version, answered.message_count) == (2, 2)
        assert found.pending_client_tool_calls.keys() == {"call-1"}
        assert tuple(row.message for row in await store.load_transcript(SESSION)) == messages
        assert not await store.has_staged_changes(SESSION)
        assert await store.list_effects(SESSION) == ()
        refs = {ref.sub_session_id: ref.status for ref in await store.get_sub_session_refs(SESSION)}
        assert refs == {"known": "suspended", "new": "running"}
        run = await store.get_run(RUN)
        assert run is not None
        assert (run.status, run.step_count, run.ended_at) == ("suspended_client_tool", 1, clock.now_ms())

    @proves("commits.same-again")
    async def test_the_same_step_again_gets_the_first_answer(
        self, store: SessionStateStore, clock: ManualClock
    ) -> None:
        await start(store)
        record = await store.load_state(SESSION)

        async def send() -> Committed:
            return await commit(
                store, messages=[said("once")], writes=append_to("list", 1), pending=(waiting(store, "call-1"),)
            )

        first = await send()
        assert record.version + 1 == first.new_version
        before = await observe(store, SESSION)
        clock.advance(1)
        assert await send() == first
        assert await observe(store, SESSION) == before
        other_round = await commit(store, round=1, writes=append_to("list", 2))
        assert other_round.new_version == first.new_version + 1

    @proves("commits.same-again-after-the-end")
    async def test_the_step_that_ended_the_run_gets_its_answer_again(self, store: SessionStateStore) -> None:
        await start(store)

        async def send() -> Committed:
            return await suspend(store, 1, waiting(store, "call-1"), messages=[said("once")])

        first = await send()
        before = await observe(store, SESSION)
        assert await send() == first
        assert await observe(store, SESSION) == before
        # What others do meanwhile does not change the result.
        await store.submit_answer(answer("call-1"))
        await store.append_messages(SESSION, [said("later")])
        await store.update_status(SESSION, "paused")
        assert await send() == first
        with pytest.raises(SupersededError):
            await commit(store, 2)

    @proves("commits.same-again")
    async def test_the_first_answer_is_remembered_in_full(self, store: SessionStateStore) -> None:
        await start(store)
        await commit(store, pending=(waiting(store, "call-1"),))
        await store.submit_answer(answer("call-1"))
        await store.stage_changes(SESSION, staged("c-1", set_key("key", 1, call="c-1"), step=2))

        async def send() -> Committed:
            return await suspend(store, 2, writes=set_key("key", 2, call="c-2"), messages=[said("once")])

        first = await send()
        assert first.again
        assert [call.tool_call_id for call in first.pending] == ["call-1"]
        assert [warning.key for warning in first.warnings] == ["key"]
        assert await send() == first

    @proves("commits.older-step-refused")
    async def test_an_older_step_is_superseded(self, store: SessionStateStore) -> None:
        await start(store)
        await commit(store, 2, round=1)
        before = await observe(store, SESSION)
        for step, number in ((1, 0), (2, 0)):
            with pytest.raises(SupersededError):
                await commit(store, step, round=number, messages=[said("late")])
        assert await observe(store, SESSION) == before

    @proves("fence.older-run-refused", "fence.older-attempt-refused", "fence.ended-run-refused")
    @pytest.mark.parametrize("how", ["replaced", "taken over", "ended", "never there", "recorded over"])
    async def test_a_zombie_commits_nothing(self, store: SessionStateStore, how: str) -> None:
        await start(store)
        await commit(store)
        fence = FENCE
        match how:
            case "replaced":
                await start(store, run_id="r-2")
            case "taken over":
                await store.claim_run(SESSION, FENCE, "worker-2")
            case "ended":
                await store.update_run_status(RUN, "failed")
            case "recorded over":
                await store.create_run(SESSION, "r-2")
            case _:
                fence = fence_of("r-never")
        before = await observe(store, SESSION)
        with pytest.raises(SupersededError) as refusal:
            await commit(store, 2, fence=fence, messages=[said("zombie")], pending=(waiting(store, "call-1"),))
        assert (refusal.value.session_id, refusal.value.run_id) == (SESSION, fence.run_id)
        assert await observe(store, SESSION) == before

    @proves("fence.older-attempt-refused")
    async def test_the_new_attempt_goes_on_where_the_old_one_stopped(self, store: SessionStateStore) -> None:
        await start(store)
        await commit(store, messages=[said("a")])
        attempt = (await store.claim_run(SESSION, FENCE, "worker-2")).fence
        # The same step of another attempt is another commit: the result of the first attempt does not matter.
        await commit(store, 2, fence=attempt, messages=[said("b")])
        assert await store.get_message_count(SESSION) == 2
        with pytest.raises(SupersededError):
            await commit(store, messages=[said("a")])

    @proves("fence.checked-first")
    async def test_a_wrong_fence_is_reported_before_anything_else(self, store: SessionStateStore) -> None:
        await start(store, create=CreateSession(custom_state={"text": "x"}))
        await start(store, run_id="r-2")
        with pytest.raises(SupersededError):
            await commit(store, expected_version=77, writes=append_to("text", 1))

    @proves("commits.stale-refused", "versions.failed-write-changes-nothing")
    async def test_an_outdated_version_is_refused(self, store: SessionStateStore) -> None:
        await start(store)
        await store.stage_changes(SESSION, staged("c-1", append_to("list", 1)))
        before = await observe(store, SESSION)
        with pytest.raises(StaleStateError) as refusal:
            await commit(store, expected_version=7, messages=[said("x")], pending=(waiting(store, "call-1"),))
        assert (refusal.value.expected, refusal.value.found) == (7, 1)
        with pytest.raises(StaleStateError):
            await store.save_state_and_promote_staging(
                SESSION, await store.load_state(SESSION), [said("x")], step_meta(), expected_version=2
            )
        assert await observe(store, SESSION) == before

    @proves("commits.only-the-named-keys")
    async def test_a_commit_changes_only_the_keys_it_names(self, store: SessionStateStore) -> None:
        await start(store, create=CreateSession(custom_state={"a": 1, "b": 1}))
        old = {"custom_state": {"a": 99}}
        await store.merge_custom_state(SESSION, set_key("b", 2))
        await commit(store, writes=set_key("c", 3), state=old)
        assert (await store.load_state(SESSION)).custom_state == {"a": 1, "b": 2, "c": 3}
        await commit(store, 2, state=old)
        assert (await store.load_state(SESSION)).custom_state == {"a": 1, "b": 2, "c": 3}

    @proves("commits.plain-record")
    async def test_without_a_commit_the_record_replaces_the_state(self, store: SessionStateStore) -> None:
        created = await store.create_session(SESSION, CreateSession(custom_state={"a": 1, "gone": 1}))
        await store.stage_changes(SESSION, staged("c-1", set_key("staged", True)))
        await store.stage_changes(SESSION, staged("c-2", set_key("a", "staged"), index=1))
        record = replace(created, custom_state={"a": 1, "new": 2}, status="paused", step_count=3)
        answered = await store.save_state_and_promote_staging(
            SESSION, record, [said("hi")], step_meta(), expected_version=1
        )
        found = await store.load_state(SESSION)
        assert found.custom_state == {"a": "staged", "staged": True, "new": 2}
        assert (found.status, found.step_count, found.message_count) == ("paused", 3, 1)
        assert (found.checkpoint_source, found.checkpoint_id) == ("staging", answered.checkpoint_id)
        assert answered.new_version == found.version == 2
        assert not await store.has_staged_changes(SESSION)

    @proves("commits.staged-before-own")
    async def test_staged_writes_apply_before_the_steps_own(self, store: SessionStateStore) -> None:
        await start(store)
        await store.stage_changes(SESSION, staged("c-2", append_to("list", 2), index=2))
        await store.stage_changes(SESSION, staged("c-1", append_to("list", 1), index=1))
        await commit(store, stage=(staged("c-3", append_to("list", 3), index=3),), writes=append_to("list", "own"))
        assert (await store.load_state(SESSION)).custom_state == {"list": [1, 2, 3, "own"]}

    @proves("commits.promotion-optional")
    async def test_a_commit_may_leave_staging_alone(self, store: SessionStateStore) -> None:
        await start(store)
        await store.stage_changes(SESSION, staged("c-1", append_to("list", 1)))
        await commit(store, promote_staging=False, stage=(staged("c-2", append_to("list", 2), index=2),))
        assert (await store.load_state(SESSION)).custom_state == {}
        await commit(store, round=1)
        assert (await store.load_state(SESSION)).custom_state == {"list": [1, 2]}

    @proves("commits.warns")
    async def test_a_step_whose_calls_contest_a_key_says_so(self, store: SessionStateStore) -> None:
        await start(store)
        await store.stage_changes(SESSION, staged("c-2", set_key("key", 2, call="c-2"), index=2))
        await store.stage_changes(SESSION, staged("c-1", append_to("key", 1, call="c-1"), index=1))
        answered = await commit(store, writes=append_to("other", 1, call="c-3"))
        assert answered.warnings == (MergeWarning(key="key", tool_call_ids=("c-1", "c-2")),)
        assert (await store.load_state(SESSION)).custom_state == {"key": 2, "other": [1]}

    @proves("commits.ends-the-run")
    @pytest.mark.parametrize("status", ["completed", "failed", "interrupted"])
    async def test_a_step_may_end_its_run(
        self, store: SessionStateStore, clock: ManualClock, status: RunStatus
    ) -> None:
        await start(store)
        await commit(store)
        clock.advance(9)
        update = RunUpdate(status=status, completion_reason="why", error="e", output=[1, None])
        await commit(store, 2, run=update, state={"status": "completed", "output": {"a": 1}})
        run = await store.get_run(RUN)
        assert run is not None
        assert (run.status, run.completion_reason, run.error, run.output) == (status, "why", "e", [1, None])
        assert (run.step_count, run.ended_at) == (2, clock.now_ms())
        found = await store.load_state(SESSION)
        assert (found.status, found.output) == ("completed", {"a": 1})

    @proves("commits.keeps-a-pause")
    async def test_a_pause_that_came_in_meanwhile_is_kept(self, store: SessionStateStore) -> None:
        await start(store)
        assert (await commit(store)).status == "active"
        await store.update_status(SESSION, "paused")
        assert (await commit(store, 2, state={"status": "active"})).status == "paused"
        assert (await store.load_state(SESSION)).status == "paused"
        assert (await commit(store, 3, state={"status": "completed"})).status == "completed"
        assert (await store.load_state(SESSION)).status == "completed"

    @proves("commits.leaves-labels-alone")
    async def test_what_others_say_of_a_session_while_a_run_goes_on_is_kept(self, store: SessionStateStore) -> None:
        created = CreateSession(user_id="ada", tags=("new",), metadata={"title": "?", "old": "yes"}, expires_at=5_000)
        await start(store, create=created)
        await commit(store, pending=(waiting(store, "call-1"),))
        read = await store.load_state(SESSION)
        await store.patch_metadata(SESSION, {"title": "Tides", "old": None})
        await store.submit_answer(answer("call-1", expires_at=9_000))
        about = {"user_id": "bob", "tags": ("old",), "metadata": read.metadata, "expires_at": read.expires_at}
        for step, consumed in ((2, ()), (3, ("call-1",))):
            await commit(store, step, state=about, consume=consumed)
            found = await store.load_state(SESSION)
            assert (found.user_id, found.tags, found.metadata) == ("ada", ("new",), {"title": "Tides"})
            assert found.expires_at == 9_000
        listed = await store.list_sessions(SessionFilter(metadata={"title": "Tides"}, tags=("new",), user_id="ada"))
        assert [each.session_id for each in listed.items] == [SESSION]

    @proves("commits.patches-metadata")
    @pytest.mark.parametrize("suspend", [False, True])
    async def test_a_step_sets_and_removes_the_keys_it_names(self, store: SessionStateStore, suspend: bool) -> None:
        await start(store, create=CreateSession(tags=("t",), metadata={"a": "1", "b": "2"}))
        await store.patch_metadata(SESSION, {"c": 'it\'s "3"'})
        await commit(store, metadata={"a": None, "b": "two", "d": "4", "never": None}, suspend=suspend)
        found = await store.load_state(SESSION)
        assert found.metadata == {"b": "two", "c": 'it\'s "3"', "d": "4"}
        listed = await store.list_sessions(SessionFilter(metadata={"b": "two", "d": "4"}, tags=("t",)))
        assert [each.session_id for each in listed.items] == [SESSION]
        await commit(store, 2, metadata=dict.fromkeys(found.metadata))
        assert (await store.load_state(SESSION)).metadata == {}
        assert (await store.list_sessions(SessionFilter(metadata={"b": "two"}))).total == 0

    @proves("commits.takes-the-stop")
    async def test_a_step_may_take_the_stop(self, store: SessionStateStore) -> None:
        await start(store)
        await store.set_interrupt_flag(SESSION, "stop")
        await commit(store)
        assert await store.find_interrupt_flag(SESSION) is not None
        await commit(store, 2, take_stop=True, run=RunUpdate(status="interrupted"))
        assert (await store.load_state(SESSION)).interrupt_flag is None

    @proves("records.round-trip")
    async def test_a_zero_character_is_stored_wherever_a_step_puts_one(self, store: SessionStateStore) -> None:
        await start(store)
        await store.stage_changes(SESSION, staged("c-1", data="\0"))
        later = staged("c-2", data="\0", step=2)
        used = UsageEntry(
            session_id=SESSION,
            root_session_id=SESSION,
            run_id=RUN,
            source_type="custom",
            source_name="x",
            metadata={"a": "\0"},
        )
        helper = child_ref("child", result="\0")
        await commit(store, 1, promote_staging=True, stage=(later,), refs=(helper,), usage=(used,))
        assert not await store.has_staged_changes(SESSION, step_meta(1).step_id)
        (kept,) = await store.get_staged_changes(SESSION, later.step_id)
        assert kept.data == "\0"
        assert [ref.result for ref in await store.get_sub_session_refs(SESSION)] == ["\0"]
        ended = RunUpdate(status="failed", output={"a": "\0"}, error="\0", completion_reason="\0")
        await commit(store, 2, messages=(said("\0"),), state={"output": "\0", "error": "\0"}, run=ended)
        run = await store.get_run(RUN)
        assert run is not None
        assert (run.status, run.output, run.error, run.completion_reason) == ("failed", {"a": "\0"}, "\0", "\0")
        await start(store, run_id="r-2")
        call = waiting(store, "call-1", run_id="r-2", input={"a": "\0"})
        first = await suspend(store, 1, call, fence=fence_of("r-2"), usage=(replace(used, n=1),))
        assert [each.input for each in first.pending] == [{"a": "\0"}]
        assert await suspend(store, 1, call, fence=fence_of("r-2")) == first
        await start(store, run_id="r-3")
        assert await store.get_message_count(SESSION) == 1

    @proves("commits.leaves-an-unseen-abort")
    @pytest.mark.parametrize(
        ("kind", "status", "is_left"),
        [("abort", "interrupted", True), ("abort", "failed", False), ("interrupt", "interrupted", False)],
    )
    async def test_an_abort_that_a_run_did_not_see_outlives_it(
        self, store: SessionStateStore, kind: StopKind, status: RunStatus, is_left: bool
    ) -> None:
        await start(store)
        await store.set_interrupt_flag(SESSION, "stop", kind=kind)
        await commit(store, take_stop=True, drop_pending=True, run=RunUpdate(status=status))
        assert (await store.find_interrupt_flag(SESSION) is not None) == is_left
        await start(store, run_id="r-2")
        assert await store.find_interrupt_flag(SESSION) is None

    @proves("commits.suspension-sees-a-stop")
    @pytest.mark.parametrize("kind", ["interrupt", "abort"])
    async def test_a_suspending_step_of_a_run_that_was_asked_to_stop_goes_on(
        self, store: SessionStateStore, kind: StopKind
    ) -> None:
        await start(store)
        await store.set_interrupt_flag(SESSION, "for another run")
        await start(store, run_id="r-2")
        await store.set_interrupt_flag(SESSION, "stop", kind=kind)
        fence = fence_of("r-2")
        asked = await suspend(store, 1, waiting(store, "call-1", run_id="r-2"), fence=fence)
        assert asked.again
        assert await suspend(store, 1, waiting(store, "call-1", run_id="r-2"), fence=fence) == asked
        run = await store.get_run("r-2")
        assert run is not None
        assert run.status == "running"
        flag = await store.find_interrupt_flag(SESSION)
        assert flag is not None
        assert (flag.run_id, flag.kind) == ("r-2", kind)
        await store.clear_interrupt_flag(SESSION)
        assert not (await suspend(store, 1, round=1, fence=fence)).again

    @proves("runs.start-under-a-parent")
    async def test_a_childs_start_writes_at_its_parent(self, store: SessionStateStore) -> None:
        await start(store)
        version = (await store.load_state(SESSION)).version
        link = ParentLink(
            session_id=SESSION,
            fence=FENCE,
            ref=child_ref("child", parent_run_id=RUN),
            stage=(staged("delegate-1", data={"reply": 1}),),
        )
        create = CreateSession(agent_type="helper", parent_session_id=SESSION, root_session_id=SESSION)
        await start(store, "child", "r-child", create=create, parent=link, parent_run_id=RUN)
        assert [ref.sub_session_id for ref in await store.get_sub_session_refs(SESSION)] == ["child"]
        (row,) = await store.get_staged_changes(SESSION, step_meta().step_id)
        assert row.data == {"reply": 1}
        assert (await store.load_state(SESSION)).version == version
        await store.update_sub_session_ref(SESSION, SubSessionRefUpdate(sub_session_id="child", status="completed"))
        again = replace(link, ref=replace(link.ref, tool_call_id="again", delegation="other", mode="persistent"))
        await start(store, "child", "r-child-2", parent=again)
        (ref,) = await store.get_sub_session_refs(SESSION)
        assert (ref.status, ref.tool_call_id) == ("running", "again")
        assert (ref.delegation, ref.mode) == (link.ref.delegation, "ephemeral")
        second = await store.get_run("r-child-2")
        assert second is not None
        assert second.parent_run_id is None

    @proves("runs.start-needs-the-parents-fence", "versions.failed-write-changes-nothing")
    async def test_a_childs_start_under_an_outdated_parent_writes_nothing(self, store: SessionStateStore) -> None:
        await start(store)
        await store.claim_run(SESSION, FENCE, "worker-2")
        link = ParentLink(session_id=SESSION, fence=FENCE, ref=child_ref("child"), stage=(staged("delegate-1"),))
        create = CreateSession(parent_session_id=SESSION, root_session_id=SESSION)
        before = await observe(store, SESSION)
        with pytest.raises(SupersededError):
            await start(store, "child", "r-child", create=create, parent=link)
        assert await observe(store, SESSION) == before
        assert not await store.session_exists("child")
        assert await store.get_run("r-child") is None
