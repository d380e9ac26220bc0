"""Stopping a session from the command line: a durable request, carried out by whichever process runs it."""

from helix_agents.cli.exit_codes import ExitCode
from helix_agents.cli.opened import open_desk
from helix_agents.cli.output import Output
from helix_agents.domain.sessions import InterruptSet, StopKind

DONE = {"interrupt": "interrupted", "abort": "aborted"}


async def stop(output: Output, url: str, session_id: str, kind: StopKind, reason: str | None) -> ExitCode:
    """Ask the session's run to stop, or settle a session that waits; says whether there was anything to stop."""
    async with open_desk(url) as helix:
        ask = helix.interrupt if kind == "interrupt" else helix.abort
        outcome = await ask(session_id, reason)
        session = await helix.sessions.get(session_id)
    run_id = outcome.run_id if isinstance(outcome, InterruptSet) else None
    output.answer({"session_id": session_id, "stopped": run_id is not None, "run_id": run_id, "status": session.status})
    if run_id is None:
        output.say(f"Nothing is running in {session_id}; it is {session.status}.")
        return ExitCode.FAILED
    if session.status == "active":
        output.say(f"Run {run_id} will be {DONE[kind]} as soon as its process sees the request.")
    else:
        output.say(f"Run {run_id} is {DONE[kind]}.")
    return ExitCode.OK
