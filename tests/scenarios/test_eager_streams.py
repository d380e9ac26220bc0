"""A page can be refreshed at any point even when every chunk is stored before the commit that answers for it."""

import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from helix_agents.ports.backend import Backend, open_backend
from helix_agents.ports.streams import FlushPolicy
from helix_agents.runtimes.in_process.executor import Executor
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.refreshing import RefreshingContract
from helix_agents.testing.contracts.executor.stage import OpenExecutor, OpenParts

MEMORIES = itertools.count(1)
AT_ONCE = FlushPolicy(chunks=1)


class TestRefreshingWhereChunksDoNotWait(RefreshingContract):
    @pytest.fixture
    def open_parts(self, clock: ManualClock) -> OpenParts:
        url = f"memory://eager-{next(MEMORIES)}"
        return lambda: open_backend(url, clock=clock, flush=AT_ONCE)

    @pytest.fixture
    def open_executor(self, open_parts: OpenParts) -> OpenExecutor:
        @asynccontextmanager
        async def open_executor(**settings: Any) -> AsyncGenerator[Executor]:
            backend: Backend = await open_parts()
            async with backend:
                parts = {"state": backend.state, "streams": backend.streams, "usage": backend.usage}
                async with Executor(**parts, janitor_seconds=None, **settings) as executor:
                    yield executor

        return open_executor
