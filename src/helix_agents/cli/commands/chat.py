"""`helix chat`: a conversation with an agent in the terminal, which survives the terminal."""

import click

from helix_agents.cli.exit_codes import ExitCode
from helix_agents.cli.options import agents_argument, deps_option, model_option, store_option
from helix_agents.cli.output import Output


@click.command()
@agents_argument
@click.option("--session", "session_id", metavar="ID", help="The session to continue, or to create with this id.")
@click.option("--agent", "agent_name", metavar="NAME", help="The agent to use, if the module has several.")
@click.option("--user", "user_id", metavar="ID", help="The user a new session belongs to.")
@model_option
@deps_option
@store_option
@click.pass_obj
def command(
    output: Output,
    agents: str,
    session_id: str | None,
    agent_name: str | None,
    user_id: str | None,
    model: str | None,
    deps: str | None,
    store_url: str,
) -> ExitCode:
    """Talk to an agent: stream, approve, answer, rewind.

    You are asked about calls that need a person as they come up. /help lists the commands. Ctrl-C interrupts the agent
    and keeps what it did; Ctrl-D leaves. Whatever happens to the terminal, the session is in the store: continue it
    with the same command and --session.

    MODULE:AGENTS is the place that defines the agent: `app.py`, `app.py:agents` or `app:agents`.
    """
    from helix_agents.cli.chatting import chat
    from helix_agents.cli.driving import Workplace

    place = Workplace(agents=agents, store_url=store_url, model=model, deps=deps)
    return chat(output, place, session_id=session_id, agent_name=agent_name, user_id=user_id, model=model)
