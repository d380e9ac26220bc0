"""The janitor's rounds, as the command line runs them."""

import asyncio
from collections.abc import Sequence

import msgspec

from helix_agents.agent.registry import AgentRegistry
from helix_agents.cli.agent_modules import load_agents, load_deps
from helix_agents.cli.driving import check_agents
from helix_agents.cli.output import Output
from helix_agents.cli.plain import plain
from helix_agents.cli.stored import open_stored
from helix_agents.cli.warnings_shown import show_warnings
from helix_agents.runtimes.executor.janitor import Swept
from helix_agents.runtimes.executor.webhooks import Webhook
from helix_agents.runtimes.in_process import Executor

MOST_SECONDS_FOR_WEBHOOKS = 1.0
"""How long a round of many waits for webhooks, so that it can say how many it told."""


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
        if every is None:
            _report(output, await helix.sweep())
            await helix.idle()
        else:
            await _sweep_forever(output, helix, every)


async def _sweep_forever(output: Output, helix: Executor, every: float) -> None:
    """Sweep again and again. A webhook or an embedder that is slow to answer holds up no round; what a webhook was told
    is counted in a later one."""
    telling: asyncio.Task[int] | None = None
    remembering: asyncio.Task[None] | None = None
    while True:
        swept = await helix.janitor.sweep()
        telling = telling or asyncio.create_task(helix.webhooks.tell())
        remembering = remembering or asyncio.create_task(helix.memory_rounds.sweep())
        await asyncio.wait((telling,), timeout=min(every, MOST_SECONDS_FOR_WEBHOOKS))
        if telling.done():
            swept = msgspec.structs.replace(swept, told=telling.result())
            telling = None
        if remembering.done():
            remembering.result()
            remembering = None
        _report(output, swept)
        await asyncio.sleep(every)


def _report(output: Output, swept: Swept) -> None:
    output.answer(plain(swept))
    done = ", ".join(f"{name.replace('_', ' ')}: {count}" for name, count in plain(swept).items() if count)
    output.say(done or "Nothing to do.")
