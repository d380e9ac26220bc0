"""What DBOS knows about us: a workflow per attempt of a run, one per sub-agent call, and how they are started.

Their names carry the number of the effect sequence, so that a program with another loop never replays them.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import Context
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol, TypeVar

from dbos import DBOS, SetWorkflowID, WorkflowStatus

from helix_agents.domain.ids import RunId
from helix_agents.domain.runs import RunRecord
from helix_agents.engine.effects import RunEnd
from helix_agents.engine.log import log_exception
from helix_agents.engine.plain import EFFECT_SEQUENCE, Plain, to_plain
from helix_agents.engine.services import Liveness
from helix_agents.runtimes.dbos.instance import PATIENCE_SECONDS
from helix_agents.runtimes.executor.owned_runs import LetGo
from helix_agents.runtimes.executor.workflow_names import workflow_of

T = TypeVar("T")

# How long, in milliseconds, a process may hold what it took from a queue without claiming it before it is given up.
CLAIM_MS = 60_000

# How long, in seconds, a process keeps a run that it took from a queue and does not drive; less than the time above.
SHORTEST_KEPT_SECONDS, LONGEST_KEPT_SECONDS = 0.5, 30.0

# How long, in seconds, workflows of a run and of its calls wait for each other, because a restart starts them in any
# order.
MEETING_SECONDS = 30.0

TURNS = "helix_turn_"

# A program has its own workflows, whose ids may start in the same way.
_TURN_NAMES = [f"{TURNS}{number}" for number in range(1, EFFECT_SEQUENCE + 1)]

# How many turns DBOS forgets at once; everything that it knows about them is deleted in one transaction.
FORGOTTEN_AT_ONCE = 100

# How often, in seconds, a workflow that was replayed checks whether a call has been made.
LOOKING_SECONDS = 0.1


class Host(Protocol):
    """Drives workflows in its event loop."""

    loop: asyncio.AbstractEventLoop

    @property
    def leaving(self) -> bool: ...

    def is_submitter_of(self, run_id: str, attempt: int) -> bool: ...

    async def run(self, session_id: str, run_id: str, attempt: int) -> Plain: ...


class Caller(Protocol):
    """A run that is driven in an event loop of this process, and whose calls are made there."""

    loop: asyncio.AbstractEventLoop

    def make(self, request: Plain) -> Coroutine[Any, Any, Plain]: ...


HOSTS: dict[str, list[Host]] = {}
"""The executors of this process, by the prefix of their workflows."""

CALLERS: dict[str, Caller] = {}
"""The runs that are driven in this process, by the names of their workflows."""

_giving_back: set["asyncio.Task[None]"] = set()


@DBOS.workflow(name=f"{TURNS}{EFFECT_SEQUENCE}")
async def turn(prefix: str, session_id: str, run_id: str, attempt: int) -> Plain:
    """Drive one attempt of a run, in the event loop of an executor that can."""
    host = _find_host(prefix, run_id, attempt)
    if host is None:
        # DBOS takes from every queue that it knows, and continues to do so until it is destroyed.
        outside().run(_begin_to_give_back, prefix, current())
        raise LetGo
    return await _on(host.loop, host.run(session_id, run_id, attempt))


@DBOS.workflow(name=f"helix_call_{EFFECT_SEQUENCE}")
async def call(caller_name: str, request: Plain) -> Plain:
    """Make a call of a run that another workflow drives in this process; if its caller does not appear, the call is
    over."""
    given_up = time.monotonic() + MEETING_SECONDS
    while (caller := CALLERS.get(caller_name)) is None:
        if time.monotonic() > given_up:
            return to_plain(RunEnd(status="superseded"))
        await asyncio.sleep(0.02)
    return await _on(caller.loop, caller.make(request))


async def _on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Plain]) -> Plain:
    if asyncio.get_running_loop() is loop:
        return await work
    # DBOS starts what it takes from a queue in its own thread; the context, and so the workflow, comes along.
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))


def current() -> str:
    """The name of the current workflow."""
    assert DBOS.workflow_id is not None
    return DBOS.workflow_id


@contextmanager
def calling(caller: Caller) -> Generator[None]:
    """While a run is driven in this workflow, let the workflows of its calls find it."""
    name = current()
    CALLERS[name] = caller
    try:
        yield
    finally:
        if CALLERS.get(name) is caller:
            del CALLERS[name]


def _find_host(prefix: str, run_id: str, attempt: int) -> Host | None:
    """The executor that submitted this attempt of the run, else one that is not about to leave."""
    hosts = HOSTS.get(prefix, [])
    submitter = (host for host in hosts if host.is_submitter_of(run_id, attempt))
    others = (host for host in hosts if not host.leaving)
    return next(submitter, None) or next(others, None)


async def give_back(queue: str, name: str, *, at_once: bool = False) -> None:
    """Leave a run that was taken from the queue to other processes, if it is not to be driven here.

    It may well be taken here again. So, unless that is over soon, it is kept for as long as it has waited before, and a
    run that no process drives goes back and forth ever more rarely.
    """
    try:
        if not at_once:
            await asyncio.sleep(_kept_seconds(await DBOS.get_workflow_status_async(name)))
    finally:
        # Even if this process leaves meanwhile.
        await _put_back(queue, name)


async def seconds_to_keep(queue: str, name: str) -> float | None:
    """How long to keep a run that has to wait for its turn here; forever, if no queue gives it to others."""
    status = await DBOS.get_workflow_status_async(name)
    return _kept_seconds(status) if status is not None and status.queue_name == queue else None


async def is_companions(queue: str, name: str) -> bool:
    """Whether a run was taken from the queue of companions."""
    status = await DBOS.get_workflow_status_async(name)
    return status is not None and status.queue_name == companions_of(queue)


async def is_given_up(name: str) -> bool:
    """Whether a workflow was cancelled because its run continues in another one."""
    status = await DBOS.get_workflow_status_async(name)
    return status is not None and status.status == "CANCELLED"


def _kept_seconds(status: WorkflowStatus | None) -> float:
    waited = 0.0 if status is None else time.time() - (status.created_at or 0) / 1000
    return min(max(waited, SHORTEST_KEPT_SECONDS), LONGEST_KEPT_SECONDS)


async def _put_back(queue: str, name: str) -> None:
    try:
        # A process that leaves does not wait for a database that is away.
        async with asyncio.timeout(PATIENCE_SECONDS):
            status = await DBOS.get_workflow_status_async(name)
            taken_from = (queue, companions_of(queue))
            if status is not None and status.status == "PENDING" and status.queue_name in taken_from:
                await DBOS.resume_workflow_async(name, queue_name=status.queue_name)
    except Exception as problem:
        # It is given up after a while.
        log_exception("run.not_given_back", problem, workflow=name)


def _begin_to_give_back(queue: str, name: str) -> None:
    # Executors that are about to leave do so soon. Those with other prefixes may share the same DBOS forever.
    task = asyncio.create_task(give_back(queue, name, at_once=bool(HOSTS.get(queue))))
    _giving_back.add(task)
    task.add_done_callback(_giving_back.discard)


async def start(prefix: str, run: RunRecord, queue: str | None) -> bool:
    """Start or enqueue the workflow of a run; False if its name belongs to another run, such as one of a deleted
    session. The same run is started only once."""
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


async def start_call(name: str, request: Plain) -> "asyncio.Task[Plain]":
    """Start the workflow of a call that the current one makes; returns a task that waits for its result.

    Only the start is recorded in the current workflow, and is numbered when this is called. A wait would be numbered
    when it ends: beside others, that would be in a different order every time.
    """
    caller = current()
    with SetWorkflowID(f"{caller}__{name}"):
        handle = await DBOS.start_workflow_async(call, caller, request)
    return outside().run(asyncio.create_task, handle.get_result(polling_interval_sec=LOOKING_SECONDS))


async def cancel_earlier(run: RunRecord) -> None:
    """Let DBOS forget workflows of attempts that were given up, and of their calls, so that no restart revives them."""
    base = run.workflow_id
    assert base is not None
    names = [base, *(f"{base}__a{attempt}" for attempt in range(2, run.attempt))]
    await DBOS.cancel_workflows_async(names, cancel_children=True)


class Left(NamedTuple):
    """A workflow that DBOS considers running, and the run that it was started for."""

    name: str
    run_id: RunId


async def begun_before(prefix: str, retention_ms: int, offset: int) -> list[Left]:
    """Some of the turns that were started this long ago and that DBOS considers running, oldest first."""
    before = datetime.fromtimestamp(time.time() - retention_ms / 1000, UTC)
    found = await DBOS.list_workflows_async(
        name=_TURN_NAMES,
        workflow_id_prefix=f"{prefix}__",
        status=["PENDING"],
        end_time=before.isoformat(),
        has_parent=False,
        offset=offset,
        limit=FORGOTTEN_AT_ONCE,
        load_output=False,
    )
    return [Left(each.workflow_id, each.input["args"][2]) for each in found if each.input is not None]


async def forget(names: list[str]) -> None:
    """Let DBOS forget turns, each with its calls."""
    await DBOS.delete_workflows_async(names, delete_children=True)


async def forget_ended(prefix: str, retention_ms: int) -> int:
    """Let DBOS forget some turns that ended this long ago, each with its calls; returns how many, 0 when none are left.

    A call that ended is kept as long as its turn is running, because a replayed turn asks for it again.
    """
    before = datetime.fromtimestamp(time.time() - retention_ms / 1000, UTC)
    ended = await DBOS.list_workflows_async(
        name=_TURN_NAMES,
        workflow_id_prefix=f"{prefix}__",
        status=["SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"],
        completed_before=before.isoformat(),
        has_parent=False,
        limit=FORGOTTEN_AT_ONCE,
        load_input=False,
        load_output=False,
    )
    if ended:
        await forget([each.workflow_id for each in ended])
    return len(ended)


async def find(run: RunRecord) -> WorkflowStatus | None:
    """What DBOS knows about the workflow of a run; None if it knows none."""
    return await DBOS.get_workflow_status_async(workflow_of(run))


async def inspect(run: RunRecord, status: WorkflowStatus | None, is_gone: Callable[[str], Awaitable[bool]]) -> Liveness:
    """What that means for a run that waits for its first driver; `is_gone` says whether a process is known to be
    gone."""
    if status is None:
        return "missing"
    if status.input is None or status.input["args"][2:] != (run.run_id, run.attempt):
        return "dead"
    if status.status in ("ENQUEUED", "DELAYED"):
        return "alive" if status.app_version in (None, DBOS.application_version) else "dead"
    taken = status.dequeued_at or status.updated_at or 0
    # A process that takes a run claims it at once; an unclaimed one was taken by a process that died.
    if status.status != "PENDING" or time.time() * 1000 - taken >= CLAIM_MS:
        return "dead"
    return "dead" if status.executor_id is not None and await is_gone(status.executor_id) else "alive"


def companions_of(queue: str) -> str:
    """The queue beside this one for companions, from which a process takes any number: the run that waits for a
    companion may hold the last place that the other queue gives."""
    return f"{queue}__companions"


async def register_queue(name: str, *, poll_seconds: float, at_once: int | None, works: bool) -> None:
    """Register a queue, with how many of its runs one process drives at once. All its processes share that setting, so
    a process that drives none leaves it as it is."""
    conflict = "update_if_latest_version" if works else "never_update"
    await DBOS.register_queue_async(
        name, polling_interval_sec=poll_seconds, worker_concurrency=at_once, on_conflict=conflict
    )


async def step(name: str, body: Callable[[], Coroutine[Any, Any, Plain]]) -> Plain:
    """Run one effect as a step of the current workflow."""
    return await DBOS.run_step_async({"name": name}, body)


async def ask(question: Coroutine[Any, Any, T]) -> T:
    """Ask DBOS something that the current workflow does not record."""
    return await outside().run(asyncio.create_task, question)


def outside() -> Context:
    """A context outside any workflow, for starting an independent one."""
    return Context()
