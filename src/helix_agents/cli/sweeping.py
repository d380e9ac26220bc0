"""The janitor's rounds, as the command line runs them."""

import asyncio
from collections.abc import Sequence

from helix_agents.agent.registry import AgentRegistry
from helix_agents.cli.agent_modules import load_agents, load_deps
from helix_agents.cli.driving import check_agents
from helix_agents.cli.output import Output
from helix_agents.cli.plain import plain
from helix_agents.cli.stored import open_stored
from helix_agents.cli.warnings_shown import show_warnings
from helix_agents.runtimes.executor.webhooks import Webhook
from helix_agents.runtimes.in_process import Executor


async def sweep(
    output: Output,
    url: str,
    agents: str | None,
    *,
    deps: str | None,
    every: float | None,
    resume_grace: float,
    webhooks: Sequence[Webhook],
) -> None:
    """Sweep once and wait for the runs that this started, or sweep forever."""
    known = load_agents(agents) if agents is not None else AgentRegistry()
    show_warnings()
    check_agents(known, deps)
    # The janitor must not create a store; one with an older schema is left to `helix migrate`.
    async with open_stored(url):
        pass
    async with Executor.open(
        url,
        agents=known,
        deps=load_deps(deps),
        janitor_seconds=None,
        resume_grace_ms=int(resume_grace * 1000),
        webhooks=webhooks,
    ) as helix:
        while True:
            swept = await helix.sweep()
            output.answer(plain(swept))
            done = ", ".join(f"{name.replace('_', ' ')}: {count}" for name, count in plain(swept).items() if count)
            output.say(done or "Nothing to do.")
            if every is None:
                await helix.idle()
                return
            await asyncio.sleep(every)
