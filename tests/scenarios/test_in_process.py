"""The in-process runtime plays every scenario, on memory and on a SQLite file."""

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.client_tools import ask_human
from helix_agents.agent.tools import tool
from helix_agents.domain.checkpoints import BEGINNING
from helix_agents.domain.errors import StateSchemaChangedError
from helix_agents.domain.sessions import BranchPoint, CreateSession, InterruptSet
from helix_agents.ports.backend import Backend, open_backend
from helix_agents.ports.state_store import StoreLimits
from helix_agents.runtimes.executor import closing, models
from helix_agents.runtimes.in_process.executor import Executor
from helix_agents.testing import ScriptedModel, call
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.contract import ExecutorContract
from helix_agents.testing.contracts.executor.stage import (
    SESSION,
    OpenExecutor,
    OpenParts,
    completed,
    failed,
    suspended,
    within,
)
from helix_agents.testing.scenes import child_ref, start

MEMORIES = itertools.count(1)

# Scenarios let days pass in a moment; only those about leases want one that runs out.
LONG_LEASE_MS = 10 * 365 * 24 * 60 * 60 * 1000


class InProcess(ExecutorContract):
    @pytest.fixture
    def open_parts(self, store_url: str, clock: ManualClock) -> OpenParts:
        return lambda: open_backend(store_url, clock=clock)

    @pytest.fixture
    def open_executor(self, store_url: str, clock: ManualClock) -> OpenExecutor:
        @asynccontextmanager
        async def open_executor(**settings: Any) -> AsyncGenerator[Executor]:
            of_store = {name: settings.pop(name) for name in ("limits", "namespace") if name in settings}
            given = {"janitor_seconds": None, "lease_ms": LONG_LEASE_MS, "grace": 1.0, **settings}
            backend: Backend = await open_backend(store_url, clock=clock, **of_store)
            async with backend:
                parts = {"state": backend.state, "streams": backend.streams, "usage": backend.usage}
                async with Executor(**parts, **given) as executor:
                    yield executor

        return open_executor

    @pytest.mark.parametrize("held", [True, False], ids=["a step is running", "no step is running"])
    async def test_a_process_that_waits_for_a_running_step_when_it_leaves_says_so(
        self,
        open_executor: OpenExecutor,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        held: bool,
    ) -> None:
        monkeypatch.setattr(closing, "UNNOTICED_SECONDS", 0.0)
        working, done = asyncio.Event(), asyncio.Event()

        @tool
        async def work() -> str:
            """Work."""
            working.set()
            await done.wait()
            return "worked"

        class Told(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                if getattr(record, "event", None) == "executor.leaving":
                    done.set()

        agent = Agent(name="worker", model=ScriptedModel([call("work"), "Done."]), tools=[work])

        async def work_and_leave() -> None:
            async with open_executor(grace=60.0) as helix:
                run = await helix.execute(agent, "Work", SESSION)
                await working.wait()
                if not held:
                    done.set()
                    await completed(run)

        told = Told()
        logging.getLogger("helix_agents").addHandler(told)
        try:
            # While it is held, the step ends only because the process said what it waits for.
            await within(work_and_leave())
        finally:
            logging.getLogger("helix_agents").removeHandler(told)
        assert ("waiting up to 60 s for running steps; a second Ctrl-C leaves at once" in caplog.text) is held

    @pytest.mark.parametrize("moments", range(4))
    async def test_an_executor_that_leaves_right_after_it_stopped_a_session_that_waits_is_not_held_up(
        self, open_executor: OpenExecutor, moments: int
    ) -> None:
        agent = Agent(
            name="asking", model=ScriptedModel([call("ask_human", {"question": "Well?"})]), tools=[ask_human()]
        )

        async def stop_and_leave() -> None:
            async with open_executor(janitor_seconds=60.0) as helix:
                await suspended(await helix.execute(agent, "Hi", SESSION))
                await helix.abort(SESSION)
                for _ in range(moments):
                    await asyncio.sleep(0)

        await within(stop_and_leave())

    async def test_state_that_is_found_too_large_once_its_run_has_begun_is_left_as_it_was(
        self, open_executor: OpenExecutor
    ) -> None:
        class Old(BaseModel):
            name: str = "ann"

        class New(BaseModel):
            names: list[str] = []

        def writer(copies: int) -> AnyAgent:
            def migrate(old: dict[str, Any], _: int) -> dict[str, Any]:
                return {"names": [old["name"]] * copies}

            fields: dict[str, Any] = {"version": 2, "state": New, "migrate_state": migrate}
            return Agent(name="writer", model=ScriptedModel(lambda _: "Well."), **fields)

        async with open_executor(limits=StoreLimits(state_bytes=1_000)) as helix:
            old = Agent(name="writer", model=ScriptedModel(["Well."]), state=Old)
            await completed(await helix.execute(old, "Go", SESSION))
            await completed(await helix.execute(writer(1), "Go", SESSION))
            before = BranchPoint(from_session_id=SESSION, message_count=2)
            bad = writer(1_000)
            for session_id, start in (
                ("branch", helix.execute(bad, "Go", "branch", branch=before)),
                (SESSION, helix.resume(bad, SESSION, mode="from_checkpoint", checkpoint_id=BEGINNING, message="Go")),
            ):
                assert (await failed(await start)).code == StateSchemaChangedError.code
                session = await helix.sessions.get(session_id)
                assert (session.agent_version, session.custom_state) == (1, {"name": "ann"})
                with pytest.raises(StateSchemaChangedError):
                    await helix.retry(bad, session_id)
                await completed(await helix.retry(writer(1), session_id))
                session = await helix.sessions.get(session_id)
                assert (session.agent_version, session.custom_state) == (2, {"names": ["ann"]})

    async def test_a_model_that_is_named_is_opened_once_and_closed_with_the_executor(
        self, open_executor: OpenExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        opened: list[str] = []
        closed: list[str] = []

        class Named(ScriptedModel):
            async def close(self) -> None:
                closed.append(self.name)

        def open_model(name: str) -> Named:
            opened.append(name)
            return Named(["One.", "Two."], name=name)

        monkeypatch.setattr(models, "open_model", open_model)
        agent = Agent(name="writer", model="some:model")
        async with open_executor() as helix:
            await completed(await helix.execute(agent, "Hi", SESSION))
            for number in range(2):
                await completed(await helix.execute(agent, "Hi", f"other-{number}", model="another:model"))
            assert (opened, closed) == (["some:model", "another:model"], [])
        assert closed == opened

    async def test_a_model_that_cannot_be_closed_keeps_nothing_else_open(
        self, open_executor: OpenExecutor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        closed: list[str] = []

        class Named(ScriptedModel):
            async def close(self) -> None:
                closed.append(self.name)
                raise OSError("the line is dead")

        async def close_store() -> None:
            closed.append("store")

        monkeypatch.setattr(models, "open_model", lambda name: Named(["One."], name=name))
        with caplog.at_level(logging.INFO, "helix_agents"):
            async with open_executor(on_close=close_store) as helix:
                for name in ("some:model", "another:model"):
                    await completed(await helix.execute(Agent(name="writer", model=name), "Hi", name))
        assert closed == ["some:model", "another:model", "store"]
        assert [getattr(record, "event", "") for record in caplog.records].count("model.not_closed") == 2

    async def test_runs_that_an_engine_looks_after_hide_none_that_nobody_drives(
        self, open_executor: OpenExecutor, parts: Backend, clock: ManualClock
    ) -> None:
        """Runs of Temporal have no owner: whoever recovers has to look past any number of them."""
        for number in range(410):
            await start(parts.state, f"theirs-{number}", f"r-{number}", workflow_id=f"helix__writer__theirs-{number}")
        clock.advance(1)
        await start(parts.state, "ours", "r-ours")
        agent = Agent(name="writer", model=ScriptedModel(["Done."]))
        async with open_executor(agents=[agent]) as helix:
            assert (await helix.recover()).run_ids == ("r-ours",)
            handle = await helix.get_handle(agent, "ours")
            assert handle is not None
            assert await completed(handle) == "Done."

    async def test_a_child_is_left_to_a_later_run_of_its_parent_and_let_go_when_that_has_ended(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        store = parts.state
        await start(store, SESSION, "r-1")
        child = CreateSession(parent_session_id=SESSION, root_session_id=SESSION)
        await start(store, "child", "r-child", create=child, parent_run_id="r-1")
        await store.renew_lease("another process", LONG_LEASE_MS)
        await start(store, SESSION, "r-2", owner="another process")
        async with open_executor() as helix:
            await helix.recover()
            left = await store.get_run("r-child")
            await store.update_run_status("r-2", "failed")
            await helix.recover()
            let_go = await store.get_run("r-child")
        assert left is not None
        assert left.status == "running"
        assert let_go is not None
        assert (let_go.status, let_go.completion_reason) == ("interrupted", "parent_ended")

    async def test_who_stops_one_companion_of_several_is_told_that_somebody_was_stopped(
        self, open_executor: OpenExecutor, parts: Backend
    ) -> None:
        store = parts.state
        await start(store, SESSION, "r-1")
        await store.update_run_status("r-1", "completed")
        for name in ("working", "done"):
            child = CreateSession(parent_session_id=SESSION, root_session_id=SESSION, mode="persistent")
            await start(store, name, f"r-{name}", create=child)
            await store.add_sub_session_refs(SESSION, [child_ref(name, name, mode="persistent", name=name)])
        await store.update_run_status("r-done", "completed")
        async with open_executor() as helix:
            assert await helix.interrupt(SESSION) == InterruptSet(run_id="r-working")


class TestInProcessOnMemory(InProcess):
    backend = "in_memory"
    several_processes = False

    @pytest.fixture
    def store_url(self) -> str:
        return f"memory://scenario-{next(MEMORIES)}"


class TestInProcessOnSQLite(InProcess):
    backend = "sqlite"
    # The whole crowd, more than any page has; the others are given enough for four janitors to meet.
    much_work = {"asking": 10, "orphans": 200, "expiring": 450}

    @pytest.fixture
    def store_url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'helix.db'}?synchronous=normal"
