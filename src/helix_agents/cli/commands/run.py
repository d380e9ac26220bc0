"""`helix run`: one message to an agent, its answer on the terminal as it is written."""

import asyncio
import sys
from typing import TYPE_CHECKING

import click

from helix_agents.cli.exit_codes import ExitCode
from helix_agents.cli.options import (
    agents_argument,
    check_says_something,
    deps_option,
    json_option,
    model_option,
    store_option,
)
from helix_agents.cli.output import Output

if TYPE_CHECKING:
    from helix_agents.runtimes.in_process import Executor


@click.command()
@agents_argument
@click.argument("message")
@click.option("--session", "session_id", metavar="ID", help="The session to continue, or to create with this id.")
@click.option("--agent", "agent_name", metavar="NAME", help="The agent to use, if the module has several.")
@click.option("--user", "user_id", metavar="ID", help="The user a new session belongs to.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="A tag for a new session; may be repeated.")
@click.option("--idempotency-key", metavar="KEY", help="The same key again returns the turn it started, not a new one.")
@model_option
@deps_option
@store_option
@json_option
@click.pass_obj
def command(
    output: Output,
    agents: str,
    message: str,
    session_id: str | None,
    agent_name: str | None,
    user_id: str | None,
    tags: tuple[str, ...],
    idempotency_key: str | None,
    model: str | None,
    deps: str | None,
    store_url: str,
) -> ExitCode:
    """Send an agent one message.

    MODULE:AGENTS is `module:name` or `file.py:name`, where the name is an Agent, a list of them or an AgentRegistry;
    the module or file alone means all of its agents. The current directory is importable. MESSAGE is the text, or - to
    read it from standard input. The answer goes to standard output; what else the agent does goes to standard error.
    Ctrl-C interrupts the run; `helix resume` continues it.
    """
    from helix_agents.cli.agent_modules import choose_agent, load_agents
    from helix_agents.cli.driving import Begun, Workplace, agent_for, check_agent, drive, find_model

    text = _read_message() if message == "-" else message
    check_says_something(text, "Standard input" if message == "-" else "MESSAGE")
    known, adapter = load_agents(agents), find_model(model)
    if session_id is None or agent_name is not None:
        # Nothing is opened before this is clear; an existing session already knows its agent.
        check_agent(choose_agent(known, agents, agent_name), adapter, deps)

    async def begin(helix: "Executor") -> Begun:
        agent = await agent_for(helix, agents, agent_name, session_id)
        check_agent(agent, adapter, deps)
        handle = await helix.execute(
            agent,
            text,
            session_id,
            user_id=user_id,
            tags=tags,
            idempotency_key=idempotency_key,
            model=adapter,
        )
        return Begun(agent=agent, handle=handle)

    place = Workplace(agents=agents, store_url=store_url, model=model, deps=deps)
    return asyncio.run(drive(output, place, known, begin))


def _read_message() -> str:
    text = sys.stdin.read()
    try:
        text.encode()
    except UnicodeEncodeError as problem:
        raise click.UsageError("Standard input is not UTF-8 text.") from problem
    return text
