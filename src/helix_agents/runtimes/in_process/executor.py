"""The executor of one process: runs agents here, durable through the store alone."""

from collections.abc import Iterable
from typing import Any, Self, Unpack

from helix_agents.agent.agent import Agent
from helix_agents.engine.services import OpenDeps
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.ports.streams import StreamManager
from helix_agents.ports.usage_store import UsageStore
from helix_agents.runtimes.executor.core import ExecutorCore
from helix_agents.runtimes.executor.leases import LeaseKeeper, new_owner
from helix_agents.runtimes.executor.opening import OpeningExecutor, chosen_store
from helix_agents.runtimes.executor.settings import ExecutorSettings, OpenSettings, check_room
from helix_agents.runtimes.in_process.drivers import Drivers


class InProcessSettings(OpenSettings, total=False):
    """What `Executor.open` can be told."""

    lease_ms: int


class Executor(ExecutorCore):
    """Runs agents in this process, as asyncio tasks that outlive whoever started them.

    Use it as `async with Executor.open(url, agents=[…]) as helix:`. Leaving the block starts no new runs, gives running
    steps `grace` seconds to commit, and then lets go of the rest, which any process continues. Further settings are
    those of every executor.
    """

    def __init__(
        self,
        *,
        state: SessionStateStore,
        streams: StreamManager,
        usage: UsageStore,
        agents: Iterable[Agent[Any, Any, Any]] = (),
        deps: OpenDeps | None = None,
        max_running: int | None = None,
        max_parallel_tools: int | None = None,
        lease_ms: int = 15_000,
        **settings: Unpack[ExecutorSettings],
    ) -> None:
        check_room(type(self), max_running=max_running, max_parallel_tools=max_parallel_tools)
        drivers = Drivers(
            LeaseKeeper(state, new_owner(), lease_ms),
            open_deps=deps,
            max_running=max_running,
            max_parallel_tools=max_parallel_tools,
            wrap=self._wrap,
        )
        super().__init__(drivers, state=state, streams=streams, usage=usage, agents=agents, **settings)

    @classmethod
    def open(
        cls, url: str | None = None, *, namespace: str = "", **settings: Unpack[InProcessSettings]
    ) -> OpeningExecutor[Self]:
        """An executor on the backend a URL names; without one on `HELIX_STORE`, else on a file beside the process."""
        return OpeningExecutor(cls, chosen_store(url), namespace, settings)
