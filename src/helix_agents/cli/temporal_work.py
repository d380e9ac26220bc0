"""The work of `helix worker temporal`: an executor that runs until it is told to leave."""

import asyncio
from typing import Any

from helix_agents.agent.registry import AgentRegistry
from helix_agents.cli.output import Output
from helix_agents.domain.urls import shown_url
from helix_agents.engine.services import OpenDeps
from helix_agents.runtimes.temporal import TemporalAgentExecutor
from helix_agents.runtimes.temporal.service import connect, register_attributes


async def work(
    output: Output,
    agents: AgentRegistry,
    store_url: str,
    where: dict[str, Any],
    *,
    deps: OpenDeps | None,
    register: bool,
    grace: float,
) -> None:
    """Drive runs of these agents until the process is told to end; effects then get their grace."""
    if register:
        server = await connect(where["address"], where["temporal_namespace"], where["client_settings"])
        await register_attributes(server)
        output.say("HelixSession and HelixAgent are searchable now.")
    async with TemporalAgentExecutor.open(store_url, agents=list(agents), deps=deps, grace=grace, **where):
        names = sorted(agent.name for agent in agents)
        output.answer({"queue": where["task_queue"], "agents": names, "store": shown_url(store_url)})
        queue = f"{where['task_queue']!r} of {where['address']}"
        output.say(f"Working on queue {queue}, store {shown_url(store_url)}: {', '.join(names)}.")
        await asyncio.Event().wait()
