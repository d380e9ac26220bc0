"""The work of `helix worker temporal`: an executor that runs until it is told to leave."""

import asyncio
from typing import Any

from helix_agents.agent.registry import AgentRegistry
from helix_agents.cli.output import Output
from helix_agents.domain.urls import shown_url
from helix_agents.runtimes.temporal import TemporalAgentExecutor
from helix_agents.runtimes.temporal.service import connect, register_attributes


async def work(
    output: Output,
    agents: AgentRegistry,
    store_url: str,
    settings: dict[str, Any],
    *,
    register: bool,
) -> None:
    """Drive runs of these agents until the process is told to end; effects then get their grace."""
    if register:
        server = await connect(settings["address"], settings["temporal_namespace"], settings["client_settings"])
        await register_attributes(server)
        output.say("HelixSession and HelixAgent are searchable now.")
    async with TemporalAgentExecutor.open(store_url, agents=list(agents), **settings):
        names = sorted(agent.name for agent in agents)
        output.answer({"queue": settings["task_queue"], "agents": names, "store": shown_url(store_url)})
        queue = f"{settings['task_queue']!r} of {settings['address']}"
        output.say(f"Working on queue {queue}, store {shown_url(store_url)}: {', '.join(names)}.")
        await asyncio.Event().wait()
