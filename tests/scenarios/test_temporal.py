"""The Temporal runtime plays every scenario on a real server."""

import itertools
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from temporalio.service import RPCError

from helix_agents.domain.runs import RunRecord
from helix_agents.ports.backend import Backend, open_backend
from helix_agents.runtimes.temporal import TemporalAgentExecutor, TemporalOptions, service
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.contracts.executor.contract import ExecutorContract
from helix_agents.testing.contracts.executor.stage import OpenExecutor, OpenParts
from helix_agents.testing.temporal_service import temporal_address as temporal_address
from helix_agents.testing.temporal_service import temporal_service as temporal_service

QUEUES = itertools.count(1)
# A process that dies here takes its workflows along, so nobody waits for a heartbeat that does not come; one that is
# late on a busy machine is no death.
QUICK = TemporalOptions(heartbeat_seconds=10.0, task_seconds=2.0, sticky_seconds=1.0)


class MortalExecutor(TemporalAgentExecutor):
    """One that dies for good where a scenario lets a process die: its workflows do not go on elsewhere.

    That Temporal goes on with them where only a worker dies, the crash tests of this runtime prove.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._lives_on = settings["grace"]
        self._runs: dict[str, RunRecord] = {}
        runtime: Any = self._runtime
        watch = runtime._watch

        def remember(run: RunRecord) -> Any:
            self._runs[run.run_id] = run
            return watch(run)

        runtime._watch = remember

    async def close(self) -> None:
        runtime: Any = self._runtime
        lives_on = runtime.leaving or self._lives_on >= 1
        left = [] if lives_on else [self._runs[run_id] for run_id in runtime._watched]
        if not self._lives_on:
            await self._end(left)
        await super().close()
        await self._end(left)

    async def _end(self, runs: list[RunRecord]) -> None:
        for run in runs:
            with suppress(RPCError):
                await service.handle_of(vars(self._runtime)["_client"], run).terminate("its process died")


class TestTemporalOnSQLite(ExecutorContract):
    backend = "sqlite"
    much_work = {"asking": 2, "orphans": 20, "expiring": 40}

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
        async def open_executor(**settings: Any) -> AsyncGenerator[Any]:
            of_store = {name: settings.pop(name) for name in ("limits", "namespace") if name in settings}
            given = {"janitor_seconds": None, "grace": 1.0, **settings}
            given.pop("lease_ms", None)
            backend: Backend = await open_backend(store_url, clock=clock, **of_store)
            async with backend:
                parts = {"state": backend.state, "streams": backend.streams, "usage": backend.usage}
                async with MortalExecutor(**parts, **own, **given) as executor:
                    yield executor

        return open_executor
