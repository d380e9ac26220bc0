"""`helix resume`: continues what a session left open."""

import asyncio
from typing import TYPE_CHECKING

import click

from helix_agents.cli.exit_codes import ExitCode
from helix_agents.cli.options import (
    agents_argument,
    check_says_something,
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
@click.option("--message", metavar="TEXT", help="Send this message first; calls that still wait are given up.")
@click.option("--checkpoint", "checkpoint_id", metavar="ID", help="Go back to this checkpoint and continue from there.")
@model_option
@deps_option
@store_option
@json_option
@click.pass_obj
def command(
    output: Output,
    agents: str,
    session_id: str,
    message: str | None,
    checkpoint_id: str | None,
    model: str | None,
    deps: str | None,
    store_url: str,
) -> ExitCode:
    """Continue a session that waits or was interrupted.

    Answers that were given are used, and an interrupted turn continues. Exit code 6 means that a call has to be
    answered first.

    MODULE:AGENTS is the place that defines the agent: `app.py`, `app.py:agents` or `app:agents`.
    """
    from helix_agents.cli.agent_modules import agent_of_session, load_agents
    from helix_agents.cli.driving import Begun, Workplace, check_agent, drive, find_model

    if message is not None and checkpoint_id is not None:
        raise click.UsageError("--message and --checkpoint exclude each other.")
    if message is not None:
        check_says_something(message, "--message")

    known, adapter = load_agents(agents), find_model(model)

    async def begin(helix: "Executor") -> Begun:
        agent = agent_of_session(known, agents, await helix.sessions.get(session_id))
        check_agent(agent, adapter, deps)
        mode = "from_checkpoint" if checkpoint_id is not None else "with_message" if message is not None else "continue"
        handle = await helix.resume(
            agent, session_id, mode=mode, message=message, checkpoint_id=checkpoint_id, model=adapter
        )
        return Begun(agent=agent, handle=handle)

    place = Workplace(agents=agents, store_url=store_url, model=model, deps=deps)
    return asyncio.run(drive(output, place, known, begin))
