"""The contract of sessions: created once, loaded whole, changed by commits, deleted with everything below them."""

import asyncio
from typing import Any, cast

import pytest
from msgspec.structs import replace

from helix_agents.domain.checkpoints import CheckpointMeta
from helix_agents.domain.commits import SettleSession
from helix_agents.domain.errors import (
    InvalidIdError,
    RunNotFoundError,
    SessionAlreadyExistsError,
    SessionNotFoundError,
    UnstorableValueError,
)
from helix_agents.domain.pending import AnswerNotFound, PendingFilter, SubmitAnswer, ToolAnswer
from helix_agents.domain.runs import KnownAs, RunMetadata, RunUpdate
from helix_agents.domain.sessions import (
    CreateSession,
    NothingRunning,
    SessionFilter,
    SessionState,
    StatusChanged,
    TracingContext,
    WorkspaceRef,
)
from helix_agents.domain.writes import Append, Replace, StepWrites
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.operations import COMMITS, ON_ONE_SESSION, ROWS_OF_OTHERS, Operation
from helix_agents.testing.contracts.store_handles import StoreContract, StoreHandles
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.scenes import (
    IMPOSSIBLE_IDS,
    RUN,
    SESSION,
    answer,
    append_to,
    child_ref,
    commit,
    effect,
    said,
    set_key,
    staged,
    start,
    suspend,
    waiting,
)

NO_IDS = cast("tuple[str, ...]", (5, b"bytes", ("a", "b")))
"""What no type checker would accept, and no store should be asked for."""

HALF_A_SIGN = "half \ud83d"
"""Half of a pair of surrogates, as a page may send it or a file name contain it; it has no UTF-8 form."""

AWKWARD_IDS = (
    "s-1",
    "S-1",
    "s-10",
    "s%1",
    "s_1",
    "s*",
    "s-1:messages",
    "../s-1",
    "s'; DROP TABLE __agents_sessions; --",
    'quo"ted',
    "{s-1}",
    "[s-1]",
    "emoji-🌊",
    "\u00e9",
    "e\u0301",
    "x" * 256,
)


class SessionsContract(StoreContract):
    """Creating, loading, counting and deleting sessions."""

    @proves("sessions.created-as-asked")
    async def test_a_new_session_is_empty_and_at_version_one(
        self, store: SessionStateStore, clock: ManualClock
    ) -> None:
        created = await store.create_session(SESSION)
        assert created == await store.load_state(SESSION)
        now = clock.now_ms()
        assert created == SessionState(
            session_id=SESSION, agent_type="agent", root_session_id=SESSION, created_at=now, updated_at=now
        )
        assert await store.get_current_run(SESSION) is None
        assert await store.get_latest_checkpoint(SESSION) is None
        assert await store.load_transcript(SESSION) == ()

    @proves("sessions.created-as-asked")
    async def test_a_new_session_has_every_field_it_was_given(self, store: SessionStateStore) -> None:
        options: dict[str, Any] = {
            "agent_type": "writer",
            "agent_version": 7,
            "custom_state": {"notes": ["a", {"b": None}], "empty": {}},
            "stream_id": "stream-1",
            "mode": "persistent",
            "user_id": "Zoë",
            "tags": ("urgent", "draft"),
            "metadata": {"team": "north"},
            "expires_at": 1_800_000_000_000,
            "tracing_context": TracingContext(trace_id="t", root_span_id="r", last_active_span_id="l"),
            "workspace_ref": WorkspaceRef(provider_id="local", ref="w-1", details={"x": [1]}),
        }
        await store.create_session(SESSION, CreateSession(**options))
        loaded = await store.load_state(SESSION)
        assert {name: getattr(loaded, name) for name in options} == options

    @proves("sessions.one-creator-wins")
    async def test_of_many_concurrent_creators_one_wins(self, handles: StoreHandles) -> None:
        stores = [await handles.open() for _ in range(3)]
        creators = [store.create_session(SESSION) for store in stores for _ in range(5)]
        answers = await asyncio.gather(*creators, return_exceptions=True)
        assert sum(isinstance(each, SessionState) for each in answers) == 1
        assert sum(isinstance(each, SessionAlreadyExistsError) for each in answers) == 14

    @proves("sessions.taken-id-left-alone")
    async def test_a_taken_id_is_refused_and_its_session_left_alone(self, store: SessionStateStore) -> None:
        await store.create_session(SESSION, CreateSession(user_id="first"))
        before = await store.load_state(SESSION)
        with pytest.raises(SessionAlreadyExistsError) as refusal:
            await store.create_session(SESSION, CreateSession(user_id="second"))
        assert refusal.value.session_id == SESSION
        assert await store.load_state(SESSION) == before

    @proves("sessions.child-knows-its-root")
    async def test_a_child_has_its_parent_and_its_parents_root(self, store: SessionStateStore) -> None:
        await store.create_session("root")
        await store.create_session("child", CreateSession(parent_session_id="root", root_session_id="root"))
        await store.create_session("grandchild", CreateSession(parent_session_id="child"))
        grandchild = await store.load_state("grandchild")
        assert (grandchild.parent_session_id, grandchild.root_session_id) == ("child", "root")

    @proves("sessions.unknown-raises")
    @pytest.mark.parametrize("name", ON_ONE_SESSION)
    async def test_an_unknown_session_raises(self, store: SessionStateStore, name: str) -> None:
        with pytest.raises(SessionNotFoundError) as refusal:
            await ON_ONE_SESSION[name](store, "nobody")
        assert refusal.value.session_id == "nobody"
        assert not await store.session_exists("nobody")
        assert (await store.list_sessions()).total == 0

    @proves("sessions.unknown-has-nothing-to-get")
    async def test_an_unknown_session_has_no_run_and_no_checkpoint(self, store: SessionStateStore) -> None:
        assert await store.get_current_run("nobody") is None
        assert await store.get_latest_checkpoint("nobody") is None
        assert await store.get_checkpoint("nobody", "checkpoint") is None

    @proves("sessions.exists-answers-any-string")
    async def test_existence_can_be_asked_of_any_string(self, store: SessionStateStore) -> None:
        await store.create_session(SESSION)
        assert await store.session_exists(SESSION)
        for other in ("s-2", HALF_A_SIGN, *IMPOSSIBLE_IDS):
            assert not await store.session_exists(other)

    @proves("sessions.found-as-listed")
    async def test_a_session_is_found_as_it_is_listed(self, store: SessionStateStore) -> None:
        made = CreateSession(agent_type="writer", user_id="ann", tags=("t",), metadata={"k": "v"})
        await store.create_session(SESSION, made)
        await store.append_messages(SESSION, [said("hello")])
        (listed,) = (await store.list_sessions()).items
        assert await store.find_session(SESSION) == listed
        assert (listed.user_id, listed.message_count, listed.metadata) == ("ann", 1, {"k": "v"})
        for other in ("s-2", HALF_A_SIGN, *IMPOSSIBLE_IDS):
            assert await store.find_session(other) is None

    @proves("ids.impossible-refused")
    @pytest.mark.parametrize("impossible", (*IMPOSSIBLE_IDS, HALF_A_SIGN, *NO_IDS), ids=repr)
    async def test_an_impossible_id_does_not_enter(self, store: SessionStateStore, impossible: str) -> None:
        await start(store)
        writes = (
            lambda: store.create_session(impossible),
            lambda: store.create_session("s-2", CreateSession(user_id=impossible)),
            lambda: store.create_session("s-2", CreateSession(stream_id=impossible)),
            lambda: start(store, "s-2", impossible),
            lambda: start(store, impossible, create=CreateSession()),
            lambda: store.create_run(SESSION, impossible),
            lambda: store.create_checkpoint(SESSION, CheckpointMeta(step_id=impossible, step_count=1)),
            lambda: store.stage_changes(SESSION, staged(impossible)),
            lambda: store.add_sub_session_refs(SESSION, [child_ref(impossible)]),
            lambda: commit(store, pending=(waiting(store, impossible),)),
            lambda: store.begin_effect(effect(impossible)),
            lambda: store.renew_lease(impossible, 1_000),
        )
        for write in writes:
            with pytest.raises(InvalidIdError):
                await write()
        assert not await store.session_exists("s-2")

    @proves("ids.leads-to-its-session")
    @pytest.mark.parametrize("dots", [".", ".."])
    async def test_no_session_is_called_what_a_path_takes_for_another_place(self, store: SessionStateStore, dots: str):
        for write in (lambda: store.create_session(dots), lambda: start(store, dots)):
            with pytest.raises(InvalidIdError, match="choose any other id"):
                await write()
        await store.create_session("s-2", CreateSession(user_id=dots))
        assert not await store.session_exists(dots)

    @proves("values.unstorable-refused")
    @pytest.mark.parametrize("value", [float("nan"), float("-inf"), b"bytes", {1: "number key"}, {"set"}], ids=repr)
    async def test_a_value_that_would_come_back_as_another_is_refused(self, store: SessionStateStore, value: Any):
        await start(store)
        state = await store.load_state(SESSION)
        writes = (
            lambda: store.create_session("s-2", CreateSession(custom_state={"key": value})),
            lambda: store.merge_custom_state(SESSION, StepWrites(ops=(Replace(key="key", value=[value]),))),
            lambda: store.merge_custom_state(SESSION, StepWrites(ops=(Append(key="list", items=[value]),))),
            lambda: store.save_state(SESSION, replace(state, custom_state={"key": {"deep": value}})),
            lambda: store.submit_answer(
                SubmitAnswer(session_id=SESSION, tool_call_id="call-1", answer=ToolAnswer(result=value))
            ),
        )
        for write in writes:
            with pytest.raises(UnstorableValueError):
                await write()
        assert await store.load_state(SESSION) == state

    @proves("ids.impossible-is-absent")
    @pytest.mark.parametrize("impossible", IMPOSSIBLE_IDS, ids=repr)
    async def test_an_impossible_id_is_as_absent_as_any(self, store: SessionStateStore, impossible: str) -> None:
        with pytest.raises(SessionNotFoundError):
            await store.load_state(impossible)
        assert await store.get_run(impossible) is None
        assert await store.get_pending_call(impossible, impossible) is None
        assert (await store.list_sessions(SessionFilter(user_id=impossible))).total == 0
        await store.delete_session(impossible)
        for operation in ON_ONE_SESSION.values():
            with pytest.raises(SessionNotFoundError):
                await operation(store, impossible)
        with pytest.raises(RunNotFoundError):
            await store.update_run_status(impossible, "completed")
        for session, call in ((impossible, "call-1"), (SESSION, impossible)):
            assert await store.submit_answer(answer(call, session)) == AnswerNotFound()
        assert await store.expire_pending(session_id=impossible) == ()
        await store.release_lease(impossible)

    @proves("values.numbers-fit")
    @pytest.mark.parametrize("number", [2**63, -(2**70)], ids=repr)
    async def test_a_number_that_is_too_large_is_refused(self, store: SessionStateStore, number: int) -> None:
        run = (await start(store)).run
        state = await store.load_state(SESSION)
        asks = (
            lambda: store.create_session("s-2", CreateSession(expires_at=number)),
            lambda: store.save_state(SESSION, replace(state, step_count=number)),
            lambda: store.create_run(SESSION, "r-2", RunMetadata(turn=number)),
            lambda: store.update_run_status(run.run_id, "failed", RunUpdate(step_count=number)),
            lambda: store.create_checkpoint(SESSION, CheckpointMeta(step_id="step", step_count=number)),
            lambda: start(store, SESSION, "r-2", start_sequence=number),
            lambda: store.submit_answer(answer("call-1", expires_at=number)),
            lambda: store.renew_lease("worker-1", number),
            lambda: store.list_sessions(SessionFilter(created_from=number)),
            lambda: store.list_pending(PendingFilter(created_before=number)),
        )
        for ask in asks:
            with pytest.raises(UnstorableValueError):
                await ask()
        assert await store.load_state(SESSION) == state
        assert await store.get_current_run(SESSION) == run

    @proves("values.names-are-text")
    async def test_a_name_with_a_zero_character_is_refused(self, store: SessionStateStore) -> None:
        run = (await start(store)).run
        state = await store.load_state(SESSION)
        writes = (
            lambda: store.create_session("s-2", CreateSession(agent_type="a\0b")),
            lambda: store.save_state(SESSION, replace(state, agent_type="a\0b")),
            lambda: store.create_run(SESSION, "r-2", RunMetadata(workflow_id="a\0b")),
            lambda: store.claim_run(SESSION, run.fence, "worker-1", known_as=KnownAs(workflow_id="a\0b")),
            lambda: store.add_sub_session_refs(SESSION, [child_ref("child", name="a\0b")]),
        )
        for write in writes:
            with pytest.raises(UnstorableValueError):
                await write()
        with pytest.raises(InvalidIdError):
            await store.claim_run(SESSION, run.fence, "a\0b")
        assert await store.load_state(SESSION) == state
        assert await store.get_current_run(SESSION) == run

    @proves("ids.are-data")
    async def test_no_session_id_reaches_another_session(self, store: SessionStateStore) -> None:
        for number, session in enumerate(AWKWARD_IDS):
            await store.create_session(session, CreateSession(custom_state={"number": number}))
            await store.append_messages(session, [said(session)] * (number + 1))
        for number, session in enumerate(AWKWARD_IDS):
            assert (await store.load_state(session)).custom_state == {"number": number}
            transcript = await store.load_transcript(session)
            assert [row.message for row in transcript] == [said(session)] * (number + 1)
        await store.delete_session(AWKWARD_IDS[3])
        await store.delete_session(AWKWARD_IDS[5])
        left = set(AWKWARD_IDS) - {AWKWARD_IDS[3], AWKWARD_IDS[5]}
        assert {each.session_id for each in (await store.list_sessions()).items} == left

    @proves("ids.namespaces-are-apart")
    async def test_a_namespace_sees_nothing_of_another(self, handles: StoreHandles) -> None:
        north, south = await handles.open(namespace="north"), await handles.open(namespace="south")
        for store in (north, south):
            await start(store, owner="worker-1")
        await commit(north, messages=[said("hello")], writes=set_key("where", "north"))
        await suspend(north, 2, waiting(north, "call-1", deadline=north.now_ms()))
        await north.stage_changes(SESSION, staged("c-1"))
        south_state = await south.load_state(SESSION)
        assert (south_state.custom_state, south_state.message_count) == ({}, 0)
        assert await south.load_transcript(SESSION) == ()
        assert (await south.list_pending()).total == 0
        assert await south.find_expired_pending() == ()
        assert await south.get_pending_call(SESSION, "call-1") is None
        assert not await south.has_staged_changes(SESSION)
        await north.renew_lease("worker-1", 10_000)
        assert len(await south.list_orphans()) == 1
        await south.delete_session(SESSION)
        assert (await north.load_state(SESSION)).custom_state == {"where": "north"}

    @proves("sessions.delete-removes-everything")
    async def test_nothing_of_a_deleted_session_is_left(self, store: SessionStateStore) -> None:
        await _a_busy_session(store)
        await store.delete_session(SESSION)
        assert not await store.session_exists(SESSION)
        assert await store.get_run("r-1") is None
        assert await store.get_pending_call(SESSION, "call-1") is None
        assert (await store.list_pending(PendingFilter(states=()))).total == 0
        assert await store.list_unresumed(0) == ()
        assert (await store.list_sessions()).total == 0
        assert await store.submit_answer(answer("call-1")) is not None

    @proves("sessions.delete-frees-the-id")
    async def test_a_deleted_id_starts_afresh(self, store: SessionStateStore) -> None:
        await _a_busy_session(store)
        await store.delete_session(SESSION)
        fresh = await store.create_session(SESSION)
        assert (fresh.version, fresh.custom_state, fresh.pending_client_tool_calls) == (1, {}, {})
        assert await store.load_transcript(SESSION) == ()
        assert (await store.list_runs(SESSION)).total == 0
        assert (await store.list_checkpoints(SESSION)).total == 0
        assert await store.get_sub_session_refs(SESSION) == ()
        assert not await store.has_staged_changes(SESSION)
        assert await store.list_effects(SESSION) == ()
        assert (await start(store, run_id="r-1")).run.turn == 1

    @proves("sessions.delete-idempotent")
    async def test_deleting_twice_is_fine(self, store: SessionStateStore) -> None:
        await store.create_session(SESSION)
        await store.delete_session(SESSION)
        await store.delete_session(SESSION)
        for impossible in (*IMPOSSIBLE_IDS, "half a letter \ud800"):
            await store.delete_session(impossible)

    @proves("sessions.delete-takes-the-tree")
    async def test_deleting_takes_the_sessions_below_and_no_other(self, store: SessionStateStore) -> None:
        await store.create_session("root")
        for child, parent in (("left", "root"), ("right", "root"), ("leaf", "left")):
            await store.create_session(child, CreateSession(parent_session_id=parent, root_session_id="root"))
        await store.delete_session("left")
        assert {each.session_id for each in (await store.list_sessions()).items} == {"root", "right"}
        await store.delete_session("root")
        assert (await store.list_sessions()).total == 0

    @proves("sessions.delete-takes-the-tree")
    @pytest.mark.parametrize("parents", [{"a": "a"}, {"a": "b", "b": "a"}, {"a": "c", "b": "a", "c": "b"}])
    async def test_sessions_that_stand_below_themselves_are_settled_and_deleted_once(
        self, store: SessionStateStore, parents: dict[str, str]
    ) -> None:
        """A parent need not exist when a session names it, so a family may form a circle."""
        for child, parent in parents.items():
            await store.create_session(child, CreateSession(parent_session_id=parent, root_session_id="a"))
        before = (await start(store, "a")).new_version
        async with asyncio.timeout(30):
            stop = SettleSession(session_id="a", expected=("active",), status="interrupted", run_status="interrupted")
            assert await store.settle_session(stop) == StatusChanged(new_version=before + 1)
            run = await store.get_run(RUN)
            assert run is not None
            assert run.status == "interrupted"
            assert await store.set_interrupt_flag("a") == NothingRunning()
            await store.delete_session("a")
        assert (await store.list_sessions()).total == 0

    @proves("sessions.load-is-one-read")
    async def test_a_load_never_mixes_two_commits(self, handles: StoreHandles) -> None:
        writer, reader = await handles.open(), await handles.open()
        await start(writer)

        async def write() -> None:
            for step in range(1, 16):
                await commit(
                    writer, step, messages=[said("x")], writes=set_key("step", step), state={"step_count": step}
                )

        writing = asyncio.create_task(write())
        while not writing.done():
            seen = await reader.load_state(SESSION)
            assert seen.custom_state.get("step", 0) == seen.message_count == seen.step_count == seen.version - 1
            await asyncio.sleep(0)
        await writing

    @proves("sessions.counters-distinct")
    async def test_concurrent_increments_get_different_answers(self, handles: StoreHandles) -> None:
        stores = [await handles.open() for _ in range(2)]
        await stores[0].create_session(SESSION)
        for name in ("increment_step_count", "increment_resume_count"):
            calls = [getattr(store, name)(SESSION) for store in stores for _ in range(5)]
            assert sorted(await asyncio.gather(*calls)) == list(range(1, 11))
        loaded = await stores[1].load_state(SESSION)
        assert (loaded.step_count, loaded.resume_count, loaded.version) == (10, 10, 21)

    @proves("sessions.metadata-patched")
    async def test_metadata_is_patched_key_by_key(self, store: SessionStateStore) -> None:
        await store.create_session(SESSION, CreateSession(metadata={"a": "1", "b": "2"}))
        assert await store.patch_metadata(SESSION, {"a": None, "c": "3", "never": None}) == {"b": "2", "c": "3"}
        assert (await store.load_state(SESSION)).metadata == {"b": "2", "c": "3"}

    @proves("versions.each-commit-counts-one")
    @pytest.mark.parametrize("name", COMMITS)
    async def test_each_commit_raises_the_version_by_one(self, store: SessionStateStore, name: str) -> None:
        await _a_running_session(store)
        assert await _versions_moved(store, COMMITS[name]) == 1

    @proves("versions.rows-of-others-do-not-count")
    @pytest.mark.parametrize("name", ROWS_OF_OTHERS)
    async def test_rows_of_others_leave_the_version_alone(self, store: SessionStateStore, name: str) -> None:
        await _a_running_session(store)
        assert await _versions_moved(store, ROWS_OF_OTHERS[name]) == 0

    @proves("versions.rows-of-others-do-not-count")
    async def test_answers_leases_and_takeovers_leave_the_version_alone(self, store: SessionStateStore) -> None:
        run = (await start(store)).run
        await commit(store, pending=(waiting(store, "call-1"), waiting(store, "call-2", deadline=store.now_ms())))
        before = (await store.load_state(SESSION)).version
        await store.submit_answer(answer("call-1"))
        assert len(await store.expire_pending()) == 1
        await store.renew_lease("worker-1", 1_000)
        await store.release_lease("worker-1")
        await store.claim_run(SESSION, run.fence, "worker-2")
        await store.update_run_status(run.run_id, "completed")
        assert (await store.load_state(SESSION)).version == before

    @proves("versions.nothing-done-counts-nothing")
    async def test_what_changes_nothing_counts_nothing(self, store: SessionStateStore) -> None:
        await _a_running_session(store)
        assert await _versions_moved(store, lambda store, session: store.append_messages(session, [])) == 0
        assert await _versions_moved(store, lambda store, session: store.truncate_messages(session, 9)) == 0
        lost = await _versions_moved(
            store, lambda store, session: store.compare_and_set_status(session, ("failed",), "paused")
        )
        assert lost == 0


async def _a_running_session(store: SessionStateStore) -> None:
    await start(store, append_messages=(said("hello"),))
    await store.stage_changes(SESSION, staged("c-1", append_to("list", 1)))


async def _versions_moved(store: SessionStateStore, operation: Operation) -> int:
    before = (await store.load_state(SESSION)).version
    await operation(store, SESSION)
    return (await store.load_state(SESSION)).version - before


async def _a_busy_session(store: SessionStateStore) -> None:
    """A session with a row of every kind."""
    await start(store, append_messages=(said("hello"),))
    await store.begin_effect(effect("pay-1"))
    await store.set_interrupt_flag(SESSION, "stop")
    await suspend(store, 1, waiting(store, "call-1"), refs=(child_ref("elsewhere"),), writes=set_key("a", 1))
    await store.stage_changes(SESSION, staged("c-2", step=2))
    await store.submit_answer(answer("call-1"))
