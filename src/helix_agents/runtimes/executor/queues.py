"""Warns about runs in a queue that no worker serves: with a typo in a name, they would wait silently."""

import logging
import time

from helix_agents.domain.runs import RunRecord
from helix_agents.engine.log import log_event
from helix_agents.ports.state_store import SessionStateStore
from helix_agents.runtimes.executor.leases import Engine, lease_of_workers

PATIENCE_MS = 10_000
"""How long a run may wait before its queue is checked for workers."""

AGAIN_SECONDS = 60.0
"""How often the same warning is repeated."""

LOOK_SECONDS = 10.0


class UnattendedQueues:
    """The queues of an engine, as seen in one store: a worker on another store takes nothing for this one."""

    def __init__(self, engine: Engine) -> None:
        self._engine: Engine = engine
        self._looked_at: dict[str, float] = {}
        self._told_at: dict[str, float] = {}

    async def look(self, store: SessionStateStore, run: RunRecord, queue: str) -> None:
        """Warn if a run waits in a queue without workers. Of many runs, one is checked once in a while."""
        now = time.monotonic()
        if (
            store.now_ms() - run.started_at < PATIENCE_MS
            or now - self._looked_at.get(queue, -LOOK_SECONDS) < LOOK_SECONDS
        ):
            return
        self._looked_at[queue] = now
        if await store.find_lease(lease_of_workers(self._engine, queue)) is not None:
            self._told_at.pop(queue, None)
        elif now - self._told_at.get(queue, -AGAIN_SECONDS) >= AGAIN_SECONDS:
            self._told_at[queue] = now
            cure = "start a worker that has this queue and this store, or correct the name"
            log_event(
                f"{self._engine}.nobody_works",
                logging.WARNING,
                queue=queue,
                session_id=run.session_id,
                run_id=run.run_id,
                cure=cure,
            )
