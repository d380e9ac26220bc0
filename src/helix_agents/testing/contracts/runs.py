"""The contract of runs: started in one commit, one at a time, taken over by one, and found when their process died."""

import asyncio

import pytest
from msgspec.structs import replace

from helix_agents.domain.commits import RunStartCommitted, StartRun
from helix_agents.domain.errors import (
    ConflictError,
    RunAlreadyExistsError,
    RunConflictError,
    RunNotFoundError,
    SessionAlreadyExistsError,
    StaleStateError,
)
from helix_agents.domain.pending import AnswerAccepted, PendingFilter
from helix_agents.domain.runs import KnownAs, RunMetadata, RunRecord, RunStatus, RunUpdate
from helix_agents.domain.session_changes import first_begun
from helix_agents.domain.sessions import CreateSession, SuspensionContext, TracingContext
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.saving import WRITTEN_FIELDS
from helix_agents.testing.contracts.store_handles import StoreContract, StoreHandles
from helix_agents.testing.observation import observe
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.scenes import (
    FENCE,
    RUN,
    SESSION,
    announce_in_child,
    answer,
    commit,
    fence_of,
    of_child,
    said,
    set_key,
    staged,
    start,
    start_child,
    suspend,
    waiting,
)


class RunsContract(StoreContract):
    """Starting, recording and claiming runs."""

    @proves("runs.start-begins-a-turn", "records.round-trip")
    async def test_a_start_makes_the_run_current(self, store: SessionStateStore, clock: ManualClock) -> None:
        await store.create_session(SESSION)
        clock.advance(3)
        started = await start(
            store,
            start_sequence=17,
            previous_run_id="r-0",
            parent_run_id="r-parent",
            owner="worker-1",
            workflow_id="wf-1",
            call_hooks=True,
            agent_version=4,
            expires_at=99,
        )
        expected = RunRecord(
            run_id=RUN,
            session_id=SESSION,
            turn=1,
            start_sequence=17,
            previous_run_id="r-0",
            parent_run_id="r-parent",
            owner="worker-1",
            workflow_id="wf-1",
            call_hooks=True,
            started_at=clock.now_ms(),
        )
        assert started == RunStartCommitted(run=expected, new_version=2, message_count=0)
        assert await store.get_current_run(SESSION) == await _run(store) == expected
        loaded = await store.load_state(SESSION)
        assert (loaded.current_run_id, loaded.agent_version, loaded.expires_at) == (RUN, 4, 99)

    @proves("runs.turns-contiguous")
    async def test_turns_count_without_gaps(self, store: SessionStateStore) -> None:
        for number in range(1, 5):
            started = await start(store, run_id=f"r-{number}")
            assert started.run.turn == number
        listed = await store.list_runs(SESSION)
        assert [(run.turn, run.run_id) for run in listed.items] == [(4, "r-4"), (3, "r-3"), (2, "r-2"), (1, "r-1")]

    @proves("runs.start-makes-the-session")
    async def test_a_start_makes_the_session_or_is_refused(self, store: SessionStateStore) -> None:
        create = CreateSession(agent_type="writer", user_id="ann", custom_state={"a": 1})
        started = await start(store, create=create, append_messages=(said("hi"),), writes=set_key("b", 2))
        loaded = await store.load_state(SESSION)
        assert (loaded.user_id, loaded.custom_state, loaded.message_count) == ("ann", {"a": 1, "b": 2}, 1)
        assert (loaded.version, started.new_version, started.message_count) == (1, 1, 1)
        before = await observe(store, SESSION)
        with pytest.raises(SessionAlreadyExistsError):
            await start(store, run_id="r-2", create=create)
        assert await observe(store, SESSION) == before
        assert await store.get_run("r-2") is None

    @proves("runs.start-says-all-of-a-new-session")
    async def test_whoever_makes_a_session_with_its_first_run_need_not_read_it(
        self, store: SessionStateStore, clock: ManualClock
    ) -> None:
        begun = StartRun(
            session_id=SESSION,
            run_id=RUN,
            create=CreateSession(
                agent_type="writer",
                agent_version=3,
                custom_state={"a": 1, "b": []},
                user_id="ann",
                tags=("x",),
                metadata={"k": "v"},
                expires_at=clock.now_ms() + 1_000,
                tracing_context=TracingContext(trace_id="t-1", root_span_id="s-1"),
            ),
            append_messages=(said("hi"), said("there")),
            owner="worker-1",
        )
        committed = await store.start_run(begun)
        assert first_begun(begun, committed) == await store.load_state(SESSION)
        assert [each.message for each in await store.load_transcript(SESSION)] == list(begun.append_messages)

    @proves("runs.start-settles-the-replaced")
    async def test_the_replaced_run_is_settled(self, store: SessionStateStore, clock: ManualClock) -> None:
        await start(store)
        clock.advance(5)
        await start(store, run_id="r-2")
        replaced = await _run(store)
        assert (replaced.status, replaced.completion_reason) == ("failed", "superseded")
        assert replaced.ended_at == clock.now_ms()
        await start(store, run_id="r-3", replaced_status="interrupted", replaced_reason="lease expired")
        replaced = await _run(store, "r-2")
        assert (replaced.status, replaced.completion_reason) == ("interrupted", "lease expired")
        await store.update_run_status("r-3", "completed", RunUpdate(completion_reason="done"))
        await start(store, run_id="r-4")
        assert (await _run(store, "r-3")).completion_reason == "done"

    @proves("runs.start-refused-on-change", "versions.failed-write-changes-nothing")
    async def test_a_start_is_refused_if_what_it_read_changed(self, store: SessionStateStore) -> None:
        await store.create_session(SESSION)
        await start(store, expected_version=1, expected_run=None)
        read = await store.load_state(SESSION)
        await store.append_messages(SESSION, [said("in between")])
        before = await observe(store, SESSION)
        with pytest.raises(StaleStateError) as stale:
            await start(store, run_id="r-2", expected_version=read.version, expected_run=FENCE)
        assert (stale.value.expected, stale.value.found) == (2, 3)
        with pytest.raises(RunConflictError):
            await start(store, run_id="r-2", expected_version=3, expected_run=None)
        for fence in (fence_of("r-0"), fence_of(RUN, 2)):
            with pytest.raises(RunConflictError):
                await start(store, run_id="r-2", expected_run=fence)
        assert await observe(store, SESSION) == before
        assert (await start(store, run_id="r-2", expected_version=3, expected_run=FENCE)).run.turn == 2

    @proves("runs.one-start-wins")
    async def test_of_many_starts_from_one_reading_one_wins(self, handles: StoreHandles) -> None:
        stores = [await handles.open() for _ in range(3)]
        await stores[0].create_session(SESSION)
        outcomes = await asyncio.gather(
            *(start(store, run_id=f"r-{n}", expected_version=1) for n, store in enumerate(stores * 3)),
            return_exceptions=True,
        )
        assert sum(isinstance(each, RunStartCommitted) for each in outcomes) == 1
        assert sum(isinstance(each, ConflictError) for each in outcomes) == 8
        assert (await stores[0].list_runs(SESSION)).total == 1

    @proves("runs.same-start-again")
    @pytest.mark.parametrize("create", [None, CreateSession(user_id="ann")], ids=["existing session", "new session"])
    async def test_the_same_start_again_gets_the_first_answer(
        self, store: SessionStateStore, create: CreateSession | None
    ) -> None:
        expected = None
        if create is None:
            expected = (await store.create_session(SESSION)).version

        async def begin() -> RunStartCommitted:
            return await start(store, create=create, expected_version=expected, append_messages=(said("hi"),))

        first = await begin()
        before = await observe(store, SESSION)
        assert await begin() == first
        assert await observe(store, SESSION) == before

    @proves("runs.start-clears-the-outcome", "runs.step-count-restarts", "runs.suspension-kept-on-request")
    @pytest.mark.parametrize("keep", [False, True], ids=["afresh", "kept"])
    async def test_a_start_clears_the_last_turn_unless_told_to_keep_it(
        self, store: SessionStateStore, keep: bool
    ) -> None:
        await start(store)
        await commit(store, state=WRITTEN_FIELDS)
        before = await store.load_state(SESSION)
        await start(store, run_id="r-2", keep_step_count=keep, keep_suspension=keep)
        found = await store.load_state(SESSION)
        assert (found.status, found.output, found.error) == ("active", None, None)
        assert (found.failure_reason, found.interrupt_context) == (None, None)
        assert found.step_count == (before.step_count if keep else 0)
        for name in ("suspension_context", "suspended_step_id", "suspended_awaiting_children"):
            assert getattr(found, name) == (getattr(before, name) if keep else type(getattr(found, name))()), name
        assert (found.custom_state, found.user_id, found.tags) == (before.custom_state, before.user_id, before.tags)

    @proves("runs.suspension-kept-on-request")
    async def test_a_start_may_bring_a_suspension_of_its_own(self, store: SessionStateStore) -> None:
        await start(store)
        await commit(store, state=WRITTEN_FIELDS)
        old = (await store.load_state(SESSION)).suspension_context
        assert old is not None
        new = replace(old, step=10, entry_messages=(said("meanwhile"),))
        await start(store, run_id="r-2", keep_suspension=True, suspension_context=new)
        found = await store.load_state(SESSION)
        assert (found.suspension_context, found.suspended_step_id) == (new, "step-9")

    @proves("runs.start-abandons-on-request", "runs.start-drops-on-request")
    @pytest.mark.parametrize("how", ["kept", "abandoned", "unanswered dropped"])
    async def test_a_start_drops_what_waits_only_when_told_to(self, store: SessionStateStore, how: str) -> None:
        await start(store)
        await start_child(store)
        await announce_in_child(store, of_child(store, "childs"))
        await commit(store, pending=(waiting(store, "own"), waiting(store, "answered")))
        await store.submit_answer(answer("answered"))
        await start(
            store,
            run_id="r-2",
            abandon_pending=how == "abandoned",
            drop_unanswered=how == "unanswered dropped",
        )
        states: dict[str, str] = {}
        for name in ("childs", "own", "answered"):
            call = await store.get_pending_call(SESSION, name)
            assert call is not None
            states[name] = call.state
        open_calls = "waiting" if how == "kept" else "dropped"
        answered = "dropped" if how == "abandoned" else "answered"
        assert states == {"childs": open_calls, "own": open_calls, "answered": answered}

    @proves("runs.start-abandons-on-request", "runs.start-drops-on-request", "pending.suspension-sees-answers")
    @pytest.mark.parametrize("how", ["abandon_pending", "drop_unanswered"])
    async def test_calls_of_a_companion_that_is_driven_on_its_own_are_not_its_parents(
        self, store: SessionStateStore, how: str
    ) -> None:
        await start(store)
        create = CreateSession(parent_session_id=SESSION, root_session_id=SESSION, mode="persistent")
        await start(store, "child", "r-child", create=create)
        await announce_in_child(store, of_child(store, "childs"), of_child(store, "answered"))
        await store.submit_answer(answer("answered"))
        parked = await suspend(store, 1, waiting(store, "own"))
        assert not parked.again
        assert {call.tool_call_id for call in parked.pending} == {"childs", "answered", "own"}
        given = {"abandon_pending": how == "abandon_pending", "drop_unanswered": how == "drop_unanswered"}
        await start(store, SESSION, "r-2", **given)
        every = PendingFilter(root_session_id=SESSION, states=("waiting", "answered", "dropped"))
        page = await store.list_pending(every)
        states = {call.tool_call_id: call.state for call in page.items}
        assert states == {"childs": "waiting", "answered": "answered", "own": "dropped"}
        late = await store.submit_answer(answer("childs"))
        assert isinstance(late, AnswerAccepted)
        assert late.next == "nothing", "its own run is going, whatever its parent does"

    @proves("runs.start-drops-what-rests")
    async def test_a_start_lets_go_of_what_rests_for_steps_that_nobody_goes_on_with(
        self, store: SessionStateStore
    ) -> None:
        await start(store)
        await store.stage_changes(SESSION, staged("c-1", set_key("x", 1)))
        await start(store, run_id="r-2")
        assert not await store.has_staged_changes(SESSION)
        await store.stage_changes(SESSION, staged("c-1", set_key("x", 1)))
        read = await store.load_state(SESSION)
        await start(store, run_id="r-3", expected_version=read.version, expected_run=fence_of("r-2"))
        assert not await store.has_staged_changes(SESSION)
        opened = SuspensionContext(kind="suspended_client_tool", run_id="r-3", step_id="r-3-step-1", step=1)
        held = (staged("c-1", message=said("held")),)
        state = {"suspension_context": opened, "suspended_step_id": opened.step_id}
        await commit(store, fence=fence_of("r-3"), state=state, stage=held, promote_staging=False)
        await start(store, run_id="r-4", keep_suspension=True)
        assert await store.has_staged_changes(SESSION)
        await commit(store, fence=fence_of("r-4"), state={"suspension_context": None}, promote_staging=False)
        assert await store.has_staged_changes(SESSION)
        await start(store, run_id="r-5", append_messages=(said("next"),))
        assert not await store.has_staged_changes(SESSION)
        assert (await store.load_state(SESSION)).custom_state == {}

    @proves("runs.start-counts-resumes")
    async def test_a_start_counts_a_resume_only_when_told_to(self, store: SessionStateStore) -> None:
        await start(store)
        await start(store, run_id="r-2", count_resume=True)
        await start(store, run_id="r-3")
        assert (await store.load_state(SESSION)).resume_count == 1

    @proves("runs.start-carries-input")
    async def test_a_start_carries_messages_and_writes(self, store: SessionStateStore) -> None:
        await start(store)
        checkpoint = (await commit(store, messages=[said("a")])).checkpoint_id
        started = await start(
            store, run_id="r-2", append_messages=(said("b"), said("c")), writes=set_key("x", {"deep": [None]})
        )
        loaded = await store.load_state(SESSION)
        assert (started.message_count, loaded.message_count) == (3, 3)
        assert [row.message for row in await store.load_transcript(SESSION)] == [said("a"), said("b"), said("c")]
        assert loaded.custom_state == {"x": {"deep": [None]}}
        assert (loaded.checkpoint_id, started.new_version) == (checkpoint, loaded.version)

    @proves("runs.recorded-from-outside", "records.round-trip")
    async def test_a_run_can_be_recorded_from_outside(self, store: SessionStateStore, clock: ManualClock) -> None:
        await start(store)
        clock.advance(1)
        metadata = RunMetadata(
            start_sequence=5, previous_run_id=RUN, parent_run_id="p", owner="worker-1", workflow_id="wf"
        )
        made = await store.create_run(SESSION, "r-2", metadata)
        assert made == await store.get_current_run(SESSION) == await _run(store, "r-2")
        assert (made.turn, made.status, made.attempt, made.started_at) == (2, "running", 1, clock.now_ms())
        assert (made.start_sequence, made.previous_run_id, made.parent_run_id) == (5, RUN, "p")
        assert (made.owner, made.workflow_id) == ("worker-1", "wf")
        assert (await _run(store)).status == "failed"
        await store.create_session("other")
        for session in (SESSION, "other"):
            with pytest.raises(RunAlreadyExistsError):
                await store.create_run(session, "r-2")
        assert (await store.load_state("other")).version == 1
        assert (await store.create_run("other", "r-3", RunMetadata(turn=1))).turn == 1

    @proves("runs.updated")
    @pytest.mark.parametrize(
        ("status", "ends"),
        [("completed", True), ("failed", True), ("interrupted", True), ("running", False)],
    )
    async def test_a_run_is_updated(
        self, store: SessionStateStore, clock: ManualClock, status: RunStatus, ends: bool
    ) -> None:
        await start(store)
        clock.advance(4)
        update = RunUpdate(step_count=3, completion_reason="because", error="é", output={"a": [None]})
        updated = await store.update_run_status(RUN, status, update)
        assert updated == await _run(store)
        assert (updated.status, updated.step_count) == (status, 3)
        assert (updated.completion_reason, updated.error, updated.output) == ("because", "é", {"a": [None]})
        assert updated.ended_at == (clock.now_ms() if ends else None)
        kept = await store.update_run_status(RUN, status)
        assert kept == updated

    @proves("runs.unknown-run")
    async def test_an_unknown_run_is_none_and_cannot_be_updated(self, store: SessionStateStore) -> None:
        assert await store.get_run("nobody") is None
        with pytest.raises(RunNotFoundError):
            await store.update_run_status("nobody", "failed")
        await store.create_session(SESSION)
        with pytest.raises((RunConflictError, RunNotFoundError)):
            await store.claim_run(SESSION, fence_of("nobody"), "worker-1")

    @proves("runs.counted-by-user")
    async def test_runs_that_are_going_are_counted_for_their_user(self, handles: StoreHandles) -> None:
        store, other = await handles.open(), await handles.open()
        for session, user in (("s-1", "ann"), ("s-2", "ann"), ("s-3", "ben"), ("s-4", None)):
            await start(store, session, f"r-{session}", create=CreateSession(user_id=user))
        child = CreateSession(user_id="ann", parent_session_id="s-1", root_session_id="s-1")
        await start(store, "child", "r-child", create=child)
        assert [await other.count_running(user) for user in ("ann", "ben", "nobody", None)] == [2, 1, 0, 1]
        await store.update_run_status("r-s-1", "completed")
        await store.delete_session("s-3")
        assert [await other.count_running(user) for user in ("ann", "ben")] == [1, 0]

    @proves("runs.claimed-once")
    async def test_of_many_claimants_one_wins(self, handles: StoreHandles) -> None:
        stores = [await handles.open() for _ in range(3)]
        await start(stores[0], owner="worker-0")
        outcomes = await asyncio.gather(
            *(store.claim_run(SESSION, FENCE, f"worker-{n}") for n, store in enumerate(stores * 3, start=1)),
            return_exceptions=True,
        )
        (won,) = [each for each in outcomes if isinstance(each, RunRecord)]
        assert sum(isinstance(each, RunConflictError) for each in outcomes) == 8
        assert (won.run_id, won.attempt, won.turn, won.status) == (RUN, 2, 1, "running")
        assert won.owner != "worker-0"
        assert await _run(stores[1]) == won
        assert (await stores[1].list_runs(SESSION)).total == 1

    @proves("runs.claim-refused")
    async def test_a_run_that_moved_on_cannot_be_claimed(self, store: SessionStateStore) -> None:
        await start(store)
        await store.claim_run(SESSION, FENCE, None)
        with pytest.raises(RunConflictError):
            await store.claim_run(SESSION, FENCE, "worker-2")
        await store.update_run_status(RUN, "completed")
        with pytest.raises(RunConflictError):
            await store.claim_run(SESSION, fence_of(RUN, 2), "worker-2")
        assert (await _run(store)).attempt == 2

    @proves("runs.claim-moves")
    async def test_a_run_keeps_its_name_unless_its_claimant_has_another_one(self, store: SessionStateStore) -> None:
        await start(store, workflow_id="wf-1")
        for attempt, known_as in enumerate((None, KnownAs(workflow_id="wf-2"), KnownAs(workflow_id=None)), start=1):
            won = await store.claim_run(SESSION, fence_of(RUN, attempt), "worker-1", known_as=known_as)
            assert won.workflow_id == (known_as.workflow_id if known_as is not None else "wf-1")
            assert await _run(store) == await store.get_current_run(SESSION) == won


async def _run(store: SessionStateStore, run_id: str = RUN) -> RunRecord:
    """A run that exists."""
    found = await store.get_run(run_id)
    assert found is not None
    return found
