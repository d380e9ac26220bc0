"""The contract of calls that wait: announced with a step, answered once, expired once, listed in one query."""

import asyncio
from typing import Any

import pytest

from helix_agents.domain.pending import (
    AnswerAccepted,
    AnswerAlreadyCompleted,
    AnsweredElsewhere,
    AnswerLate,
    AnswerNotFound,
    AnswerRefused,
    ApprovalAnswer,
    OnDeadline,
    PendingCall,
    PendingFilter,
    SubmitAnswer,
    ToolAnswer,
)
from helix_agents.domain.runs import RunStatus, RunUpdate
from helix_agents.domain.sessions import ChildWait, CreateSession
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.store_handles import StoreContract, StoreHandles
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.scenes import (
    SESSION,
    announce_in_child,
    answer,
    commit,
    fence_of,
    of_child,
    start,
    start_child,
    suspend,
    waiting,
)


class PendingContract(StoreContract):
    """Announcing, answering, expiring and listing pending calls."""

    @proves("pending.announced-with-the-step", "records.round-trip")
    async def test_calls_are_there_with_their_step(self, store: SessionStateStore) -> None:
        await start(store)
        full = waiting(
            store,
            "call-1",
            kind="approval",
            input={"naïve": [None, {"n": 2**80}]},
            approval_id="ap-1",
            reason="costs money",
            created_at=store.now_ms() - 5,
            deadline=store.now_ms() + 5,
            on_deadline=OnDeadline(action="default", default={"x": []}),
        )
        bare = waiting(store, "call-2", kind="question")
        answered = await suspend(store, 1, full, bare)
        assert await _call(store) == full
        assert await _call(store, "call-2") == bare
        assert set(map(str, answered.pending)) == {str(full), str(bare)}
        assert not answered.again

    @proves("pending.found-at-root-or-owner")
    async def test_a_call_is_found_at_its_owner_and_at_its_root(self, store: SessionStateStore) -> None:
        await start(store)
        await start_child(store)
        await start_child(store, "grandchild", "child")
        await announce_in_child(store, of_child(store, "call-1", "grandchild"), child="grandchild")
        assert await store.get_pending_call("grandchild", "call-1") == await _call(store)
        assert await store.get_pending_call("child", "call-1") is None
        await start(store, "stranger", "r-stranger")
        assert await store.get_pending_call("stranger", "call-1") is None
        assert await store.submit_answer(answer("call-1", "stranger")) == AnswerNotFound()
        assert isinstance(await store.submit_answer(answer("call-1", SESSION)), AnswerAccepted)

    @proves("pending.shown-in-the-session")
    async def test_a_session_shows_its_calls_and_a_root_those_of_its_tree(
        self, store: SessionStateStore, clock: ManualClock
    ) -> None:
        await start(store)
        await start_child(store)
        await announce_in_child(store, of_child(store, "call-1"), of_child(store, "call-2"))
        await commit(store, 1, pending=(waiting(store, "own"),))
        child, root = await store.load_state("child"), await store.load_state(SESSION)
        assert child.pending_client_tool_calls.keys() == {"call-1", "call-2"}
        assert child.client_tool_call_ownership == child.completed_client_tool_calls == {}
        assert root.pending_client_tool_calls.keys() == {"call-1", "call-2", "own"}
        assert root.client_tool_call_ownership == {"call-1": "child", "call-2": "child", "own": SESSION}
        assert root.pending_client_tool_calls["call-1"] == await _call(store)
        clock.advance(9)
        await store.submit_answer(answer("call-1"))
        root = await store.load_state(SESSION)
        assert root.completed_client_tool_calls == {"call-1": clock.now_ms()}
        await commit(store, 2, session_id="child", fence=fence_of("r-child"), consume=("call-1",))
        root = await store.load_state(SESSION)
        assert root.pending_client_tool_calls.keys() == root.client_tool_call_ownership.keys() == {"call-2", "own"}
        assert root.completed_client_tool_calls.keys() == {"call-1"}

    @proves("pending.answered-once")
    async def test_the_first_answer_stands_for_ever(self, store: SessionStateStore, clock: ManualClock) -> None:
        await start(store)
        await suspend(store, 1, waiting(store, "call-1"))
        clock.advance(2)
        first = await store.submit_answer(answer("call-1", result={"é": [1]}))
        assert isinstance(first, AnswerAccepted)
        assert (first.call.state, first.call.answer) == ("answered", ToolAnswer(result={"é": [1]}))
        assert first.call.answered_at == clock.now_ms()
        assert first.call == await _call(store)
        assert await store.submit_answer(answer("call-1", result="second")) == AnswerAlreadyCompleted(call=first.call)
        await start(store, run_id="r-2", keep_suspension=True)
        await commit(store, fence=fence_of("r-2"), consume=("call-1",))
        repeated = await store.submit_answer(answer("call-1", result="third"))
        assert isinstance(repeated, AnswerAlreadyCompleted)
        assert (await _call(store)).answer == ToolAnswer(result={"é": [1]})

    @proves("pending.one-answer-wins")
    async def test_of_many_answers_one_is_accepted(self, handles: StoreHandles) -> None:
        stores = [await handles.open() for _ in range(3)]
        await start(stores[0])
        await suspend(stores[0], 1, waiting(stores[0], "call-1"))
        outcomes = await asyncio.gather(
            *(store.submit_answer(answer("call-1", result=n)) for n, store in enumerate(stores * 3))
        )
        (accepted,) = [each for each in outcomes if isinstance(each, AnswerAccepted)]
        assert sum(isinstance(each, AnswerAlreadyCompleted) for each in outcomes) == 8
        assert (await _call(stores[0])).answer == accepted.call.answer

    @proves("pending.answer-says-what-is-next")
    async def test_an_answer_says_what_is_needed_next(self, store: SessionStateStore) -> None:
        await start(store)
        await start_child(store)
        await announce_in_child(store, of_child(store, "call-1"), of_child(store, "call-2"))
        going = await store.submit_answer(answer("call-1"))
        assert isinstance(going, AnswerAccepted)
        assert going.next == "nothing"
        await suspend(store, 1, waiting(store, "call-3"), consume=("call-1",))
        await store.update_run_status("r-child", "suspended_client_tool")
        await store.update_run_status("r-1", "suspended_awaiting_children")
        others = await store.submit_answer(answer("call-3"))
        assert isinstance(others, AnswerAccepted)
        assert (others.next, others.still_waiting) == ("wait", 1)
        last = await store.submit_answer(answer("call-2", "child"))
        assert isinstance(last, AnswerAccepted)
        assert (last.next, last.still_waiting) == ("resume", 0)

    @proves("pending.answer-moves-the-expiry")
    async def test_an_accepted_answer_moves_the_expiry_of_the_root(self, store: SessionStateStore) -> None:
        await start(store, create=CreateSession(expires_at=100))
        await start_child(store)
        await announce_in_child(store, of_child(store, "call-1"), of_child(store, "call-2"))
        version = (await store.load_state(SESSION)).version
        await store.submit_answer(answer("call-1", "child", expires_at=500))
        assert (await store.load_state(SESSION)).expires_at == 500
        assert (await store.load_state("child")).expires_at is None
        await store.submit_answer(answer("call-1", expires_at=900))
        await store.submit_answer(answer("call-2"))
        found = await store.load_state(SESSION)
        assert (found.expires_at, found.version) == (500, version)

    @proves("pending.unfit-answer-refused")
    async def test_an_answer_that_does_not_fit_is_refused(self, store: SessionStateStore) -> None:
        await start(store)
        await suspend(store, 1, waiting(store, "tool"), waiting(store, "approval", kind="approval", approval_id="ap-1"))
        approval = ApprovalAnswer(approved=True, reason="ok", edited_input={"n": 1})
        unfit = (
            SubmitAnswer(session_id=SESSION, tool_call_id="tool", answer=approval),
            SubmitAnswer(session_id=SESSION, tool_call_id="approval", answer=ToolAnswer(result=1)),
            SubmitAnswer(session_id=SESSION, tool_call_id="approval", answer=approval, approval_id="ap-2"),
        )
        for submission in unfit:
            assert isinstance(await store.submit_answer(submission), AnswerRefused)
        assert (await _call(store, "tool")).state == (await _call(store, "approval")).state == "waiting"
        fitting = SubmitAnswer(session_id=SESSION, tool_call_id="approval", answer=approval, approval_id="ap-1")
        assert isinstance(await store.submit_answer(fitting), AnswerAccepted)
        assert (await _call(store, "approval")).answer == approval

    @proves("pending.answered-elsewhere")
    async def test_a_call_that_was_answered_elsewhere_is_answered(self, store: SessionStateStore) -> None:
        await start(store)
        await suspend(store, 1, waiting(store, "tool"), waiting(store, "approval", kind="approval", approval_id="ap-1"))
        for call_id, next_step in (("tool", "wait"), ("approval", "resume")):
            there = SubmitAnswer(session_id=SESSION, tool_call_id=call_id, answer=AnsweredElsewhere())
            outcome = await store.submit_answer(there)
            assert isinstance(outcome, AnswerAccepted)
            assert (outcome.call.state, outcome.call.answer, outcome.next) == ("answered", there.answer, next_step)
            assert await _call(store, call_id) == outcome.call
        assert isinstance(await store.submit_answer(answer("tool")), AnswerAlreadyCompleted)

    @proves("pending.unknown-call")
    async def test_an_answer_to_an_unknown_call_is_told_so(self, store: SessionStateStore) -> None:
        await store.create_session(SESSION)
        for session in (SESSION, "nobody", ""):
            assert await store.submit_answer(answer("nothing", session)) == AnswerNotFound()
            assert await store.get_pending_call(session, "nothing") is None

    @proves("pending.expired-once")
    async def test_each_call_expires_for_one_of_many_callers(self, handles: StoreHandles, clock: ManualClock) -> None:
        stores = [await handles.open() for _ in range(3)]
        await start(stores[0])
        now = clock.now_ms()
        calls = [waiting(stores[0], f"call-{n}", deadline=now + n) for n in range(6)]
        await suspend(stores[0], 1, *calls, waiting(stores[0], "never"))
        clock.advance(3)
        expired = await asyncio.gather(*(store.expire_pending() for store in stores))
        found = [call for each in expired for call in each]
        assert sorted(call.tool_call_id for call in found) == ["call-0", "call-1", "call-2", "call-3"]
        assert {call.state for call in found} == {"expired"}
        assert {call.expired_at for call in found} == {clock.now_ms()}
        assert await stores[0].expire_pending() == await stores[0].find_expired_pending() == ()

    @proves("pending.expired-found-in-order")
    async def test_calls_past_their_deadline_come_oldest_deadline_first(
        self, store: SessionStateStore, clock: ManualClock
    ) -> None:
        await start(store)
        await start_child(store)
        await start(store, "stranger", "r-stranger")
        now = clock.now_ms()
        await announce_in_child(store, of_child(store, "b", deadline=now + 1))
        await commit(store, pending=(waiting(store, "c", deadline=now + 2), waiting(store, "late", deadline=now + 99)))
        stranger = waiting(store, "a", "stranger", run_id="r-stranger", deadline=now)
        await commit(store, session_id="stranger", fence=fence_of("r-stranger"), pending=(stranger,))
        clock.advance(2)
        assert [call.tool_call_id for call in await store.find_expired_pending()] == ["a", "b", "c"]
        assert [call.tool_call_id for call in await store.find_expired_pending(limit=1)] == ["a"]
        assert [call.tool_call_id for call in await store.find_expired_pending(session_id=SESSION)] == ["b", "c"]
        assert [call.tool_call_id for call in await store.expire_pending(session_id=SESSION, limit=1)] == ["b"]
        assert [call.tool_call_id for call in await store.find_expired_pending()] == ["a", "c"]
        assert await store.find_expired_pending(session_id="nobody") == ()

    @proves("pending.expired-still-answerable")
    async def test_an_expired_call_can_be_answered_until_it_is_consumed(
        self, store: SessionStateStore, clock: ManualClock
    ) -> None:
        await start(store)
        await suspend(store, 1, waiting(store, "call-1", deadline=clock.now_ms()))
        assert len(await store.expire_pending()) == 1
        accepted = await store.submit_answer(answer("call-1"))
        assert isinstance(accepted, AnswerAccepted)
        assert (accepted.call.state, accepted.next) == ("answered", "resume")

    @proves("pending.late-answer-kept-once")
    async def test_the_first_late_answer_is_kept_and_delivered_once(
        self, store: SessionStateStore, clock: ManualClock
    ) -> None:
        await start(store)
        await commit(store, pending=(waiting(store, "call-1", deadline=clock.now_ms()),))
        await store.expire_pending()
        await commit(store, 2, consume=("call-1",))
        first = await store.submit_answer(answer("call-1", result="late"))
        assert isinstance(first, AnswerLate)
        assert first.recorded
        assert first.call.late_answer == ToolAnswer(result="late")
        second = await store.submit_answer(answer("call-1", result="later"))
        assert isinstance(second, AnswerLate)
        assert not second.recorded
        found = await _call(store)
        assert (found.late_answer, found.late_answer_delivered, found.answer) == (
            ToolAnswer(result="late"),
            False,
            None,
        )
        await commit(store, 3, deliver_late_answers=("call-1",))
        assert (await _call(store)).late_answer_delivered

    @proves("pending.consumed-by-a-step")
    async def test_a_step_consumes_what_was_answered_or_expired(
        self, store: SessionStateStore, clock: ManualClock
    ) -> None:
        await start(store)
        calls = (waiting(store, "answered"), waiting(store, "expired", deadline=clock.now_ms()), waiting(store, "open"))
        await commit(store, pending=calls)
        await store.submit_answer(answer("answered"))
        await store.expire_pending()
        clock.advance(4)
        await commit(store, 2, consume=("answered", "expired"))
        for name in ("answered", "expired"):
            call = await _call(store, name)
            assert (call.state, call.consumed_at) == ("consumed", clock.now_ms())
        assert (await _call(store, "open")).state == "waiting"

    @proves("pending.dropped-by-a-failure")
    async def test_a_failing_step_drops_what_was_not_answered(self, store: SessionStateStore) -> None:
        await start(store)
        await start_child(store)
        await announce_in_child(store, of_child(store, "childs"))
        await commit(store, pending=(waiting(store, "answered"), waiting(store, "open")))
        await store.submit_answer(answer("answered"))
        await commit(store, 2, drop_pending=True, run=RunUpdate(status="failed"))
        assert (await _call(store, "answered")).state == "answered"
        assert (await _call(store, "open")).state == "dropped"
        assert (await _call(store, "childs")).state == "waiting"
        assert isinstance(await store.submit_answer(answer("open")), AnswerAlreadyCompleted)

    @proves("pending.asked-again")
    async def test_a_call_that_was_settled_may_be_asked_again(self, store: SessionStateStore) -> None:
        await start(store)
        await commit(store, pending=(waiting(store, "call-1"), waiting(store, "open", input="first")))
        await store.submit_answer(answer("call-1"))
        again = waiting(store, "call-1", kind="approval", reason="unknown_outcome")
        await commit(store, 2, pending=(again,))
        assert (await _call(store)).state == "answered"
        await commit(store, 3, consume=("call-1",))
        await commit(store, 4, pending=(again, waiting(store, "open", input="second")))
        assert await _call(store) == again
        assert (await _call(store, "open")).input == "first"
        await commit(store, 5, drop_pending=True)
        await commit(store, 6, pending=(waiting(store, "open", input="third"),))
        assert await _call(store, "open") == waiting(store, "open", input="third")

    @proves("pending.listed")
    async def test_calls_are_listed_by_every_filter(self, store: SessionStateStore, clock: ManualClock) -> None:
        await start(store, create=CreateSession(user_id="ann"))
        await start_child(store)
        await start(store, "other", "r-other", create=CreateSession(user_id="bob"))
        now = clock.now_ms()
        await commit(
            store,
            pending=(
                waiting(store, "a", kind="approval", created_at=now + 1),
                waiting(store, "b", tool_name="special", created_at=now + 1),
            ),
        )
        await announce_in_child(store, of_child(store, "c", created_at=now + 2))
        other = waiting(store, "d", "other", run_id="r-other", created_at=now + 3)
        await commit(store, session_id="other", fence=fence_of("r-other"), pending=(other,))
        await store.submit_answer(answer("d", "other"))

        async def found(**where: Any) -> list[str]:
            return [call.tool_call_id for call in (await store.list_pending(PendingFilter(**where))).items]

        assert [call.tool_call_id for call in (await store.list_pending()).items] == ["c", "b", "a"]
        assert await found(states=("waiting", "answered")) == ["d", "c", "b", "a"]
        assert await found(states=("answered",)) == ["d"]
        assert await found(states=("answered",), user_id="bob") == ["d"]
        assert await found(session_id=SESSION) == ["b", "a"]
        assert await found(session_id="child") == ["c"]
        assert await found(root_session_id=SESSION) == ["c", "b", "a"]
        assert await found(tool_name="special") == ["b"]
        assert await found(kind="approval") == ["a"]
        assert await found(created_before=now + 2) == ["b", "a"]
        assert await found(root_session_id=SESSION, kind="client_tool", tool_name="ask") == ["c"]
        assert set(await found(user_id="ann")) >= {"a", "b"}

    @proves("pending.suspension-sees-answers")
    @pytest.mark.parametrize("settled", ["answered", "expired"])
    async def test_a_suspension_goes_on_if_an_answer_lies_in_its_tree(
        self, store: SessionStateStore, clock: ManualClock, settled: str
    ) -> None:
        await start(store)
        await start_child(store)
        await start_child(store, "grandchild", "child")
        call = of_child(store, "call-1", "grandchild", deadline=clock.now_ms())
        await announce_in_child(store, call, child="grandchild")
        await (store.expire_pending() if settled == "expired" else store.submit_answer(answer("call-1")))
        answered = await suspend(store, 1, waiting(store, "own"), messages=[])
        assert answered.again
        run = await store.get_run("r-1")
        assert run is not None
        assert (run.status, run.ended_at, run.completion_reason) == ("running", None, None)
        assert (await _call(store, "own")).state == "waiting"
        assert {call.tool_call_id for call in answered.pending} == {"call-1", "own"}

    @proves("pending.suspension-sees-answers")
    async def test_a_suspension_ends_the_run_if_it_consumes_the_answers(self, store: SessionStateStore) -> None:
        await start(store)
        await commit(store, pending=(waiting(store, "call-1"), waiting(store, "call-2")))
        await store.submit_answer(answer("call-1"))
        answered = await suspend(store, 2, consume=("call-1",))
        assert not answered.again
        run = await store.get_run("r-1")
        assert run is not None
        assert run.status == "suspended_client_tool"

    @proves("pending.suspension-sees-children")
    @pytest.mark.parametrize(
        ("status", "goes_on"),
        [("running", True), ("completed", True), ("suspended_client_tool", False), ("suspended_step_partial", False)],
    )
    async def test_a_suspension_goes_on_if_the_child_it_waits_for_did(
        self, store: SessionStateStore, status: RunStatus, goes_on: bool
    ) -> None:
        await start(store)
        run_id = await start_child(store)
        await store.update_run_status(run_id, status)
        waits = {
            name: ChildWait(tool_call_id=name, child_session_id=child, agent_type="helper")
            for name, child in (("known", "child"), ("unknown", "nowhere"))
        }
        answered = await suspend(store, 1, state={"suspended_awaiting_children": waits})
        assert answered.again == goes_on
        run = await store.get_run("r-1")
        assert run is not None
        assert (run.status == "running") == goes_on

    @proves("pending.suspension-lists-what-waits")
    async def test_a_suspension_answers_with_what_is_open_in_its_tree(self, store: SessionStateStore) -> None:
        await start(store)
        await start_child(store)
        await announce_in_child(store, of_child(store, "childs"))
        await start(store, "stranger", "r-stranger")
        stranger = waiting(store, "strangers", "stranger", run_id="r-stranger")
        await commit(store, session_id="stranger", fence=fence_of("r-stranger"), pending=(stranger,))
        answered = await suspend(store, 1, waiting(store, "own"))
        assert {call.tool_call_id for call in answered.pending} == {"childs", "own"}

    @proves("pending.unresumed-found")
    async def test_suspended_roots_with_an_old_answer_are_found(
        self, store: SessionStateStore, clock: ManualClock
    ) -> None:
        for session in ("answered", "expired", "waits", "running", "settled", "child-answered"):
            await start(store, session, f"r-{session}")
            call = waiting(store, f"call-{session}", session, run_id=f"r-{session}")
            if session == "expired":
                call = waiting(store, "call-expired", session, run_id=f"r-{session}", deadline=clock.now_ms() + 10)
            await suspend(store, 1, call, session_id=session, fence=fence_of(f"r-{session}"))
        clock.advance(10)
        await store.expire_pending()
        clock.advance(10)
        for session in ("answered", "running", "settled"):
            await store.submit_answer(answer(f"call-{session}", session))
        await start(store, "running", "r-again")
        await store.update_status("settled", "failed")
        assert await store.list_unresumed(5) == ("expired",)
        clock.advance(5)
        assert await store.list_unresumed(5) == ("expired", "answered")
        assert await store.list_unresumed(5, limit=1) == ("expired",)
        assert await store.list_unresumed(5, offset=1, limit=1) == ("answered",)
        assert await store.list_unresumed(5, offset=2) == ()
        assert await store.list_unresumed(16) == ()


async def _call(store: SessionStateStore, tool_call_id: str = "call-1") -> PendingCall:
    """One call of the usual session, which has it."""
    found = await store.get_pending_call(SESSION, tool_call_id)
    assert found is not None
    return found
