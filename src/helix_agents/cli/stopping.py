"""Stopping a session from the command line: a durable request, carried out by the process that runs the session."""

from helix_agents.cli.exit_codes import ExitCode
from helix_agents.cli.opened import desk_of
from helix_agents.cli.output import Output
from helix_agents.cli.stored import open_stored
from helix_agents.domain.ids import SessionId
from helix_agents.domain.sessions import InterruptSet, StopKind
from helix_agents.ports.state_store import SessionStateStore

DONE = {"interrupt": "interrupted", "abort": "aborted"}


async def stop(output: Output, url: str, session_id: str, kind: StopKind, reason: str | None) -> ExitCode:
    """Ask the session's run to stop, or settle a session that waits; says whether there was anything to stop."""
    async with open_stored(url) as backend:
        helix = desk_of(backend)
        ask = helix.interrupt if kind == "interrupt" else helix.abort
        outcome = await ask(session_id, reason)
        session = await helix.sessions.get(session_id)
        is_left = session.status == "active" and await _is_left(backend.state, session_id)
    run_id = outcome.run_id if isinstance(outcome, InterruptSet) else None
    output.answer({"session_id": session_id, "stopped": run_id is not None, "run_id": run_id, "status": session.status})
    if run_id is None:
        output.say(f"Nothing is running in {session_id}; the session is {session.status}.")
        return ExitCode.FAILED
    if is_left:
        output.say(
            f"The process of run {run_id} has died; the run will be {DONE[kind]} when another process takes it over: "
            "helix resume, helix janitor with its agents, or a server."
        )
    elif session.status == "active":
        output.say(f"Run {run_id} will be {DONE[kind]} as soon as its process sees the request.")
    else:
        output.say(f"Run {run_id} is {DONE[kind]}.")
    return ExitCode.OK


async def _is_left(store: SessionStateStore, session_id: SessionId) -> bool:
    """Whether the session's run belongs to a process whose lease has ended."""
    run = await store.get_current_run(session_id)
    return run is not None and run.owner is not None and await store.find_lease(run.owner) is None
