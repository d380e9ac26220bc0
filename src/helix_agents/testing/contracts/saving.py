"""The contract of a session's record: what saving stores, how a status changes, how state writes combine."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from helix_agents.domain.budgets import Budget, Spending, Spent
from helix_agents.domain.commits import SettleSession
from helix_agents.domain.errors import (
    HelixError,
    InvalidIdError,
    InvalidWriteError,
    ModeIsWriteOnceError,
    StaleStateError,
    UnstorableValueError,
)
from helix_agents.domain.runs import RunMetadata, RunUpdate
from helix_agents.domain.sessions import (
    ChildWait,
    CreateSession,
    EarlierVersion,
    InterruptContext,
    OpenCall,
    SessionStatus,
    StatusChanged,
    StatusConflict,
    SuspensionContext,
    TracingContext,
    WorkspaceRef,
)
from helix_agents.domain.sub_sessions import SubSessionRefUpdate
from helix_agents.domain.writes import (
    Add,
    Append,
    Delete,
    Include,
    MergeWarning,
    Replace,
    StepWrites,
    Update,
    WriteOp,
)
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.contracts.store_handles import StoreContract, StoreHandles
from helix_agents.testing.observation import observe
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.scenes import (
    SESSION,
    answer,
    append_to,
    child_ref,
    commit,
    effect,
    said,
    set_key,
    start,
    step_meta,
    suspend,
    waiting,
)

CONTEXT = InterruptContext(reason="пауза", run_id="r-1", step_count=3, at=5, details={"by": ["op", None]})

WRITTEN_FIELDS: dict[str, Any] = {
    "agent_type": "editor",
    "held_by": "checker",
    "agent_version": 3,
    "earlier_versions": (EarlierVersion(agent_version=2, until=1, agent="editor"),),
    "stream_id": "stream-2",
    "custom_state": {"kept": 1, "nested": {"deep": [{"x": None}, [], {}]}, "naïve": "日本語 🌊"},
    "status": "interrupted",
    "step_count": 4,
    "output": {"title": "tides", "parts": [1, 2.5, None, True]},
    "error": "out of paper",
    "failure_reason": "paper",
    "interrupt_context": CONTEXT,
    "suspended_awaiting_children": {
        "d-1": ChildWait(tool_call_id="d-1", child_session_id="child", agent_type="helper")
    },
    "suspended_step_id": "step-9",
    "suspension_context": SuspensionContext(
        kind="suspended_step_partial",
        run_id="r-1",
        step_id="step-9",
        step=9,
        round=2,
        reason="why",
        calls=(OpenCall(tool_call_id="c", tool_name="t", kind="client", child_session_id="x", settled=True),),
        children=(ChildWait(tool_call_id="d-1", child_session_id="child", agent_type="helper"),),
        remaining_steps=5,
        agent_version=3,
        entry_messages=(said("meanwhile"),),
    ),
    "tracing_context": TracingContext(trace_id="t2", root_span_id="r2"),
    "expires_at": 1_900_000_000_000,
    "user_id": "user-2",
    "tags": ("b", "a"),
    "metadata": {"k": "v", "empty": ""},
    "workspace_ref": WorkspaceRef(provider_id="p", ref="r"),
    "mode": "standard",
    "resumed": True,
    "budget": Budget(tokens=9, cost_usd=0.5, model_calls=3, scope="run"),
    "spent": Spent(since="r-1", own=Spending(tokens=7, cost_usd=0.25), at_work={"r-2": Spending(unpriced="m")}),
    "queued_at": 1_800_000_000_000,
}


class SavingContract(StoreContract):
    """Saving, status changes and state writes."""

    @proves("save.stores-every-field", "records.round-trip")
    async def test_saving_stores_every_field_of_its_writer(self, store: SessionStateStore) -> None:
        await store.create_session(SESSION, CreateSession(custom_state={"gone": 1, "kept": 1}))
        loaded = await store.load_state(SESSION)
        saved = await store.save_state(SESSION, replace(loaded, **WRITTEN_FIELDS))
        found = await store.load_state(SESSION)
        assert {name: getattr(found, name) for name in WRITTEN_FIELDS} == WRITTEN_FIELDS
        assert found.version == saved.new_version == 2

    @proves("save.stores-every-field", "records.round-trip")
    async def test_saving_clears_what_the_record_leaves_out(self, store: SessionStateStore) -> None:
        created = await store.create_session(SESSION)
        await store.save_state(SESSION, replace(created, **WRITTEN_FIELDS))
        await store.save_state(SESSION, replace(created, mode="standard"))
        found = await store.load_state(SESSION)
        for name in WRITTEN_FIELDS:
            if name != "mode":
                assert getattr(found, name) == getattr(created, name), name

    @proves("save.ignores-rows-of-others")
    async def test_saving_an_old_record_undoes_nothing_that_others_wrote(self, store: SessionStateStore) -> None:
        await start(store)
        await commit(store, pending=(waiting(store, "call-1"),))
        old = await store.load_state(SESSION)
        await store.set_interrupt_flag(SESSION, "stop")
        await store.submit_answer(answer("call-1"))
        seen = await store.load_state(SESSION)
        assert (await store.save_state(SESSION, old, expected_version=old.version)).new_version == old.version + 1
        found = await store.load_state(SESSION)
        for name in (
            "interrupt_flag",
            "pending_client_tool_calls",
            "completed_client_tool_calls",
            "client_tool_call_ownership",
            "current_run_id",
        ):
            assert getattr(found, name) == getattr(seen, name) != getattr(await store.create_session(name), name)

    @proves("save.keeps-identity")
    async def test_saving_never_changes_who_a_session_is(self, store: SessionStateStore) -> None:
        await store.create_session("root")
        created = await store.create_session(SESSION, CreateSession(parent_session_id="root", root_session_id="root"))
        foreign: dict[str, Any] = {
            "parent_session_id": None,
            "root_session_id": SESSION,
            "version": 70,
            "created_at": 1,
            "message_count": 9,
            "resume_count": 9,
            "current_run_id": "made-up",
        }
        await store.save_state(SESSION, replace(created, **foreign))
        found = await store.load_state(SESSION)
        for name in foreign.keys() - {"version"}:
            assert getattr(found, name) == getattr(created, name), name
        assert found.version == 2

    @proves("save.stale-refused", "versions.failed-write-changes-nothing")
    async def test_an_outdated_record_is_refused_with_both_versions(self, store: SessionStateStore) -> None:
        mine = await store.create_session(SESSION)
        await store.merge_custom_state(SESSION, set_key("by", "somebody else"))
        before = await observe(store, SESSION)
        with pytest.raises(StaleStateError) as refusal:
            await store.save_state(SESSION, replace(mine, status="failed"), expected_version=mine.version)
        assert (refusal.value.expected, refusal.value.found) == (1, 2)
        assert await observe(store, SESSION) == before

    @proves("save.unconditional")
    async def test_without_an_expectation_the_last_save_stands(self, store: SessionStateStore) -> None:
        mine = await store.create_session(SESSION, CreateSession(custom_state={"a": 1}))
        await store.merge_custom_state(SESSION, set_key("a", 2))
        await store.save_state(SESSION, mine)
        assert (await store.load_state(SESSION)).custom_state == {"a": 1}

    @proves("save.mode-write-once")
    async def test_a_mode_that_was_set_cannot_change(self, store: SessionStateStore) -> None:
        created = await store.create_session(SESSION)
        await store.save_state(SESSION, replace(created, mode="standard"))
        await store.save_state(SESSION, replace(created, mode="standard"))
        with pytest.raises(ModeIsWriteOnceError) as refusal:
            await store.save_state(SESSION, replace(created, mode="persistent"))
        assert (refusal.value.stored, refusal.value.given) == ("standard", "persistent")
        assert (await store.load_state(SESSION)).mode == "standard"

    @proves("save.leaves-a-checkpoint")
    async def test_saving_leaves_a_checkpoint_with_the_keys_that_changed(self, store: SessionStateStore) -> None:
        created = await store.create_session(SESSION, CreateSession(custom_state={"a": 1, "b": 2, "same": [1]}))
        await store.append_messages(SESSION, [said("hi")])
        saved = await store.save_state(
            SESSION, replace(created, custom_state={"a": True, "c": 3, "same": [1]}, step_count=2)
        )
        checkpoint = await store.get_latest_checkpoint(SESSION)
        assert checkpoint is not None
        assert checkpoint.checkpoint_id == saved.checkpoint_id
        assert (checkpoint.source, checkpoint.step_id, checkpoint.step_count) == ("save", None, 2)
        assert (checkpoint.message_count, checkpoint.version) == (1, 3)
        assert {type(op).__name__ + " " + op.key for op in checkpoint.writes.ops} == {
            "Delete b",
            "Replace a",
            "Replace c",
        }

    @proves("status.update-stores-context")
    @pytest.mark.parametrize("status", ["active", "completed", "failed", "interrupted", "paused"])
    async def test_a_status_is_stored_with_its_context(self, store: SessionStateStore, status: SessionStatus) -> None:
        await store.create_session(SESSION)
        version = await store.update_status(SESSION, status, interrupt_context=CONTEXT, error="e", failure_reason="f")
        found = await store.load_state(SESSION)
        assert (found.status, found.interrupt_context, found.error, found.failure_reason) == (status, CONTEXT, "e", "f")
        assert found.version == version == 2

    @proves("status.compare-and-set")
    async def test_a_status_changes_if_it_is_one_of_the_expected(self, store: SessionStateStore) -> None:
        await store.create_session(SESSION)
        outcome = await store.compare_and_set_status(
            SESSION,
            ("paused", "active"),
            "interrupted",
            interrupt_context=CONTEXT,
            error="e",
            failure_reason="f",
            expected_version=1,
        )
        assert outcome == StatusChanged(new_version=2)
        assert outcome.ok
        found = await store.load_state(SESSION)
        assert (found.status, found.interrupt_context, found.error, found.failure_reason) == (
            "interrupted",
            CONTEXT,
            "e",
            "f",
        )

    @proves("status.conflict-is-truthful", "status.conflict-changes-nothing")
    async def test_a_lost_compare_and_set_tells_what_is_stored(self, store: SessionStateStore) -> None:
        await store.create_session(SESSION)
        await store.update_status(SESSION, "paused")
        before = await observe(store, SESSION)
        wrong_status = await store.compare_and_set_status(SESSION, ("active",), "failed", error="never")
        wrong_version = await store.compare_and_set_status(SESSION, ("paused",), "failed", expected_version=1)
        nothing_expected = await store.compare_and_set_status(SESSION, (), "failed")
        for outcome in (wrong_status, wrong_version, nothing_expected):
            assert outcome == StatusConflict(current_status="paused", current_version=2)
            assert not outcome.ok
        assert await observe(store, SESSION) == before

    @proves("status.one-winner")
    async def test_of_many_compare_and_sets_from_one_version_one_wins(self, handles: StoreHandles) -> None:
        stores = [await handles.open() for _ in range(3)]
        await stores[0].create_session(SESSION)
        outcomes = await asyncio.gather(
            *(
                store.compare_and_set_status(SESSION, ("active", "paused"), "paused", expected_version=1)
                for store in stores
                for _ in range(4)
            )
        )
        assert [each for each in outcomes if each.ok] == [StatusChanged(new_version=2)]
        lost = [each for each in outcomes if not each.ok]
        assert lost == [StatusConflict(current_status="paused", current_version=2)] * 11

    @proves("writes.in-order")
    async def test_writes_apply_in_their_order(self, store: SessionStateStore) -> None:
        await store.create_session(SESSION, CreateSession(custom_state={"list": [1], "old": "x", "doomed": 1}))
        merged = await store.merge_custom_state(
            SESSION,
            StepWrites(
                ops=(
                    Append(key="list", items=[2, [3]]),
                    Append(key="list", items=[]),
                    Append(key="fresh", items=[{"a": None}]),
                    Replace(key="old", value="y"),
                    Replace(key="old", value=None),
                    Delete(key="doomed"),
                    Delete(key="never-there"),
                    Replace(key="back", value=[0]),
                    Delete(key="back"),
                    Append(key="back", items=[1]),
                )
            ),
        )
        found = await store.load_state(SESSION)
        assert found.custom_state == {"list": [1, 2, [3]], "fresh": [{"a": None}], "old": None, "back": [1]}
        assert (merged.new_version, merged.warnings) == (2, ())

    @proves("writes.changes-meet-what-is-there")
    async def test_changes_are_made_in_what_is_there(self, store: SessionStateStore) -> None:
        there = {"sum": 10, "object": {"a": 1, "b": 2}, "items": ["x", "y"], "text": "t", "exact": 0.1, "huge": 1e308}
        await start(store, create=CreateSession(custom_state=there))
        changes: tuple[WriteOp, ...] = (
            Add(key="sum", before=3, after=5),
            Add(key="sum", after=-1),
            Add(key="exact", before=0.1, after=0.3),
            Add(key="huge", before=0, after=1.5e308),
            Add(key="new sum", after=2.5),
            Update(key="object", entries={"b": 3, "c": None}, removed=("a", "never there")),
            Update(key="new object", entries={"a": []}),
            Include(key="items", items=["y", {"z": 1}], removed=["x", "never there"]),
            Include(key="new items", items=[1, True, 1]),
        )
        before = (await store.load_state(SESSION)).version
        await store.merge_custom_state(SESSION, StepWrites(ops=changes[:5]))
        committed = await commit(store, writes=StepWrites(ops=changes[5:]))
        expected: dict[str, Any] = {
            "sum": 11,
            "exact": 0.3,
            "huge": 1.5e308,
            "new sum": 2.5,
            "object": {"b": 3, "c": None},
            "new object": {"a": []},
            "items": ["y", {"z": 1}],
            "new items": [1, True],
        }
        assert (await store.load_state(SESSION)).custom_state == {**expected, "text": "t"}
        assert (committed.new_version, committed.warnings) == (before + 2, ())
        others: list[tuple[WriteOp, Any]] = [
            (Add(key="text", after=7), 7),
            (Update(key="text", entries={"a": 1}), {"a": 1}),
            (Include(key="text", items=["x"]), ["x"]),
        ]
        for op, becomes in others:
            await store.merge_custom_state(SESSION, StepWrites(ops=(Replace(key="text", value="t"), op)))
            assert (await store.load_state(SESSION)).custom_state == {**expected, "text": becomes}
        # A value that has become a list accepts an append, and one that is no longer a list refuses it.
        await store.merge_custom_state(SESSION, append_to("text", "z"))
        with pytest.raises(InvalidWriteError):
            await store.merge_custom_state(SESSION, append_to("sum", 1))

    @proves("writes.append-needs-a-list", "versions.failed-write-changes-nothing")
    @pytest.mark.parametrize("value", ["text", 1, None, {"a": 1}], ids=repr)
    async def test_an_append_needs_a_list(self, store: SessionStateStore, value: Any) -> None:
        await start(store, create=CreateSession(custom_state={"key": value}))
        before = await observe(store, SESSION)
        writes = StepWrites(ops=(Replace(key="other", value=1), Append(key="key", items=[1])))
        with pytest.raises(InvalidWriteError) as refusal:
            await store.merge_custom_state(SESSION, writes)
        assert (refusal.value.session_id, refusal.value.key) == (SESSION, "key")
        with pytest.raises(InvalidWriteError):
            await commit(store, writes=writes, messages=[said("lost")])
        assert await observe(store, SESSION) == before

    @proves("writes.append-needs-a-list")
    async def test_a_session_in_the_place_of_a_deleted_one_is_known_by_its_own_state(
        self, store: SessionStateStore
    ) -> None:
        await store.create_session("gone")
        await store.merge_custom_state("gone", StepWrites(ops=(Append(key="list", items=[1]), Replace(key="x"))))
        await store.delete_session("gone")
        await store.create_session(SESSION, CreateSession(custom_state={"list": 1}))
        await store.update_status(SESSION, "active")
        with pytest.raises(InvalidWriteError):
            await store.merge_custom_state(SESSION, StepWrites(ops=(Append(key="list", items=[1]),)))
        await store.merge_custom_state(SESSION, StepWrites(ops=(Append(key="x", items=[1]),)))
        assert (await store.load_state(SESSION)).custom_state == {"list": 1, "x": [1]}

    @proves("writes.conflicts-are-reported")
    async def test_contested_keys_are_reported_with_their_calls(self, store: SessionStateStore) -> None:
        await store.create_session(SESSION)
        merged = await store.merge_custom_state(
            SESSION,
            StepWrites(
                ops=(
                    Append(key="both-append", items=[1], tool_call_id="a"),
                    Append(key="both-append", items=[2], tool_call_id="b"),
                    Replace(key="one-call", value=1, tool_call_id="a"),
                    Replace(key="one-call", value=2, tool_call_id="a"),
                    Append(key="contested", items=[1], tool_call_id="b"),
                    Replace(key="contested", value=2, tool_call_id="c"),
                )
            ),
        )
        assert merged.warnings == (MergeWarning(key="contested", tool_call_ids=("b", "c")),)

    @proves("writes.conflicts-are-reported")
    async def test_changes_that_go_together_are_no_conflict(self, store: SessionStateStore) -> None:
        await store.create_session(SESSION)
        merged = await store.merge_custom_state(
            SESSION,
            StepWrites(
                ops=(
                    Add(key="sum", after=1, tool_call_id="a"),
                    Add(key="sum", after=2, tool_call_id="b"),
                    Update(key="object", entries={"one": 1, "same": 0}, tool_call_id="a"),
                    Update(key="object", entries={"other": 2, "same": 0}, removed=("third",), tool_call_id="b"),
                    Include(key="items", items=[1, 2], tool_call_id="a"),
                    Include(key="items", items=[2], removed=[3], tool_call_id="b"),
                    Update(key="set twice", entries={"one": 1}, tool_call_id="a"),
                    Update(key="set twice", entries={"one": 2}, tool_call_id="b"),
                    Update(key="set and removed", entries={"one": 1}, tool_call_id="a"),
                    Update(key="set and removed", removed=("one",), tool_call_id="b"),
                    Include(key="in and out", items=[1], tool_call_id="a"),
                    Include(key="in and out", removed=[1], tool_call_id="b"),
                    Add(key="sum and value", after=1, tool_call_id="a"),
                    Replace(key="sum and value", value=5, tool_call_id="b"),
                )
            ),
        )
        contested = ("set twice", "set and removed", "in and out", "sum and value")
        assert merged.warnings == tuple(MergeWarning(key=key, tool_call_ids=("a", "b")) for key in contested)

    @proves("writes.concurrent-merges-arrive")
    async def test_concurrent_merges_all_arrive(self, handles: StoreHandles) -> None:
        stores = [await handles.open() for _ in range(2)]
        await stores[0].create_session(SESSION)
        await asyncio.gather(
            *(store.merge_custom_state(SESSION, append_to("list", n)) for n, store in enumerate(stores * 8))
        )
        found = await stores[1].load_state(SESSION)
        assert sorted(found.custom_state["list"]) == list(range(16))
        assert found.version == 17

    @proves("records.large-integers")
    async def test_integers_beyond_64_bits_come_back_exactly(self, store: SessionStateStore) -> None:
        numbers = {
            "huge": 2**200 + 1,
            "negative": -(2**64) - 1,
            "edge": 2**63,
            "precise": 2**53 + 1,
            "float": 0.1 + 0.2,
        }
        await start(store, create=CreateSession(custom_state=numbers))
        await commit(
            store,
            writes=append_to("list", 10**30),
            pending=(waiting(store, "call-1", input={"n": 10**30}),),
            state={"output": [2**100]},
        )
        found = await store.load_state(SESSION)
        assert found.custom_state == {**numbers, "list": [10**30]}
        assert found.output == [2**100]
        assert found.pending_client_tool_calls["call-1"].input == {"n": 10**30}

    @proves("records.unstorable-refused", "versions.failed-write-changes-nothing")
    @pytest.mark.parametrize(
        "value", [object(), "\ud800", {"a": [object()]}], ids=["object", "surrogate", "nested object"]
    )
    async def test_what_json_cannot_carry_is_refused(self, store: SessionStateStore, value: Any) -> None:
        created = await store.create_session(SESSION)
        before = await observe(store, SESSION)
        for write in (
            lambda: store.save_state(SESSION, replace(created, custom_state={"x": value})),
            lambda: store.save_state(SESSION, replace(created, output=value)),
            lambda: store.merge_custom_state(SESSION, set_key("x", value)),
            lambda: store.append_messages(SESSION, [replace(said("x"), metadata={"x": value})]),
            lambda: store.create_session("s-2", CreateSession(custom_state={"x": value})),
        ):
            with pytest.raises(UnstorableValueError):
                await write()
        assert await observe(store, SESSION) == before
        assert not await store.session_exists("s-2")

    @proves("records.wrong-types-refused", "versions.failed-write-changes-nothing")
    async def test_what_could_not_be_read_back_is_refused(self, store: SessionStateStore) -> None:
        run = (await start(store)).run
        wrong: Any = 5
        ended = SettleSession(session_id=SESSION, expected=("active",), status="failed")
        before = await observe(store, SESSION)
        state = await store.load_state(SESSION)
        for write in (
            lambda: store.create_session("s-2", CreateSession(metadata={"order": wrong})),
            lambda: store.save_state(SESSION, replace(state, error=wrong)),
            lambda: store.merge_custom_state(SESSION, set_key(wrong, "x")),
            lambda: store.append_messages(SESSION, [said(wrong)]),
            lambda: store.append_messages(SESSION, [wrong]),
            lambda: store.update_status(SESSION, wrong),
            lambda: store.update_status(SESSION, "failed", error=wrong),
            lambda: store.compare_and_set_status(SESSION, ["active"], "failed", failure_reason=wrong),
            lambda: store.patch_metadata(SESSION, {"order": wrong}),
            lambda: store.set_interrupt_flag(SESSION, wrong),
            lambda: store.set_interrupt_flag(SESSION, kind=wrong),
            lambda: store.create_run(SESSION, "r-2", RunMetadata(owner=wrong)),
            lambda: store.update_run_status(run.run_id, wrong),
            lambda: store.update_run_status(run.run_id, "failed", RunUpdate(error=wrong)),
            lambda: store.submit_answer(answer("call-1", approval_id=wrong)),
            lambda: store.begin_effect(replace(effect("call-1"), tool_name=wrong)),
            lambda: store.settle_session(replace(ended, completion_reason=wrong)),
            lambda: store.settle_session(replace(ended, append_messages=(said(wrong),))),
            lambda: commit(store, metadata={"order": wrong}),
        ):
            with pytest.raises(UnstorableValueError):
                await write()
        with pytest.raises(InvalidIdError):
            await store.create_session("s-2", CreateSession(user_id=wrong))
        assert await observe(store, SESSION) == before
        assert not await store.session_exists("s-2")

    @proves("records.wrong-types-refused", "versions.failed-write-changes-nothing")
    async def test_a_word_that_is_none_of_its_fields_is_refused(self, store: SessionStateStore) -> None:
        await start(store)
        wrong: Any = "unheard-of"
        before = await observe(store, SESSION)
        ended = SettleSession(session_id=SESSION, expected=("active",), status="failed")
        update = SubSessionRefUpdate(sub_session_id="child", status=wrong)
        for write in (
            lambda: store.update_status(SESSION, wrong),
            lambda: store.create_checkpoint(SESSION, replace(step_meta(), step_count=wrong)),
            lambda: store.add_sub_session_refs(SESSION, [child_ref("child", mode=wrong)]),
            lambda: store.update_sub_session_ref(SESSION, update),
            lambda: store.settle_session(replace(ended, status=wrong)),
            lambda: store.settle_session(replace(ended, run_status=wrong)),
            lambda: commit(store, pending=(waiting(store, "call-1", kind=wrong),)),
            lambda: commit(store, refs=(child_ref("child", mode=wrong),)),
            lambda: commit(store, ref_updates=(update,)),
        ):
            with pytest.raises(UnstorableValueError):
                await write()
        assert await observe(store, SESSION) == before

    @proves("records.answers-are-copies")
    async def test_a_value_changed_afterwards_changes_nothing_in_the_store(self, store: SessionStateStore) -> None:
        given: dict[str, Any] = {"list": [1]}
        message = replace(said("hi"), metadata={"list": [1]})
        items: list[Any] = [1]
        await start(store, create=CreateSession(custom_state=given), append_messages=(message,))
        await store.merge_custom_state(SESSION, StepWrites(ops=(Append(key="items", items=items),)))
        await suspend(store, 1, waiting(store, "call-1", input=given))
        loaded = await store.load_state(SESSION)
        (row,) = await store.load_transcript(SESSION)
        pending = loaded.pending_client_tool_calls["call-1"]
        for mutable in (
            given["list"],
            message.metadata["list"],
            items,
            loaded.custom_state["list"],
            loaded.custom_state["items"],
            row.message.metadata["list"],
            pending.input["list"],
        ):
            mutable.append("changed")
        found = await store.load_state(SESSION)
        assert found.custom_state == {"list": [1], "items": [1]}
        assert found.pending_client_tool_calls["call-1"].input == {"list": [1]}
        assert (await store.load_transcript(SESSION))[0].message.metadata == {"list": [1]}

    @proves("versions.failed-write-changes-nothing")
    async def test_a_start_that_fails_leaves_no_session(self, store: SessionStateStore) -> None:
        with pytest.raises(HelixError):
            await start(store, writes=append_to("key", 1), create=CreateSession(custom_state={"key": "text"}))
        assert not await store.session_exists(SESSION)
        assert await store.get_run("r-1") is None
