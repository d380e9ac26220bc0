"""The executor on DBOS: the same entries, answers and handles, with workflows behind them."""

from collections.abc import Iterable, Mapping
from typing import Any, Self, Unpack, get_args

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.choices import check_choice, check_seconds, check_text, check_whole
from helix_agents.domain.errors import DefinitionError
from helix_agents.engine.services import OpenDeps
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.ports.streams import StreamManager
from helix_agents.ports.usage_store import UsageStore
from helix_agents.runtimes.dbos.instance import Wanted
from helix_agents.runtimes.dbos.runtime import DBOSRuntime, Placement
from helix_agents.runtimes.dbos.system_database import system_database_beside
from helix_agents.runtimes.executor.core import ExecutorCore
from helix_agents.runtimes.executor.leases import LeaseKeeper, new_owner
from helix_agents.runtimes.executor.opening import OpeningExecutor, chosen_store
from helix_agents.runtimes.executor.settings import ExecutorSettings, OpenSettings, check_deps, check_room

WEEK_MS = 7 * 24 * 3600 * 1000


class DBOSSettings(OpenSettings, total=False):
    """The settings that `DBOSAgentExecutor.open` accepts."""

    system_database_url: str | None
    prefix: str
    placement: Placement
    poll_seconds: float
    executor_id: str | None
    dbos_config: Mapping[str, Any] | None
    lease_ms: int
    workflow_retention_ms: int | None


class DBOSAgentExecutor(ExecutorCore):
    """Runs agents as DBOS workflows. Finished effects are never done again, whatever dies.

    Use it as `async with DBOSAgentExecutor.open(url, agents=[…]) as helix:`. DBOS keeps its own tables in
    `system_database_url`: by default in the same PostgreSQL database, or in a file beside a SQLite store.

    `placement` says where runs are driven: in this process (`here`), in a queue that every process shares (`shared`),
    or in that queue but not by this process (`elsewhere`). All processes of one application use the same `prefix`, with
    which the names of workflows and of the queue start. If a restarted process keeps its `executor_id`, DBOS itself
    continues its workflows; without one, other processes do so once the lease has expired.

    Results are in the store, so ended workflows are not needed any more: the janitor removes workflows of this prefix
    that ended `workflow_retention_ms` ago, by default a week. None keeps all of them.

    A process has one DBOS. Executors with the same DBOS settings share it, and can share one that your program has
    launched. The remaining settings are those of `Executor`; `dbos_config` holds settings of DBOS itself.
    """

    def __init__(
        self,
        *,
        state: SessionStateStore,
        streams: StreamManager,
        usage: UsageStore,
        system_database_url: str,
        agents: Iterable[AnyAgent] = (),
        deps: OpenDeps | None = None,
        prefix: str = "helix",
        placement: Placement = "here",
        poll_seconds: float = 0.2,
        executor_id: str | None = None,
        dbos_config: Mapping[str, Any] | None = None,
        max_running: int | None = None,
        max_parallel_tools: int | None = None,
        lease_ms: int = 15_000,
        workflow_retention_ms: int | None = WEEK_MS,
        **settings: Unpack[ExecutorSettings],
    ) -> None:
        check_deps(type(self), deps)
        check_room(type(self), max_running=max_running, max_parallel_tools=max_parallel_tools)
        check_choice("DBOSAgentExecutor", "placement", placement, get_args(Placement))
        check_seconds("DBOSAgentExecutor", "poll_seconds", poll_seconds)
        if executor_id is not None:
            check_text("DBOSAgentExecutor", "executor_id", executor_id)
        if workflow_retention_ms is not None:
            kept = "; None keeps them forever"
            check_whole("DBOSAgentExecutor", "workflow_retention_ms", workflow_retention_ms, 0, other=kept)
        _check_config(dbos_config or {})
        runtime = DBOSRuntime(
            LeaseKeeper(state, new_owner(), lease_ms),
            wanted=Wanted(
                system_database_url=system_database_url,
                executor_id=executor_id,
                works=placement != "elsewhere",
                config=dbos_config or {},
            ),
            prefix=prefix,
            placement=placement,
            poll_seconds=poll_seconds,
            open_deps=deps,
            max_running=max_running,
            max_parallel_tools=max_parallel_tools,
            retention_ms=workflow_retention_ms,
            wrap=self._wrap,
        )
        super().__init__(runtime, state=state, streams=streams, usage=usage, agents=agents, **settings)

    @classmethod
    def open(
        cls, url: str | None = None, *, namespace: str = "", **settings: Unpack[DBOSSettings]
    ) -> OpeningExecutor[Self]:
        """An executor on the backend that a URL names; by default the one in `HELIX_STORE`, else a file beside the
        process."""
        url = chosen_store(url)
        if settings.get("system_database_url") is None:
            settings["system_database_url"] = system_database_beside(url)
        return OpeningExecutor(cls, url, namespace, settings)


def _check_config(config: Mapping[str, Any]) -> None:
    for name in ("system_database_url", "executor_id"):
        if name in config:
            raise DefinitionError("DBOSAgentExecutor", f"dbos_config has {name!r}; give it as {name}=… instead.")
