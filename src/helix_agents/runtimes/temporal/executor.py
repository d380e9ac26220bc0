"""The executor on Temporal: the same entries, answers and handles, with workflows behind them."""

from collections.abc import Iterable, Mapping
from typing import Any, Self, Unpack

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.choices import check_switch, check_text
from helix_agents.domain.errors import DefinitionError
from helix_agents.engine.services import OpenDeps
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.ports.streams import StreamManager
from helix_agents.ports.usage_store import UsageStore
from helix_agents.runtimes.executor.core import ExecutorCore
from helix_agents.runtimes.executor.leases import LeaseKeeper, new_owner
from helix_agents.runtimes.executor.opening import OpeningExecutor, chosen_store
from helix_agents.runtimes.executor.settings import ExecutorSettings, OpenSettings, check_deps, check_room
from helix_agents.runtimes.temporal.options import DEFAULT_ADDRESS, TemporalOptions
from helix_agents.runtimes.temporal.runtime import TemporalRuntime

LEASE_MS = 60_000
"""How long, in milliseconds, a run still counts as Temporal's after its last process here has gone."""


class TemporalSettings(OpenSettings, total=False):
    """The settings that `TemporalAgentExecutor.open` accepts."""

    address: str
    temporal_namespace: str
    task_queue: str
    prefix: str
    works: bool
    temporal: TemporalOptions | None
    client_settings: Mapping[str, Any] | None


class TemporalAgentExecutor(ExecutorCore):
    """Runs agents as Temporal workflows; transcripts, states and streams stay in the store.

    Use it as `async with TemporalAgentExecutor.open(url, agents=[…], address="127.0.0.1:7233") as helix:`. The process
    also works on its `task_queue`, unless `works` is false and other processes do (`helix worker temporal`). All
    processes of one application use the same `prefix`, with which the ids of their workflows start.

    `max_running` limits how many model calls this process makes at once, `max_parallel_tools` how many tools it runs.
    `client_settings` are passed to Temporal's client as they are (`tls`, `api_key`, …). The remaining settings are
    those of `Executor`.
    """

    def __init__(
        self,
        *,
        state: SessionStateStore,
        streams: StreamManager,
        usage: UsageStore,
        agents: Iterable[AnyAgent] = (),
        deps: OpenDeps | None = None,
        address: str = DEFAULT_ADDRESS,
        temporal_namespace: str = "default",
        task_queue: str = "helix",
        prefix: str = "helix",
        works: bool = True,
        temporal: TemporalOptions | None = None,
        client_settings: Mapping[str, Any] | None = None,
        max_running: int | None = None,
        max_parallel_tools: int | None = None,
        **settings: Unpack[ExecutorSettings],
    ) -> None:
        check_deps(type(self), deps)
        check_room(type(self), max_running=max_running, max_parallel_tools=max_parallel_tools)
        names = {"address": address, "temporal_namespace": temporal_namespace, "task_queue": task_queue}
        for option, name in names.items():
            check_text(type(self).__name__, option, name)
        check_switch(type(self).__name__, "works", works)
        if not isinstance(temporal, TemporalOptions | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(type(self).__name__, f"temporal={temporal!r} is not a TemporalOptions(…).")
        runtime = TemporalRuntime(
            LeaseKeeper(state, new_owner(), LEASE_MS),
            address=address,
            namespace=temporal_namespace,
            task_queue=task_queue,
            prefix=prefix,
            works=works,
            options=temporal or TemporalOptions(),
            client_settings=dict(client_settings or {}),
            open_deps=deps,
            max_running=max_running,
            max_parallel_tools=max_parallel_tools,
            grace=settings.get("grace", 20.0),
        )
        super().__init__(runtime, state=state, streams=streams, usage=usage, agents=agents, **settings)

    @classmethod
    def open(
        cls, url: str | None = None, *, namespace: str = "", **settings: Unpack[TemporalSettings]
    ) -> OpeningExecutor[Self]:
        """An executor on the backend that a URL names; by default the one in `HELIX_STORE`, else a file beside the
        process."""
        return OpeningExecutor(cls, chosen_store(url), namespace, settings)
