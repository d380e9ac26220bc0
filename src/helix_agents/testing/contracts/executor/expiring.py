"""Scenarios of sessions that have expired: cleaned up with everything they hold, and no error stops the sweep."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Literal, cast

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.client_tools import client_tool
from helix_agents.agent.tools import tool
from helix_agents.domain.errors import SessionCorruptError
from helix_agents.domain.pending import AnswerAlreadyCompleted, ToolAnswer
from helix_agents.domain.sessions import CreateSession, SessionState, WorkspaceRef
from helix_agents.domain.workspaces import key_of
from helix_agents.engine.requests.cleanup import CleanupSummary, expired_session_cleanup
from helix_agents.llm.scripted import ScriptedModel, call, reply
from helix_agents.ports.backend import Backend
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.ports.workspaces import WorkspaceOwner
from helix_agents.runtimes.executor.core import ExecutorCore as Executor
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.household import boss, helper, only_companion, spawn, until_ended
from helix_agents.testing.contracts.executor.stage import (
    SESSION,
    OpenExecutor,
    PieceGate,
    ScenarioContract,
    chunks_of,
    completed,
    failed,
    scripted,
    spoken,
    suspended,
)
from helix_agents.workspaces.in_memory import InMemoryWorkspaces

HOUR_MS = 60 * 60 * 1000


@client_tool(deadline=None)
def locate(city: str) -> str:
    """Where the client is."""
    raise NotImplementedError


@tool
async def note(text: str) -> str:
    """Write something down."""
    return "noted"


def _agent(*script: Any, **fields: Any) -> AnyAgent:
    return scripted(script, fields, name="guest", tools=[locate, note])


LOCATING = (reply(calls=[call("note", {"text": "x"}), call("locate", {"city": "Rome"})]), "There.", "Again.")


class _Disk(InMemoryWorkspaces):
    """Two snapshots of every workspace, except where the provider is out of order."""

    def __init__(self, failing: str) -> None:
        super().__init__("disk")
        self._failing = failing
        self.deleted: list[str] = []

    @property
    def snapshots(self) -> Any:
        return self

    async def list(self, ref: WorkspaceRef) -> Sequence[str]:
        if ref.ref == self._failing:
            raise ConnectionError("the provider is out of order")
        return [f"{ref.ref}/1", f"{ref.ref}/2"]

    async def delete(self, owner: WorkspaceOwner, ref: WorkspaceRef | None) -> None:
        if ref is not None:
            self.deleted.append(ref.ref)


class _TroubledStore:
    """A store in which one session cannot be read, and another one changes right after it was read."""

    def __init__(self, store: SessionStateStore, *, unreadable: str, changing: str) -> None:
        self._store = store
        self._unreadable = unreadable
        self._changing = changing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def load_state(self, session_id: str) -> SessionState:
        if session_id == self._unreadable:
            raise SessionCorruptError(session_id, "its record is torn")
        state = await self._store.load_state(session_id)
        if session_id == self._changing:
            await self._store.patch_metadata(session_id, {"seen": "now"})
        return state


class _ReturningStore:
    """A store in which something happens right after sessions were listed, or one was read."""

    def __init__(
        self, store: SessionStateStore, after: Literal["list_sessions", "load_state"], come_back: Callable[[], Any]
    ) -> None:
        self._store = store
        self._after = after
        self._come_back: Callable[[], Any] | None = come_back

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name != self._after or self._come_back is None:
            return found
        come_back, self._come_back = self._come_back, None

        async def followed(*given: Any, **about: Any) -> Any:
            answer = await found(*given, **about)
            await come_back()
            return answer

        return followed


class ExpiringContract(ScenarioContract):
    """Nothing that has expired stays half alive."""

    async def test_one_sweep_cleans_up_450_sessions_whatever_three_of_them_do(
        self, parts: Backend, clock: ManualClock
    ) -> None:
        store = parts.state
        expires = clock.now_ms() + HOUR_MS
        for number in range(450):
            owner = key_of(f"s-{number}", clock.now_ms())
            workspace = WorkspaceRef(provider_id="disk", ref=f"w-{number}", owner=owner) if number < 3 else None
            await store.create_session(f"s-{number}", CreateSession(expires_at=expires, workspace_ref=workspace))
        await store.update_status("s-10", "interrupted")
        await store.update_status("s-11", "paused")
        await store.create_session("done", CreateSession(expires_at=expires))
        await store.update_status("done", "completed")
        await store.create_session("young", CreateSession(expires_at=expires + 2 * HOUR_MS))
        await store.create_session("eternal")
        clock.advance(HOUR_MS)
        provider = _Disk(failing="w-1")
        troubled = cast("SessionStateStore", _TroubledStore(store, unreadable="s-200", changing="s-300"))
        swept = await expired_session_cleanup(troubled, workspace_providers={"disk": provider})
        assert swept == CleanupSummary(detected=450, marked=447, already_terminal=0, snapshots_deleted=4, errors=3)
        assert sorted(provider.deleted) == ["w-0", "w-2"]
        for number, status in ((0, "failed"), (1, "active"), (10, "failed"), (11, "failed"), (200, "active")):
            assert (await store.load_state(f"s-{number}")).status == status, number
        for name, status in (("done", "completed"), ("young", "active"), ("eternal", "active"), ("s-300", "active")):
            assert (await store.load_state(name)).status == status, name
        # The next sweep, without the problem, takes what is left.
        swept = await expired_session_cleanup(store, workspace_providers={"disk": _Disk(failing="")})
        assert swept == CleanupSummary(detected=3, marked=3, snapshots_deleted=2)

    async def test_an_expired_session_fails_with_everything_it_holds(
        self, helix: Executor, open_executor: OpenExecutor, clock: ManualClock
    ) -> None:
        handle = await helix.execute(_agent(*LOCATING), "Where?", SESSION, expires_in=3600)
        await suspended(handle)
        clock.advance(HOUR_MS)
        async with open_executor() as other:
            assert (await other.sweep()).expired_sessions == 1
            result = await failed(handle)
            assert (result.code, result.error) == ("session_expired", "session_expired")
            session = await other.sessions.get(SESSION)
            assert (session.status, session.error, session.failure_reason) == (
                "failed",
                "session_expired",
                "session_expired",
            )
            assert (await other.list_pending()).items == ()
            late = await other.submit_tool_result(SESSION, "call_1_2", ToolAnswer(result="x"))
            assert isinstance(late, AnswerAlreadyCompleted)
            assert (await spoken(other))[2:] == ["result note#call_1_1: noted", "error locate#call_1_2: run_stopped"]
            await chunks_of(handle)
            assert (await other.sweep()).expired_sessions == 0

    async def test_a_session_is_left_alone_whose_user_comes_back_while_it_is_cleaned_up(
        self, helix: Executor, parts: Backend, clock: ManualClock
    ) -> None:
        agent = _agent(LOCATING[0], LOCATING[0], "There.", session_ttl=timedelta(hours=1))
        await suspended(await helix.execute(agent, "Where?", SESSION))
        clock.advance(HOUR_MS)

        async def ask_again() -> None:
            await suspended(await helix.execute(agent, "And now?", SESSION))

        returning = cast("SessionStateStore", _ReturningStore(parts.state, "list_sessions", ask_again))
        swept = await expired_session_cleanup(returning)
        assert (swept.detected, swept.marked, swept.errors) == (1, 0, 1)
        await helix.submit_tool_result(SESSION, "call_2_2", ToolAnswer(result="here"))
        assert await completed(await helix.resume(agent, SESSION)) == "There."

    async def test_a_session_is_left_alone_whose_call_is_answered_while_it_is_cleaned_up(
        self, helix: Executor, parts: Backend, clock: ManualClock
    ) -> None:
        agent = _agent(*LOCATING, session_ttl=timedelta(hours=1))
        await suspended(await helix.execute(agent, "Where?", SESSION))
        clock.advance(HOUR_MS)

        async def give_the_answer() -> None:
            await helix.submit_tool_result(SESSION, "call_1_2", ToolAnswer(result="here"))

        returning = cast("SessionStateStore", _ReturningStore(parts.state, "load_state", give_the_answer))
        swept = await expired_session_cleanup(returning)
        assert (swept.detected, swept.marked, swept.errors) == (1, 0, 1)
        assert await completed(await helix.resume(agent, SESSION)) == "There."

    async def test_a_run_that_is_going_when_its_session_expires_cannot_write_any_more(
        self, helix: Executor, open_executor: OpenExecutor, clock: ManualClock
    ) -> None:
        gate = PieceGate(1)
        agent = _agent(model=ScriptedModel(["Too late."], pace=gate))
        handle = await helix.execute(agent, "Go", SESSION, expires_in=3600)
        await gate.until_reached()
        clock.advance(HOUR_MS)
        async with open_executor() as other:
            await other.sweep()
        gate.opened.set()
        assert (await failed(handle)).code == "session_expired"
        assert await spoken(helix) == ["user: Go"]

    async def test_each_entry_and_each_accepted_answer_moves_the_expiry(
        self, helix: Executor, clock: ManualClock
    ) -> None:
        agent = _agent(*LOCATING, session_ttl=timedelta(hours=1))

        async def left() -> int:
            session = await helix.sessions.get(SESSION)
            assert session.expires_at is not None
            return session.expires_at - clock.now_ms()

        await suspended(await helix.execute(agent, "Where?", SESSION))
        assert await left() == HOUR_MS
        clock.advance(HOUR_MS // 2)
        await helix.submit_tool_result(SESSION, "call_1_2", ToolAnswer(result="here"))
        assert await left() == HOUR_MS
        clock.advance(HOUR_MS // 2)
        await completed(await helix.resume(agent, SESSION))
        assert await left() == HOUR_MS
        clock.advance(HOUR_MS // 2)
        await completed(await helix.execute(agent, "And now?", SESSION))
        assert await left() == HOUR_MS

    async def test_a_message_that_waits_in_the_queue_keeps_its_session_alive(
        self, helix: Executor, clock: ManualClock
    ) -> None:
        agent = _agent(*LOCATING, session_ttl=timedelta(hours=1))
        await suspended(await helix.execute(agent, "Where?", SESSION))
        clock.advance(HOUR_MS - 1)
        later = await helix.execute(agent, "Hello?", SESSION, if_running="enqueue")
        brief = await helix.execute(agent, "Quick!", SESSION, if_running="enqueue", expires_in=1)
        clock.advance(HOUR_MS - 1)
        assert (await helix.sweep()).expired_sessions == 0
        assert await helix.sessions.drop_queued(SESSION, brief.run_id)
        await helix.submit_tool_result(SESSION, "call_1_2", ToolAnswer(result="here"))
        await completed(await helix.resume(agent, SESSION))
        assert await completed(later) == "Again."

    async def test_a_session_that_expired_may_be_taken_up_again(self, helix: Executor, clock: ManualClock) -> None:
        agent = _agent(*LOCATING)
        await suspended(await helix.execute(agent, "Where?", SESSION, expires_in=3600))
        clock.advance(HOUR_MS)
        await helix.sweep()
        assert await completed(await helix.execute(agent, "Hello again", SESSION, expires_in=3600)) == "There."
        assert (await helix.sweep()).expired_sessions == 0

    async def test_a_companion_that_outlived_its_root_expires_with_it(
        self, helix: Executor, parts: Backend, clock: ManualClock
    ) -> None:
        keeps = helper(call("locate", {"city": "Rome"}), "There.", tools=[locate])
        agent = boss(spawn(), "Started.", "Again.", keeps=keeps, mode="non_blocking")
        await completed(await helix.execute(agent, "Go", SESSION, expires_in=timedelta(hours=1)))
        companion = (await only_companion(parts)).sub_session_id
        await until_ended(parts, companion, "suspended_client_tool")
        clock.advance(HOUR_MS - 1)
        await completed(await helix.execute(agent, "And?", SESSION, expires_in=timedelta(hours=1)))
        clock.advance(2)
        assert (await helix.sweep()).expired_sessions == 0
        assert len((await helix.list_pending()).items) == 1
        clock.advance(HOUR_MS)
        assert (await helix.sweep()).expired_sessions == 1
        assert (await helix.list_pending()).items == ()
        assert (await parts.state.load_state(companion)).failure_reason == "session_expired"
        assert (await helix.sessions.get(SESSION)).status == "completed"
