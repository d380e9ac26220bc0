"""Every runtime, on real clocks, for whoever draws pictures of runs."""

import itertools
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from helix_agents.ports.backend import Backend, open_backend
from helix_agents.runtimes.in_process.executor import Executor
from helix_agents.runtimes.temporal import TemporalAgentExecutor, TemporalOptions
from helix_agents.testing.contracts.executor.stage import OpenExecutor
from helix_agents.testing.scattered import ScatteredExecutor
from helix_agents.testing.temporal_service import temporal_address, temporal_service
from tests.tracing.pictures import Pictures

__all__ = ["temporal_address", "temporal_service"]

QUEUES = itertools.count(1)
QUICK = TemporalOptions(heartbeat_seconds=10.0, task_seconds=2.0, sticky_seconds=1.0)


@pytest.fixture
def pictures() -> Pictures:
    return Pictures()


@pytest.fixture(params=["in_process", "scattered", "dbos", "temporal"])
def runtime(request: pytest.FixtureRequest) -> str:
    """Where the runs of a test are driven."""
    return request.param


@pytest.fixture
def open_executor(runtime: str, request: pytest.FixtureRequest, tmp_path: Path) -> OpenExecutor:
    """Opens one more executor onto the same data, as another process would."""
    queue = f"tracing-{os.getpid()}-{next(QUEUES)}"
    kind: Any
    own: dict[str, Any] = {}
    match runtime:
        case "dbos":
            from helix_agents.runtimes.dbos import DBOSAgentExecutor

            kind = DBOSAgentExecutor
            own = {
                "system_database_url": f"sqlite:///{tmp_path / 'dbos.db'}",
                "prefix": queue,
                "dbos_config": {"notification_listener_polling_interval_sec": 0.01},
            }
        case "temporal":
            kind = TemporalAgentExecutor
            address = request.getfixturevalue("temporal_address")
            own = {"address": address, "task_queue": queue, "prefix": queue, "temporal": QUICK}
        case "scattered":
            kind, own = ScatteredExecutor, {"keep_seconds": 0.0}
        case _:
            kind = Executor

    @asynccontextmanager
    async def open_executor(**settings: Any) -> AsyncGenerator[Any]:
        backend: Backend = await open_backend(f"sqlite:///{tmp_path / 'helix.db'}?synchronous=normal")
        async with backend:
            parts = {"state": backend.state, "streams": backend.streams, "usage": backend.usage}
            async with kind(**parts, **own, **{"janitor_seconds": None, "grace": 1.0, **settings}) as executor:
                yield executor

    return open_executor
