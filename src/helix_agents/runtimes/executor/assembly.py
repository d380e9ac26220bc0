"""What an executor is assembled from: what the engine needs from the world, and what is stored."""

import asyncio
from collections.abc import Callable
from functools import partial

from helix_agents.agent.registry import AgentRegistry
from helix_agents.engine.children.meant_agents import find_agent
from helix_agents.engine.remote.stops import delete_remote
from helix_agents.engine.requests.standing import read_standing
from helix_agents.engine.requests.workspaces import workspace_providers
from helix_agents.engine.services import EngineOptions, Services
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.ports.streams import StreamManager
from helix_agents.runtimes.executor.models import Models
from helix_agents.runtimes.executor.runtime import Runtime
from helix_agents.runtimes.executor.sessions import Sessions
from helix_agents.runtimes.executor.settings import ExecutorSettings
from helix_agents.system import RandomIds, jitter


def services_for(
    runtime: Runtime,
    *,
    state: SessionStateStore,
    streams: StreamManager,
    agents: AgentRegistry,
    models: Models,
    attend_remotes: Callable[[], None],
    run_ended: Callable[[], None],
    has_webhooks: bool,
    settings: ExecutorSettings,
) -> Services:
    """The services of a runtime's runs; the runtime gets them too."""
    services = Services(
        store=state,
        streams=streams,
        agents=agents,
        clock=state,
        ids=RandomIds(),
        adapter_of=models.adapter_of,
        sleep=asyncio.sleep,
        jitter=jitter,
        in_thread=asyncio.to_thread,
        drive_child=runtime.drive_child,
        drive_detached=runtime.drive_detached,
        inspect=runtime.inspect,
        is_here=lambda run: runtime.find(run.run_id) is not None,
        name_workflow=runtime.name_workflow,
        entries=settings.get("entries"),
        memories=settings.get("memories"),
        attend_remotes=attend_remotes,
        has_webhooks=has_webhooks,
        run_ended=run_ended,
        hooks=settings.get("hooks"),
        options=settings.get("options") or EngineOptions(),
    )
    runtime.services = services
    return services


def sessions_of(services: Services) -> Sessions:
    """What is stored, as users of an executor read and change it."""
    return Sessions(
        services.store,
        services.streams,
        forget_elsewhere=partial(delete_remote, services),
        agent_of=partial(find_agent, services.store, services.agents),
        check_at_rest=partial(read_standing, services),
        workspace_providers=lambda: workspace_providers(services.agents.everyone()),
    )
