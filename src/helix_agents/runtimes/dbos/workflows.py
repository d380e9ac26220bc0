"""What DBOS knows of us: one workflow that drives one attempt of a run, and how to start it and ask for it.

The workflow's name carries the number of the effect sequence, so that a program with another loop never replays it.
"""

import asyncio
import time
from contextvars import Context
from typing import Any, Protocol

from dbos import DBOS, SetWorkflowID

from helix_agents.domain.runs import RunRecord
from helix_agents.engine.plain import EFFECT_SEQUENCE, Plain
from helix_agents.engine.services import Liveness

# How long, in milliseconds, a process may take from a queue what it then does not claim before it is given up.
CLAIM_MS = 60_000


class LetGo(asyncio.CancelledError):
    """Leaves a workflow without a trace in its history: another process has it, or will."""


class Host(Protocol):
    """Drives workflows in its event loop."""

    loop: asyncio.AbstractEventLoop

    @property
    def leaving(self) -> bool: ...

    def is_submitter_of(self, run_id: str) -> bool: ...

    async def run(self, session_id: str, run_id: str, attempt: int) -> Plain: ...


HOSTS: dict[str, list[Host]] = {}
"""The executors of this process, by the prefix of their workflows."""


@DBOS.workflow(name=f"helix_turn_{EFFECT_SEQUENCE}")
async def turn(prefix: str, session_id: str, run_id: str, attempt: int) -> Plain:
    """Drive one attempt of a run, in the event loop of an executor that can."""
    host = _find_host(prefix, run_id)
    if host is None:
        raise LetGo
    driving = host.run(session_id, run_id, attempt)
    if asyncio.get_running_loop() is host.loop:
        return await driving
    # What DBOS takes from a queue it starts in a thread of its own; the context, and so the workflow, comes along.
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(driving, host.loop))


def _find_host(prefix: str, run_id: str) -> Host | None:
    """The executor that submitted the run, else one that is not about to leave."""
    hosts = HOSTS.get(prefix, [])
    submitter = (host for host in hosts if host.is_submitter_of(run_id))
    others = (host for host in hosts if not host.leaving)
    return next(submitter, None) or next(others, None)


def workflow_of(run: RunRecord) -> str:
    """The name of the workflow that drives this attempt."""
    assert run.workflow_id is not None
    return run.workflow_id if run.attempt == 1 else f"{run.workflow_id}__a{run.attempt}"


async def start(prefix: str, run: RunRecord, queue: str | None) -> bool:
    """Start or enqueue the workflow of a run; False when its name belongs to another run, such as one of a session
    that was deleted. The same run again is started once."""
    name = workflow_of(run)
    status = await DBOS.get_workflow_status_async(name)
    if status is not None:
        return status.input is not None and status.input["args"][2:] == (run.run_id, run.attempt)
    arguments = (prefix, run.session_id, run.run_id, run.attempt)
    with SetWorkflowID(name):
        if queue is None:
            await DBOS.start_workflow_async(turn, *arguments)
        else:
            await DBOS.enqueue_workflow_async(queue, turn, *arguments)
    return True


async def cancel_earlier(run: RunRecord) -> None:
    """Have DBOS forget workflows of attempts that were given up, so that nobody's restart revives them."""
    base = run.workflow_id
    assert base is not None
    await DBOS.cancel_workflows_async([base, *(f"{base}__a{attempt}" for attempt in range(2, run.attempt))])


async def inspect(run: RunRecord) -> Liveness:
    """What DBOS says of a run that waits for its first driver."""
    status = await DBOS.get_workflow_status_async(workflow_of(run))
    if status is None:
        return "missing"
    if status.input is None or status.input["args"][2:] != (run.run_id, run.attempt):
        return "dead"
    if status.status in ("ENQUEUED", "DELAYED"):
        return "alive" if status.app_version in (None, DBOS.application_version) else "dead"
    taken = status.dequeued_at or status.updated_at or 0
    # Whoever takes a run claims it at once; one that is not claimed was taken by a process that died.
    return "alive" if status.status == "PENDING" and time.time() * 1000 - taken < CLAIM_MS else "dead"


async def register_queue(name: str, *, poll_seconds: float, at_once: int | None) -> None:
    """Make a queue known, with how many of its runs one process drives at once."""
    await DBOS.register_queue_async(name, polling_interval_sec=poll_seconds, worker_concurrency=at_once)


async def step(name: str, body: Any) -> Plain:
    """One effect as a step of the workflow that this runs in."""
    return await DBOS.run_step_async({"name": name}, body)


def outside() -> Context:
    """A context in which no workflow is going on, for starting one that stands on its own."""
    return Context()
