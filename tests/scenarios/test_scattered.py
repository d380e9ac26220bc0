"""Every scenario again, with each effect in a scope of its own: nothing an effect needs may live in a process."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from helix_agents.ports.backend import Backend, open_backend
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.contract import ExecutorContract
from helix_agents.testing.contracts.executor.stage import OpenExecutor, OpenParts
from helix_agents.testing.scattered import ScatteredExecutor
from tests.scenarios.test_in_process import LONG_LEASE_MS, MEMORIES


class TestEffectsThatShareNothing(ExecutorContract):
    backend = "in_memory"
    several_processes = False
    keep_seconds = 0.0
    much_work = {"asking": 10, "orphans": 60, "expiring": 210}

    @pytest.fixture
    def store_url(self) -> str:
        return f"memory://scattered-{next(MEMORIES)}"

    @pytest.fixture
    def open_parts(self, store_url: str, clock: ManualClock) -> OpenParts:
        return lambda: open_backend(store_url, clock=clock)

    @pytest.fixture
    def open_executor(self, store_url: str, clock: ManualClock) -> OpenExecutor:
        @asynccontextmanager
        async def open_executor(**settings: Any) -> AsyncGenerator[ScatteredExecutor]:
            of_store = {name: settings.pop(name) for name in ("limits", "namespace") if name in settings}
            given = {"janitor_seconds": None, "lease_ms": LONG_LEASE_MS, "grace": 1.0, **settings}
            backend: Backend = await open_backend(store_url, clock=clock, **of_store)
            async with backend:
                parts = {"state": backend.state, "streams": backend.streams, "usage": backend.usage}
                async with ScatteredExecutor(**parts, keep_seconds=self.keep_seconds, **given) as executor:
                    yield executor

        return open_executor

    async def test_deps_are_opened_once_per_run_in_the_process_that_runs_it(self, open_executor: OpenExecutor) -> None:
        self.keep_seconds = 60.0
        await super().test_deps_are_opened_once_per_run_in_the_process_that_runs_it(open_executor)

    async def test_four_janitors_of_which_one_dies_handle_each_case_once(
        self, open_executor: OpenExecutor, parts: Backend, clock: ManualClock
    ) -> None:
        # A thousand calls, each of which opens its run anew, would only prove that this takes its time.
        self.keep_seconds = 60.0
        await super().test_four_janitors_of_which_one_dies_handle_each_case_once(open_executor, parts, clock)
