"""Durable stop requests, each aimed at one run."""

import asyncio

from helix_agents.backends.in_memory.handle import Handle
from helix_agents.backends.in_memory.rows import current_run, session_row
from helix_agents.backends.in_memory.tables import Tables
from helix_agents.domain import door
from helix_agents.domain.flags import aimed_at_current_run, raised
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.sessions import InterruptFlag, InterruptOutcome, InterruptSet, NothingRunning, StopKind


def _find(tables: Tables, session_id: SessionId) -> InterruptFlag | None:
    row = session_row(tables, session_id)
    return aimed_at_current_run(row.record, tables.flags.get(session_id))


def flag_topic(namespace: str, session_id: SessionId) -> str:
    """The topic that rings when a session's flag was set or the session is gone."""
    return f"flag/{namespace}/{session_id}"


class InMemoryFlags(Handle):
    """The facet `Flags`."""

    async def set_interrupt_flag(
        self,
        session_id: SessionId,
        reason: str | None = None,
        *,
        kind: StopKind = "interrupt",
        run_id: RunId | None = None,
    ) -> InterruptOutcome:
        door.check_stop(reason, kind)
        async with self._writing("set_interrupt_flag") as tx:
            run = current_run(tx.tables, session_id)
            if run is None or run.status != "running" or run_id not in (None, run.run_id):
                return NothingRunning()
            flag = raised(tx.tables.flags.get(session_id), run.run_id, kind, reason, tx.now)
            if flag is not None:
                tx.put(tx.tables.flags, session_id, flag)
            tx.afterwards(lambda: self.memory.wakeups.ring((flag_topic(self.namespace, session_id),)))
        return InterruptSet(run_id=run.run_id)

    async def check_interrupt_flag(self, session_id: SessionId) -> InterruptFlag | None:
        async with self._writing("check_interrupt_flag") as tx:
            flag = _find(tx.tables, session_id)
            tx.remove(tx.tables.flags, session_id)
        return flag

    async def find_interrupt_flag(self, session_id: SessionId) -> InterruptFlag | None:
        with self._reading() as tables:
            return _find(tables, session_id)

    async def clear_interrupt_flag(self, session_id: SessionId) -> None:
        async with self._writing("clear_interrupt_flag") as tx:
            session_row(tx.tables, session_id)
            tx.remove(tx.tables.flags, session_id)

    async def wait_for_interrupt(self, session_id: SessionId, timeout: float) -> InterruptFlag | None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        with self.memory.wakeups.listen(flag_topic(self.namespace, session_id)) as waiter:
            while True:
                flag = await self.find_interrupt_flag(session_id)
                left = deadline - loop.time()
                if flag is not None or left <= 0:
                    return flag
                await waiter.wait(left)
