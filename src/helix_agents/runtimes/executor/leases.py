"""Signs of life of a process, sent from their own thread: a tool that blocks the event loop must not look dead."""

import asyncio
import threading
from typing import Literal, TypeAlias, get_args

from helix_agents.agent.choices import check_whole
from helix_agents.domain.errors import HelixError
from helix_agents.domain.runs import RunRecord
from helix_agents.engine.log import log_exception
from helix_agents.engine.services import Liveness
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.runtimes.executor.workflow_names import prefix_of
from helix_agents.system import RandomIds

Engine: TypeAlias = Literal["dbos", "temporal"]
ENGINES: tuple[Engine, ...] = get_args(Engine)
"""Durable engines, which look after runs that carry no process's lease."""


def new_owner() -> str:
    """A new, unique name for the lease of an executor."""
    return RandomIds().new("process")


def lease_of_engine(engine: Engine, prefix: str) -> str:
    """The name of the lease shared by all processes whose durable engine looks after workflows with this prefix."""
    return f"{engine}:{prefix}"


def lease_of_workers(engine: Engine, queue: str) -> str:
    """The name of the lease shared by all processes that take runs of this store from a queue."""
    return f"workers:{engine}:{queue}"


async def inspect_elsewhere(store: SessionStateStore, run: RunRecord) -> Liveness:
    """Whether a run of another runtime that carries no process's lease has an engine that looks after it, that is,
    whether a process of that engine was here lately. An engine that comes back later finds its attempt of the run
    superseded."""
    session = await store.find_session(run.session_id)
    prefix = prefix_of(run, session.agent_type) if session is not None else None
    if prefix is None:
        return "alive"
    leases = [await store.find_lease(lease_of_engine(engine, prefix)) for engine in ENGINES]
    return "alive" if any(leases) else "dead"


async def is_anothers(store: SessionStateStore, engine: Engine, prefix: str) -> bool:
    """Whether a workflow unknown to this engine may be known to another one that works under the same prefix."""
    others = (lease_of_engine(each, prefix) for each in ENGINES if each != engine)
    return any([await store.find_lease(name) for name in others])


class LeaseKeeper:
    """Renews one lease for all runs of an executor, three times per lease period, and further leases on request. A
    failed renewal is tried again sooner.

    Raises:
        DefinitionError: `lease_ms` is no whole number above 0.
    """

    def __init__(self, store: SessionStateStore, owner: str, lease_ms: int) -> None:
        check_whole("Executor", "lease_ms", lease_ms, 1)
        self.owner = owner
        self._names = [owner]
        self._store = store
        self._lease_ms = lease_ms
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._thread: threading.Thread | None = None

    def keep_too(self, name: str) -> None:
        """Keep one more lease from the start on. Others may keep it as well, so it expires by itself unless it is given
        up."""
        self._names.append(name)

    async def start(self) -> None:
        """Take the lease and keep it."""
        for name in self._names:
            await self._store.renew_lease(name, self._lease_ms)
        self._thread = threading.Thread(target=self._run, name=f"helix-lease {self.owner}", daemon=True)
        self._thread.start()
        await asyncio.to_thread(self._ready.wait)

    async def stop(self) -> None:
        """Give the lease up: other processes may take over what this one still drives at once, or, if the store is
        away, when the lease has expired."""
        if self._thread is None:
            return
        thread, self._thread = self._thread, None
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        await asyncio.to_thread(thread.join)
        await self.give_up(self.owner)

    async def give_up(self, name: str) -> None:
        """End a lease that is no longer renewed."""
        try:
            await self._store.release_lease(name)
        except HelixError as problem:
            # A process that leaves has more to close.
            log_exception("lease.release_failed", problem, owner=name)

    def _run(self) -> None:
        asyncio.run(self._keep())

    async def _keep(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._ready.set()
        wait = third = self._lease_ms / 3000
        while True:
            try:
                async with asyncio.timeout(wait):
                    await self._stop.wait()
                return
            except TimeoutError:
                renewed = await asyncio.gather(*map(self._renew, self._names))
            # A store that is away may have taken a third of the lease to fail, and may be back now.
            wait = third if all(renewed) else third / 5

    async def _renew(self, name: str) -> bool:
        try:
            await self._store.renew_lease(name, self._lease_ms)
        except Exception as problem:
            # Catch everything: without this thread, every run of this process would be taken from it.
            log_exception("lease.renewal_failed", problem, owner=name)
            return False
        return True
