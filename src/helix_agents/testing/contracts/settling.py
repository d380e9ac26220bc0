"""The contract of settling: a session, and everything below it, is ended from outside in one commit."""

from typing import Any

import pytest

from helix_agents.domain.commits import SettleSession, StartRun
from helix_agents.domain.errors import InvalidWriteError, SupersededError
from helix_agents.domain.sessions import InterruptContext, StatusChanged, StatusConflict
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.store_handles import StoreContract
from helix_agents.testing.observation import observe
from helix_agents.testing.requirements.registry import proves
from helix_agents.testing.scenes import (
    FENCE,
    RUN,
    SESSION,
    announce_in_child,
    answer,
    append_to,
    commit,
    fence_of,
    of_child,
    said,
    set_key,
    start,
    start_child,
    suspend,
    waiting,
)


class SettlingContract(StoreContract):
    """Ending a session from outside its run."""

    @proves("settle.ends-everything")
    async def test_settling_ends_what_a_session_does(self, store: SessionStateStore, clock: ManualClock) -> None:
        await start(store)
        await suspend(store, 1, waiting(store, "open"), waiting(store, "answered"))
        await store.submit_answer(answer("answered"))
        clock.advance(3)
        context = InterruptContext(reason="expired")
        outcome = await store.settle_session(
            _request(append_messages=(said("bye"),), interrupt_context=context, output=[1], expected_version=2)
        )
        assert outcome == StatusChanged(new_version=3)
        found = await store.load_state(SESSION)
        assert (found.status, found.error, found.failure_reason) == ("failed", "session_expired", "session_expired")
        assert (found.interrupt_context, found.output, found.message_count) == (context, [1], 1)
        run = await store.get_run(RUN)
        assert run is not None
        assert (run.status, run.completion_reason) == ("failed", "expired")
        call = await store.get_pending_call(SESSION, "open")
        assert call is not None
        assert call.state == "dropped"
        assert await store.list_unresumed(0) == ()
        with pytest.raises(SupersededError):
            await commit(store, 2)

    @proves("settle.state-writes")
    async def test_settling_keeps_what_is_known_to_have_changed(self, store: SessionStateStore) -> None:
        await start(store, writes=set_key("name", "Cy"))
        await commit(store, 1, writes=append_to("sent", "ann"))
        await start_child(store)
        below = (await store.load_state("child")).custom_state
        before = await observe(store, SESSION, "child")
        with pytest.raises(InvalidWriteError):
            await store.settle_session(_request(writes=append_to("name", "x"), append_messages=(said("bye"),)))
        assert await observe(store, SESSION, "child") == before
        assert (await store.settle_session(_request(writes=append_to("sent", "bob")))).ok
        kept = {"name": "Cy", "sent": ["ann", "bob"]}
        assert (await store.load_state(SESSION)).custom_state == kept
        assert (await store.load_state("child")).custom_state == below
        await store.start_run(StartRun(session_id=SESSION, run_id="r-2", writes=append_to("sent", "cy")))
        assert (await store.load_state(SESSION)).custom_state == {**kept, "sent": ["ann", "bob", "cy"]}

    @proves("settle.ends-the-tree")
    async def test_settling_ends_the_sessions_below(self, store: SessionStateStore, clock: ManualClock) -> None:
        await start(store)
        await start_child(store)
        await start_child(store, "grandchild", "child")
        await start_child(store, "finished")
        await store.update_run_status("r-finished", "completed")
        await store.update_status("finished", "completed")
        await start(store, "stranger", "r-stranger")
        await announce_in_child(store, of_child(store, "call-1", "grandchild"), child="grandchild")
        untouched = await observe(store, "finished", "stranger")
        versions = {name: (await store.load_state(name)).version for name in ("child", "grandchild")}
        clock.advance(3)
        assert (await store.settle_session(_request())).ok
        for name, version in versions.items():
            found, run = await store.load_state(name), await store.get_run(f"r-{name}")
            assert run is not None
            assert (found.status, found.version) == ("failed", version + 1)
            assert (run.status, run.ended_at) == ("failed", clock.now_ms())
            with pytest.raises(SupersededError):
                await commit(store, 2, session_id=name, fence=fence_of(f"r-{name}"))
        call = await store.get_pending_call(SESSION, "call-1")
        assert call is not None
        assert call.state == "dropped"
        assert await observe(store, "finished", "stranger") == untouched

    @proves("settle.conflict-is-truthful")
    async def test_settling_what_moved_on_changes_nothing(self, store: SessionStateStore) -> None:
        await start(store)
        await store.update_status(SESSION, "paused")
        before = await observe(store, SESSION)
        stored = StatusConflict(current_status="paused", current_version=2)
        for request in (
            _request(expected=("active",)),
            _request(expected_version=1),
            _request(expected_run=fence_of("r-0")),
            _request(expected_run=fence_of(RUN, 2)),
        ):
            assert await store.settle_session(request) == stored
        assert await observe(store, SESSION) == before
        assert (await store.settle_session(_request(expected_run=FENCE, expected_version=2))).ok


def _request(session_id: str = SESSION, **fields: Any) -> SettleSession:
    """An expired session, as a clean-up would settle it."""
    settings: dict[str, Any] = {
        "expected": ("active", "paused"),
        "status": "failed",
        "error": "session_expired",
        "failure_reason": "session_expired",
        "completion_reason": "expired",
        **fields,
    }
    return SettleSession(session_id=session_id, **settings)
