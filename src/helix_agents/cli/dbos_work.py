"""The work of `helix worker dbos`: an executor that takes runs from a queue and waits to be told to leave."""

import asyncio
from typing import Any

from helix_agents.agent.registry import AgentRegistry
from helix_agents.cli.output import Output
from helix_agents.domain.urls import shown_url
from helix_agents.runtimes.dbos import DBOSAgentExecutor


async def work(output: Output, agents: AgentRegistry, store_url: str, settings: dict[str, Any]) -> None:
    """Drive runs of these agents until the process is told to end; running steps then get their grace."""
    async with DBOSAgentExecutor.open(store_url, agents=list(agents), placement="shared", **settings):
        names = sorted(agent.name for agent in agents)
        output.answer({"queue": settings["prefix"], "agents": names, "store": shown_url(store_url)})
        output.say(f"Working on queue {settings['prefix']!r}, store {shown_url(store_url)}: {', '.join(names)}.")
        await asyncio.Event().wait()
