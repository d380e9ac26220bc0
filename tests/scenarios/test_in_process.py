"""The in-process runtime plays every scenario, on memory and on a SQLite file."""

import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from helix_agents.ports.backend import Backend, open_backend
from helix_agents.runtimes.in_process.executor import Executor
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.contract import ExecutorContract
from helix_agents.testing.contracts.executor.stage import OpenExecutor, OpenParts

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


class TestInProcessOnMemory(InProcess):
    backend = "in_memory"
    several_processes = False

    @pytest.fixture
    def store_url(self) -> str:
        return f"memory://scenario-{next(MEMORIES)}"


class TestInProcessOnSQLite(InProcess):
    backend = "sqlite"

    @pytest.fixture
    def store_url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'helix.db'}?synchronous=normal"
