"""The executor for a single process: runs agents here, durable through the store alone."""

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
from helix_agents.runtimes.executor.settings import ExecutorSettings, OpenSettings, check_deps, check_room
from helix_agents.runtimes.in_process.drivers import Drivers


class InProcessSettings(OpenSettings, total=False):
    """The settings that `Executor.open` accepts."""

    lease_ms: int


class Executor(ExecutorCore):
    """Runs agents in this process, as asyncio tasks that outlive the caller that started them.

    Use it as `async with Executor.open(url, agents=[…]) as helix:`. Leaving the block starts no new runs, gives running
    steps `grace` seconds to commit, and then releases the rest, which any process can continue.

    Args:
        state: Where sessions are stored. `open` takes this and the other stores from the backend that its URL names.
        streams: Where stream chunks are kept; not necessarily in the same backend.
        usage: Where usage is counted.
        locks: For your own code to use; the engine needs none.
        entries: Where state capabilities keep their data.
        memories: Where agents keep what they remember.
        on_close: Awaited after the executor was closed.
        agents: The agents this process can run, and recover by name.
        deps: Opens what tools need from the process, once for each run: a function of the session's id and its user
            that returns an async context manager.
        max_running: How many runs are driven here at once; None means no limit.
        max_parallel_tools: How many tools of one run work at once; None means no limit.
        lease_ms: After how long without a sign of life this process counts as dead, so that others continue its runs.
        hooks: Your code, called at fixed points of every run.
        options: The limits its runs follow: tries, deadlines, sizes, depth.
        grace: How many seconds running steps have to commit when the process leaves. Defaults to 20.
        janitor_seconds: How often the janitor looks after deadlines, orphans and expired sessions. Defaults to 15; None
            means never.
        resume_grace_ms: How long an answered session waits for your code to resume it before the janitor does. Defaults
            to half a minute.
        stream_retention_ms: How long the chunks of ended streams are kept. Defaults to a day.
        webhooks: Addresses that are told over HTTP how turns end and which calls wait. Give the same ones to every
            process on the store.

    Raises:
        DefinitionError: a setting is not valid, or cannot be followed.
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
        check_deps(type(self), deps)
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
        """An executor on the backend that a URL names; by default the one in `HELIX_STORE`, else a file beside the
        process."""
        return OpeningExecutor(cls, chosen_store(url), namespace, settings)
