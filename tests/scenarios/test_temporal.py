"""The Temporal runtime plays every scenario on a real server."""

import itertools
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from helix_agents.ports.backend import Backend, open_backend
from helix_agents.runtimes.temporal import TemporalAgentExecutor, TemporalOptions
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.contract import ExecutorContract
from helix_agents.testing.contracts.executor.stage import OpenExecutor, OpenParts
from helix_agents.testing.temporal_service import temporal_address as temporal_address
from helix_agents.testing.temporal_service import temporal_service as temporal_service

QUEUES = itertools.count(1)
QUICK = TemporalOptions(heartbeat_seconds=2.0, task_seconds=2.0, sticky_seconds=1.0)


class TestTemporalOnSQLite(ExecutorContract):
    backend = "sqlite"

    @pytest.fixture
    def store_url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'helix.db'}?synchronous=normal"

    @pytest.fixture
    def open_parts(self, store_url: str, clock: ManualClock) -> OpenParts:
        return lambda: open_backend(store_url, clock=clock)

    @pytest.fixture
    def open_executor(self, store_url: str, temporal_address: str, clock: ManualClock) -> OpenExecutor:
        queue = f"test-{os.getpid()}-{next(QUEUES)}"
        own = {"address": temporal_address, "task_queue": queue, "prefix": queue, "temporal": QUICK}

        @asynccontextmanager
        async def open_executor(**settings: Any) -> AsyncGenerator[TemporalAgentExecutor]:
            of_store = {name: settings.pop(name) for name in ("limits", "namespace") if name in settings}
            given = {"janitor_seconds": None, "grace": 1.0, **settings}
            given.pop("lease_ms", None)
            backend: Backend = await open_backend(store_url, clock=clock, **of_store)
            async with backend:
                parts = {"state": backend.state, "streams": backend.streams, "usage": backend.usage}
                async with TemporalAgentExecutor(**parts, **own, **given) as executor:
                    yield executor

        return open_executor
