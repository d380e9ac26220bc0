"""The executor of one process: runs agents here, durable through the store alone."""

from collections.abc import Iterable
from typing import Self, Unpack

from helix_agents.agent.agent import AnyAgent
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
    steps `grace` seconds to commit, and then lets go of the rest, which any process continues.

    Args:
        state: Where sessions live; `open` takes it, and the parts below, from the backend its URL names.
        streams: Where what becomes visible is kept; not necessarily in the same backend.
        usage: Where usage is counted.
        locks: For what your own code coordinates; the engine needs none.
        entries: Where state capabilities keep what they know.
        memories: Where agents keep what they remember.
        on_close: Awaited when the executor was closed.
        agents: What this process can run, and recover by name.
        deps: Opens what tools need from the process, once for each run: a function of the session's id and its user
            that gives an async context manager.
        max_running: How many runs are driven here at once; None is for no limit.
        max_parallel_tools: How many tools of one run work at once; None is for no limit.
        lease_ms: After how long without a sign of life this process counts as dead, and others go on with its runs.
        hooks: Code at fixed points of every run.
        options: What its runs follow: tries, deadlines, sizes, depth.
        grace: How many seconds running steps have to commit when the process leaves; 20 if left out.
        janitor_seconds: How often deadlines, orphans and expired sessions are looked after; 15 if left out, None is for
            never.
        resume_grace_ms: How long a session that was answered waits for somebody to resume it before the janitor does;
            half a minute if left out.
        stream_retention_ms: How long chunks of streams that ended are kept; a day if left out.

    Raises:
        DefinitionError: a setting is none, or cannot be followed.
    """

    def __init__(
        self,
        *,
        state: SessionStateStore,
        streams: StreamManager,
        usage: UsageStore,
        agents: Iterable[AnyAgent] = (),
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
