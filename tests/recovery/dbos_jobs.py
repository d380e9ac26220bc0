"""What the processes of the DBOS crash tests do: hold the reference conversation, and die or freeze on the way."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.hooks import Hooks
from helix_agents.agent.tools import tool
from helix_agents.engine import plain
from helix_agents.engine.effects import Ops
from helix_agents.ports.backend import Backend, open_backend
from helix_agents.runtimes.in_process import Executor
from helix_agents.testing import ScriptedModel, call
from helix_agents.testing.contracts.executor.stage import until
from helix_agents.testing.recording import EffectKind, Recorder, StopAt
from helix_agents.testing.workers import Job
from tests.recovery.conversation_jobs import LaterClock, conversation_of, die, freeze, webhooks_at
from tests.recovery.lives import Conversation
from tests.recovery.reference_conversation import AGENT, AGENTS, QUESTIONS, SESSION, Traces, dependencies

MODULE = __name__


@asynccontextmanager
async def opened(
    folder: str,
    recorder: Recorder,
    *,
    life: int,
    traces: Traces,
    executor_id: str | None,
    version: int = 1,
    agents: Sequence[AnyAgent] = AGENTS,
    hook: str | None = None,
) -> AsyncGenerator[Any]:
    """An executor on DBOS whose loop is watched, in a program whose loop has this version."""
    plain.EFFECT_SEQUENCE = version
    # Only now: the version is part of what DBOS is told when the runtime is loaded.
    executor = import_module("helix_agents.runtimes.dbos.executor")

    class Watched(executor.DBOSAgentExecutor):
        def _wrap(self, ops: Ops) -> Ops:
            return recorder.wrap(ops)

    async with await open_backend(f"sqlite:///{folder}/helix.db?synchronous=normal", clock=LaterClock(life)) as backend:
        helix = Watched(
            state=backend.state,
            streams=backend.streams,
            usage=backend.usage,
            system_database_url=f"sqlite:///{folder}/dbos.db",
            executor_id=executor_id,
            agents=agents,
            deps=dependencies(traces),
            webhooks=webhooks_at(hook),
            janitor_seconds=None,
        )
        async with helix:
            yield helix


async def converse(
    job: Job,
    folder: str,
    life: int,
    effect: int | None = None,
    kind: EffectKind | None = None,
    deed: int | None = None,
    side: Literal["before", "after"] = "before",
    executor_id: str | None = None,
    version: int = 1,
    parks: bool = False,
    late: Literal["run", "call"] | None = None,
    story: str = "tests.recovery.reference_conversation",
    hook: str | None = None,
) -> Any:
    """Go on with a conversation, or die before or after an effect, one of a kind, or a deed; one that `parks` leaves
    where it first waits for somebody. Workflows of runs, or of their calls, may come `late`. A `hook` is told of all
    ends. Answers how many effects and deeds there were to die at."""
    if late is not None:
        come_late(late)
    told = conversation_of(story)
    deeds = 0

    def reached(number: int, at: Literal["before", "after"]) -> None:
        nonlocal deeds
        deeds = max(deeds, number)
        if (number, at) == (deed, side):
            die()

    recorder = Recorder(StopAt(effect=effect, side=side, kind=kind) if effect is not None else None, on_stop=die)
    traces = Traces(Path(folder) / "traces", reached=reached)
    own: dict[str, Any] = {"life": life, "executor_id": executor_id, "version": version, "hook": hook}
    async with opened(folder, recorder, traces=traces, agents=told.agents, **own) as helix:
        if parks:
            await (await helix.execute(AGENT, QUESTIONS[0], SESSION)).result()
        else:
            await told.go_on(helix)
            await helix.sweep() if hook is not None else None
    return {"effects": len(recorder.kinds), "deeds": deeds}


async def take(job: Job, folder: str, life: int) -> Any:
    """Take a run from the queue: the first life dies of it before it claims the run, the next one finds it."""
    executor = import_module("helix_agents.runtimes.dbos.executor")
    agent = Agent(name="quick", model=ScriptedModel(["Quick."]))
    async with await open_backend(f"sqlite:///{folder}/helix.db?synchronous=normal", clock=LaterClock(life)) as backend:
        helix = executor.DBOSAgentExecutor(
            state=backend.state,
            streams=backend.streams,
            usage=backend.usage,
            system_database_url=f"sqlite:///{folder}/dbos.db",
            placement="shared",
            poll_seconds=0.02,
            agents=[agent],
            janitor_seconds=None,
        )
        async with helix:
            if life == 0:
                vars(backend.state)["claim_run"] = lambda *_, **__: die()
                await (await helix.execute(agent, "Hi", SESSION)).result()
            recovered = await helix.recover()
            handle = await helix.get_handle(agent, SESSION)
            return [len(recovered.run_ids), await handle.output() if recovered.run_ids else None]


async def move(job: Job, folder: str, life: int) -> Any:
    """The first life dies in a tool. In the second one the run has moved and goes on without DBOS, when a process comes
    back under the name by which DBOS knew the first."""
    dbos = import_module("helix_agents.runtimes.dbos.executor")
    runtime = import_module("helix_agents.runtimes.dbos.runtime").DBOSRuntime
    reached, opened, looked = asyncio.Event(), asyncio.Event(), asyncio.Event()
    take = runtime._take

    @tool
    async def work() -> str:
        """Work."""
        if life == 0:
            die()
        reached.set()
        await opened.wait()
        return "worked"

    async def noticed(*about: Any) -> Any:
        try:
            return await take(*about)
        finally:
            looked.set()

    runtime._take = noticed
    agent = Agent(name="worker", model=ScriptedModel([call("work"), "Done."]), tools=[work])
    async with await open_backend(f"sqlite:///{folder}/helix.db?synchronous=normal", clock=LaterClock(life)) as backend:
        own: dict[str, Any] = {"agents": [agent], "janitor_seconds": None}
        own |= {"state": backend.state, "streams": backend.streams, "usage": backend.usage}
        of_dbos = {"system_database_url": f"sqlite:///{folder}/dbos.db", "executor_id": "worker-1"}
        if life == 0:
            async with dbos.DBOSAgentExecutor(**own, **of_dbos) as helix:
                await (await helix.execute(agent, "Hi", SESSION)).result()
        async with Executor(**own) as without:
            handle = await without.resume(agent, SESSION)
            await reached.wait()
            async with dbos.DBOSAgentExecutor(**own, **of_dbos):
                await looked.wait()
                opened.set()
                output = await handle.output()
        run = await backend.state.get_current_run(SESSION)
        assert run is not None
        return [output, run.attempt]


async def share(job: Job, folder: str) -> Any:
    """Leave the DBOS that an executor launched to one with another store, which has a run wait for its only place."""
    executor = import_module("helix_agents.runtimes.dbos.executor")
    reached, opened = asyncio.Event(), asyncio.Event()

    @tool
    async def work() -> str:
        """Work."""
        reached.set()
        await opened.wait()
        return "worked"

    worker = Agent(name="worker", model=ScriptedModel([call("work"), "Done."]), tools=[work])
    quick = Agent(name="quick", model=ScriptedModel(["Quick."]))

    @asynccontextmanager
    async def using(backend: Backend, prefix: str, **settings: Any) -> AsyncGenerator[Any]:
        of_store = {"state": backend.state, "streams": backend.streams, "usage": backend.usage}
        of_dbos = {"system_database_url": f"sqlite:///{folder}/dbos.db", "placement": "shared", "poll_seconds": 0.02}
        agents = [worker, quick]
        async with executor.DBOSAgentExecutor(**of_store, **of_dbos, prefix=prefix, agents=agents, **settings) as helix:
            yield helix

    taker: str | None = None

    async def is_taken() -> bool:
        nonlocal taker
        status = await import_module("dbos").DBOS.get_workflow_status_async("second__quick__s-2")
        taker = status.executor_id if status is not None and status.status == "PENDING" else None
        return taker is not None

    url = f"sqlite:///{folder}/helix.db?synchronous=normal"
    async with await open_backend(url, namespace="first") as one, await open_backend(url, namespace="second") as other:
        async with AsyncExitStack() as second:
            async with using(one, "first"):
                helix = await second.enter_async_context(using(other, "second", max_running=1, janitor_seconds=None))
            busy = await helix.execute(worker, "Hi", SESSION, hooks=Hooks())
            await reached.wait()
            waiting = await helix.execute(quick, "Hi", "s-2")
            await until(is_taken)
            assert taker is not None
            seen = await other.state.find_lease(taker) is not None
            recovered = await helix.recover()
            opened.set()
            answers = [await busy.output(), await waiting.output()]
        left = await other.state.find_lease(taker) is not None
    return {"seen": seen, "recovered": len(recovered.run_ids), "answers": answers, "left": left}


def come_late(which: Literal["run", "call"]) -> None:
    """Have workflows of one kind begin a while after those of the other."""
    module, name, part = ("runtime", "DBOSRuntime", "run") if which == "run" else ("driven", "Driven", "make")
    whole = getattr(import_module(f"helix_agents.runtimes.dbos.{module}"), name)
    on_time = getattr(whole, part)

    async def late(*arguments: Any) -> Any:
        await asyncio.sleep(0.5)
        return await on_time(*arguments)

    setattr(whole, part, late)


async def meet(
    job: Job,
    folder: str,
    role: Literal["first", "second"],
    effect: int,
    story: str = "tests.recovery.reference_conversation",
) -> None:
    """Two processes under one executor id: the first stands still before an effect, the second starts meanwhile."""
    if role == "first":
        await _stand_still(Path(folder), effect, conversation_of(story))
    else:
        await _overlap(Path(folder), conversation_of(story))


async def _stand_still(folder: Path, effect: int, told: Conversation) -> None:
    """Begin the conversation, do nothing until the other one says so, and then go on as if nothing had happened."""

    def stand_still() -> None:
        (folder / "frozen").write_text(str(os.getpid()))
        freeze()

    recorder = Recorder(StopAt(effect=effect, side="before"), on_stop=stand_still, goes_on=True)
    traces = Traces(folder / "traces")
    own = {"life": 0, "executor_id": "twin", "agents": told.agents}
    async with opened(str(folder), recorder, traces=traces, **own) as helix:
        await (await helix.execute(told.agents[0], QUESTIONS[0], SESSION)).result()
    (folder / "left").touch()


async def _overlap(folder: Path, told: Conversation) -> None:
    """Start while the other one lives: DBOS hands its workflow over. Then end the conversation."""
    frozen = await _frozen(folder)
    traces = Traces(folder / "traces")
    own = {"life": 0, "executor_id": "twin", "agents": told.agents}
    async with opened(str(folder), Recorder(), traces=traces, **own) as helix:
        handle = await helix.get_handle(told.agents[0], SESSION)
        assert handle is not None
        await handle.result()
        os.kill(frozen, signal.SIGCONT)
        while not (folder / "left").exists():  # noqa: ASYNC110  # another process says so
            await asyncio.sleep(0.01)
        await told.go_on(helix)


async def _frozen(folder: Path) -> int:
    """The process that stands still, once it does."""
    while True:
        with suppress(FileNotFoundError, ValueError):
            pid = int((folder / "frozen").read_text())
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
                return pid
        await asyncio.sleep(0.01)
