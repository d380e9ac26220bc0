"""A janitor whose rounds meet trouble: the rest of the round is done, and the next round comes."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeAlias, get_args

import pytest

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.client_tools import client_tool
from helix_agents.agent.context import ToolContext
from helix_agents.agent.handoffs import Handoff
from helix_agents.agent.tools import tool
from helix_agents.backends.in_memory import InMemoryStateStore, InMemoryStreamManager, InMemoryUsageStore, Memory
from helix_agents.domain.commits import StartRun
from helix_agents.domain.errors import DepsNotOpenedError, ExecutorClosedError, StoreClosedError, StoreUnavailableError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.paging import MAX_LIMIT
from helix_agents.domain.pending import PendingCall, ToolAnswer
from helix_agents.domain.runs import Lease, RunRecord
from helix_agents.domain.sessions import CreateSession, SessionState
from helix_agents.domain.staging import StagedChange
from helix_agents.engine.store_desk import REPLY
from helix_agents.runtimes.executor import janitor
from helix_agents.runtimes.in_process import Executor
from helix_agents.testing import ScriptedModel, call
from helix_agents.testing.contracts.executor.household import boss, helper, spawn
from helix_agents.testing.contracts.executor.stage import SESSION, completed, suspended, until
from helix_agents.testing.recording import Recorder, RecordingExecutor, StopAt
from helix_agents.testing.scenes import waiting


class Troubled(InMemoryStateStore):
    """A store some of whose operations meet a bug."""

    unreadable: SessionId | None = None
    is_troubled = False
    has_lost_orphans = False
    renewals = 0

    async def expire_pending(self, **about: Any) -> tuple[PendingCall, ...]:
        if self.is_troubled:
            raise KeyError("deadlines")
        return await super().expire_pending(**about)

    async def list_orphans(self, **page: Any) -> tuple[RunRecord, ...]:
        if self.has_lost_orphans:
            raise KeyError("orphans")
        return await super().list_orphans(**page)

    async def load_state(self, session_id: SessionId) -> SessionState:
        if session_id == self.unreadable:
            raise KeyError(session_id)
        return await super().load_state(session_id)

    async def renew_lease(self, owner: str, ttl_ms: int) -> Lease:
        self.renewals += 1
        if self.renewals == 2:
            raise KeyError("leases")
        return await super().renew_lease(owner, ttl_ms)


@client_tool(deadline=None)
def locate() -> str:
    """Where the client is."""
    raise NotImplementedError


def executor(store: InMemoryStateStore, memory: Memory, agent: AnyAgent, **settings: Any) -> Executor:
    parts: dict[str, Any] = {"state": store, "streams": InMemoryStreamManager(memory)}
    settings = {"resume_grace_ms": 0, **settings}
    return Executor(**parts, usage=InMemoryUsageStore(memory), agents=[agent], **settings)


async def test_trouble_in_one_part_of_a_round_keeps_no_other_part_from_being_done(caplog: pytest.LogCaptureFixture):
    memory = Memory()
    store = Troubled(memory)
    agent = Agent(name="guest", model=ScriptedModel([call("locate"), "There."]), tools=[locate])
    async with executor(store, memory, agent, janitor_seconds=None) as helix:
        await suspended(await helix.execute(agent, "Where?", SESSION))
        await helix.submit_tool_result(SESSION, "call_1_1", ToolAnswer(result="here"))
        store.is_troubled = store.has_lost_orphans = True
        with pytest.raises(KeyError, match="deadlines"):
            await helix.sweep()
        assert ["orphans" in str(record.exc_info) for record in caplog.records] == [True]
        run = await helix.get_handle(agent, SESSION)
        assert run is not None
        assert await completed(run) == "There."


async def test_a_janitor_outlives_its_troubles_and_a_run_that_cannot_be_read_hides_no_other():
    memory = Memory()
    store = Troubled(memory)
    agent = Agent(name="speaker", model=ScriptedModel(["Done."]))
    for name in ("first", "second"):
        session = CreateSession(agent_type=agent.name)
        await store.start_run(StartRun(session_id=name, run_id=f"r-{name}", create=session, owner="somebody who died"))
    store.unreadable, store.is_troubled = "first", True
    async with executor(store, memory, agent, janitor_seconds=0.01):

        async def is_done(session_id: str) -> bool:
            run = await store.get_current_run(session_id)
            return run is not None and run.status == "completed"

        await until(lambda: is_done("second"))
        store.unreadable = None
        await until(lambda: is_done("first"))


async def test_a_lease_is_renewed_after_its_store_met_a_bug():
    memory = Memory()
    store = Troubled(memory)
    agent = Agent(name="speaker", model=ScriptedModel(["Done."]))
    async with executor(store, memory, agent, janitor_seconds=None, lease_ms=150):

        async def goes_on() -> bool:
            return store.renewals > 3

        await until(goes_on)


class Slow(InMemoryStateStore):
    """A store that is away for once, and takes a third of a lease to say so."""

    renewals = 0
    was_held: bool | None = None

    async def renew_lease(self, owner: str, ttl_ms: int) -> Lease:
        self.renewals += 1
        if self.renewals == 2:
            await asyncio.sleep(ttl_ms / 3000)
            raise StoreUnavailableError("memory", "it is away")
        if self.renewals == 3:
            self.was_held = await self.find_lease(owner) is not None
        return await super().renew_lease(owner, ttl_ms)


async def test_a_lease_outlives_one_renewal_that_failed_slowly():
    memory = Memory()
    store = Slow(memory)
    agent = Agent(name="speaker", model=ScriptedModel(["Done."]))
    async with executor(store, memory, agent, janitor_seconds=None, lease_ms=3_000):

        async def is_renewed() -> bool:
            return store.was_held is not None

        await until(is_renewed)
    assert store.was_held


class Crowded(InMemoryStateStore):
    """A store in which more calls expired than it tells of at once."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self.pages = [2, 2, 1]

    async def expire_pending(self, **about: Any) -> tuple[PendingCall, ...]:
        calls = range(self.pages.pop(0) if self.pages else 0)
        return tuple(waiting(self, f"call-{number}") for number in calls)


async def test_every_call_that_expired_is_settled_in_one_round():
    memory = Memory()
    agent = Agent(name="speaker", model=ScriptedModel(["Done."]))
    async with executor(Crowded(memory), memory, agent, janitor_seconds=None) as helix:
        assert (await helix.sweep()).expired_calls == 5


async def leave_answered(store: InMemoryStateStore, memory: Memory, agent_name: str, *session_ids: SessionId) -> None:
    """Sessions that wait for nothing but somebody who resumes them."""
    agent = Agent(name=agent_name, model=ScriptedModel([call("locate"), "There."]), tools=[locate])
    async with executor(store, memory, agent, janitor_seconds=None) as helix:
        for session_id in session_ids:
            await suspended(await helix.execute(agent, "Where?", session_id))
            await helix.submit_tool_result(session_id, "call_1_1", ToolAnswer(result="here"))


async def test_sessions_that_nobody_here_can_resume_hide_none_behind_them():
    memory = Memory()
    store = InMemoryStateStore(memory)
    await leave_answered(store, memory, "retired", *(f"s-old-{number}" for number in range(MAX_LIMIT)))
    await leave_answered(store, memory, "guest", SESSION)
    agent = Agent(name="guest", model=ScriptedModel([call("locate"), "There."]), tools=[locate])
    async with executor(store, memory, agent, janitor_seconds=None) as helix:
        assert (await helix.sweep()).resumed == 1
        run = await helix.get_handle(agent, SESSION)
        assert run is not None
        assert await completed(run) == "There."


async def test_one_round_resumes_no_more_than_its_share(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(janitor, "MOST_AT_ONCE", 2)
    memory = Memory()
    store = InMemoryStateStore(memory)
    await leave_answered(store, memory, "guest", "s-1", "s-2", "s-3")
    agent = Agent(name="guest", model=ScriptedModel([call("locate"), "There."]), tools=[locate])
    async with executor(store, memory, agent, janitor_seconds=None) as helix:
        assert [(await helix.sweep()).resumed for _ in range(2)] == [2, 1]


async def test_a_companion_goes_on_however_many_calls_of_others_were_answered_since():
    memory = Memory()
    store = InMemoryStateStore(memory)
    keeps = helper(call("locate"), "Found.", tools=[locate])
    agent = boss(spawn(), "It is being looked for.", keeps=keeps, mode="non_blocking")
    async with executor(store, memory, agent, janitor_seconds=None) as helix:
        await completed(await helix.execute(agent, "Where?", SESSION))
        await helix.idle()
        (asked,) = (await helix.list_pending()).items
        await helix.submit_tool_result(SESSION, asked.tool_call_id, ToolAnswer(result="here"))
        await leave_answered(store, memory, "retired", *(f"s-new-{number}" for number in range(MAX_LIMIT)))
        # Whoever answers resumes by himself, as a rule; he has a while for that.
        async with executor(store, memory, agent, janitor_seconds=None, resume_grace_ms=60_000) as patient:
            assert (await patient.sweep()).resumed == 0
        assert (await helix.sweep()).resumed == 1
        await helix.idle()
        assert (await helix.sessions.get(asked.session_id)).status == "completed"


class Pool:
    """What tools need from the process."""

    def fetch(self) -> str:
        return "fetched"


@asynccontextmanager
async def open_pool(*_: object) -> AsyncGenerator[Pool]:
    yield Pool()


Place: TypeAlias = Literal["the agent", "a sub-agent", "one that takes over"]
"""Who needs deps."""

WORK: dict[Place, list[Any]] = {
    "the agent": [call("fetch"), "Done."],
    "a sub-agent": [call("subagent__helper", {"message": "Help."}), "Done."],
    "one that takes over": [call("handoff__helper"), "Done."],
}


def fetchers(place: Place, *script: Any) -> list[AnyAgent]:
    """The agent that is run comes first."""

    @tool
    async def fetch(ctx: ToolContext[None, Pool]) -> str:
        """Fetch."""
        return ctx.deps.fetch()

    tools: list[Any] = [fetch, locate]
    model = ScriptedModel(list(script))
    if place == "the agent":
        return [Agent(name="fetcher", model=model, tools=tools)]
    helper = Agent(name="helper", description="Helps.", model=model, tools=tools)
    if place == "one that takes over":
        handoff = Handoff("helper", description="Helps.")
        return [Agent(name="fetcher", model=model, tools=[locate], handoffs=[handoff]), helper]
    helper = Agent(name="helper", description="Helps.", model=ScriptedModel(["Helped."]), tools=tools)
    return [Agent(name="fetcher", model=model, tools=[helper.as_tool(), locate])]


@pytest.mark.parametrize("place", get_args(Place))
@pytest.mark.parametrize("left", ["a run whose process died", "an answer that nobody went on with"])
async def test_a_process_that_opens_no_deps_neither_takes_up_nor_begins_what_needs_them(
    place: Place, left: str, caplog: pytest.LogCaptureFixture
):
    died = left == "a run whose process died"
    agents = fetchers(place, *([] if died else [call("locate")]), *WORK[place])
    agent = agents[0]
    memory = Memory()
    store = InMemoryStateStore(memory)
    stores: dict[str, Any] = {"state": store, "streams": InMemoryStreamManager(memory)}
    stores["usage"] = InMemoryUsageStore(memory)
    quiet: dict[str, Any] = {"agents": agents, "janitor_seconds": None, "resume_grace_ms": 0, "grace": 0.0}
    at = StopAt(kind="ask_model", effect=1, side="after") if died else None
    async with RecordingExecutor(recorder=Recorder(at), **stores, **quiet, deps=open_pool) as first:
        run = await first.execute(agent, "Go.", SESSION)
        if died:
            with pytest.raises(ExecutorClosedError):
                await run.result()
        else:
            await suspended(run)
            await first.submit_tool_result(SESSION, "call_1_1", ToolAnswer(result="here"))
    before = await store.get_current_run(SESSION)
    async with Executor(**stores, **quiet) as second:
        for _ in range(3):
            await second.sweep()
        assert (await second.recover()).missing_deps == ((SESSION,) if died else ())
        with pytest.raises(DepsNotOpenedError, match="'fetch' needs a Pool"):
            await second.resume(agent, SESSION)
        with pytest.raises(DepsNotOpenedError, match="'fetch' needs a Pool"):
            await second.execute(agent, "Go.", "another")
        assert await second.sessions.find("another") is None
        await second.idle()
    assert await store.get_current_run(SESSION) == before
    (told,) = [record for record in caplog.records if getattr(record, "event", "") == "agent.deps_missing"]
    assert "fetch" in told.getMessage()
    assert "Pool" in told.getMessage()
    async with Executor(**stores, **quiet, deps=open_pool) as third:
        await third.sweep()
        again = await third.get_handle(agent, SESSION)
        assert again is not None
        assert await completed(again) == "Done."


async def test_a_process_that_does_not_know_the_agent_of_a_dead_run_says_so_once(caplog: pytest.LogCaptureFixture):
    memory = Memory()
    stores: dict[str, Any] = {"state": InMemoryStateStore(memory), "streams": InMemoryStreamManager(memory)}
    stores["usage"] = InMemoryUsageStore(memory)
    quiet: dict[str, Any] = {"janitor_seconds": None, "grace": 0.0}
    agent = Agent(name="made_in_a_function", model=ScriptedModel(["Done."]))
    at = StopAt(kind="ask_model", effect=1, side="after")
    async with RecordingExecutor(recorder=Recorder(at), **stores, **quiet) as first:
        run = await first.execute(agent, "Go.", SESSION)
        with pytest.raises(ExecutorClosedError):
            await run.result()
    async with Executor(**stores, **quiet) as second:
        for _ in range(3):
            await second.sweep()
    told = [record for record in caplog.records if getattr(record, "event", "") == "run.unknown_agent"]
    assert [record.levelname for record in told] == ["WARNING"]
    assert "agent='made_in_a_function'" in told[0].getMessage()
    assert SESSION in told[0].getMessage()


async def test_a_run_of_which_newer_code_left_something_is_left_to_newer_code():
    memory = Memory()
    stores: dict[str, Any] = {"state": InMemoryStateStore(memory), "streams": InMemoryStreamManager(memory)}
    stores["usage"] = InMemoryUsageStore(memory)
    quiet: dict[str, Any] = {"janitor_seconds": None, "grace": 0.0}
    agent = Agent(name="made_in_a_function", model=ScriptedModel(["Done."]))
    at = StopAt(kind="ask_model", effect=1, side="after")
    async with RecordingExecutor(recorder=Recorder(at), **stores, **quiet) as first:
        run = await first.execute(agent, "Go.", SESSION)
        with pytest.raises(ExecutorClosedError):
            await run.result()
    store = stores["state"]
    died = await store.get_current_run(SESSION)
    left = StagedChange(step_id=f"{died.run_id}.1", tool_call_id=f"{REPLY}9.9", data={"since_then": True})
    await store.stage_changes(SESSION, left, fence=died.fence)
    async with Executor(**stores, **quiet, agents=[agent]) as older:
        assert (await older.recover()).errors == 1
        await older.idle()
    assert await store.get_current_run(SESSION) == died


async def test_a_round_that_meets_the_end_of_its_process_says_nothing_of_it(caplog: pytest.LogCaptureFixture):
    memory = Memory()
    store = InMemoryStateStore(memory)
    streams, usage = InMemoryStreamManager(memory), InMemoryUsageStore(memory)
    async with Executor(state=store, streams=streams, usage=usage, janitor_seconds=None) as helix:
        await store.close()
        with pytest.raises(StoreClosedError):
            await helix.sweep()
    assert [record.message for record in caplog.records if "janitor" in record.message] == []
