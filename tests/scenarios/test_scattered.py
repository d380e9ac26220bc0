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


class TestScatteredOnMemory(ExecutorContract):
    backend = "in_memory"
    several_processes = False

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
                async with ScatteredExecutor(**parts, **given) as executor:
                    yield executor

        return open_executor
