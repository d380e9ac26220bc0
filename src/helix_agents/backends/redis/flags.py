"""Durable stop requests, each aimed at one run."""

import asyncio

from helix_agents.backends.redis.facet import Facet
from helix_agents.backends.redis.rows import load_session, save_session
from helix_agents.backends.redis.transaction import Transaction
from helix_agents.domain import door
from helix_agents.domain.flags import aimed_at_current_run, raised
from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.sessions import InterruptFlag, InterruptOutcome, InterruptSet, NothingRunning, StopKind

# A look is one statement, so a waiter may look twice a second.
LOOK_AGAIN_SECONDS = 0.5


class RedisFlags(Facet):
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

        async def work(tx: Transaction) -> InterruptOutcome:
            known = await load_session(tx, session_id)
            run = known.value.run
            if run is None or run.status != "running" or run_id not in (None, run.run_id):
                return NothingRunning()
            flag = raised(known.value.flag, run.run_id, kind, reason, tx.now)
            if flag is not None:
                known.value.flag = flag
                save_session(tx, known)
                tx.do("PUBLISH", None, self._channel(session_id), "")
            return InterruptSet(run_id=run.run_id)

        return await self._write("set_interrupt_flag", session_id, work)

    async def check_interrupt_flag(self, session_id: SessionId) -> InterruptFlag | None:
        async def work(tx: Transaction) -> InterruptFlag | None:
            known = await load_session(tx, session_id)
            flag = known.value.flag
            if flag is not None:
                known.value.flag = None
                save_session(tx, known)
            return aimed_at_current_run(known.value.record, flag)

        return await self._write("check_interrupt_flag", session_id, work)

    async def find_interrupt_flag(self, session_id: SessionId) -> InterruptFlag | None:
        async def work(tx: Transaction) -> InterruptFlag | None:
            session = (await load_session(tx, session_id)).value
            return aimed_at_current_run(session.record, session.flag)

        return await self._read("find_interrupt_flag", session_id, work)

    async def clear_interrupt_flag(self, session_id: SessionId) -> None:
        async def work(tx: Transaction) -> None:
            known = await load_session(tx, session_id)
            if known.value.flag is not None:
                known.value.flag = None
                save_session(tx, known)

        await self._write("clear_interrupt_flag", session_id, work)

    async def wait_for_interrupt(self, session_id: SessionId, timeout: float) -> InterruptFlag | None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        async with self._space.server.bell.listen(self._channel(session_id)) as waiter:
            while True:
                flag = await self.find_interrupt_flag(session_id)
                left = deadline - loop.time()
                if flag is not None or left <= 0:
                    return flag
                await waiter.wait(min(left, LOOK_AGAIN_SECONDS))

    def _channel(self, session_id: SessionId) -> str:
        return self._space.keys.channel(f"flag/{session_id}")
