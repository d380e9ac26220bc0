"""`helix retry`: continues from the last commit of a failed run."""

import asyncio
from typing import TYPE_CHECKING

import click

from helix_agents.cli.exit_codes import ExitCode
from helix_agents.cli.options import (
    agents_argument,
    deps_option,
    json_option,
    model_option,
    session_argument,
    store_option,
)
from helix_agents.cli.output import Output

if TYPE_CHECKING:
    from helix_agents.runtimes.in_process import Executor


@click.command()
@agents_argument
@session_argument
@model_option
@deps_option
@store_option
@json_option
@click.pass_obj
def command(
    output: Output, agents: str, session_id: str, model: str | None, deps: str | None, store_url: str
) -> ExitCode:
    """Try a failed run again from its last commit.

    The retry has a fresh budget of steps. What was already committed is not done again.

    MODULE:AGENTS is the place that defines the agent: `app.py`, `app.py:agents` or `app:agents`.
    """
    from helix_agents.cli.agent_modules import agent_of_session, load_agents
    from helix_agents.cli.driving import Begun, Workplace, check_agent, drive, find_model

    known, adapter = load_agents(agents), find_model(model)

    async def begin(helix: "Executor") -> Begun:
        agent = agent_of_session(known, agents, await helix.sessions.get(session_id))
        check_agent(agent, adapter, deps)
        return Begun(agent=agent, handle=await helix.retry(agent, session_id, model=adapter))

    place = Workplace(agents=agents, store_url=store_url, model=model, deps=deps)
    return asyncio.run(drive(output, place, known, begin))
