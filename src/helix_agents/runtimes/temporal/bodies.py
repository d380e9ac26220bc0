"""Effects that this process does for workflows: on its executor's loop, each once even if requested twice."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from helix_agents.domain.runs import Fence
from helix_agents.engine.anywhere import Effects
from helix_agents.engine.live_runs import LiveRuns
from helix_agents.engine.plain import EffectName, Plain


class Bodies:
    """The effects that are running here.

    Temporal hands an effect out again if it has not heard of it for a while. If that reaches this process itself, the
    second request waits for the first effect, which has been running all the time. The effect is cancelled when nothing
    waits for it any more.
    """

    def __init__(self, runs: LiveRuns, *, max_running: int | None, max_parallel_tools: int | None) -> None:
        self._effects = Effects(runs.services, runs)
        self._room: dict[str, AbstractAsyncContextManager[Any]] = {
            "ask_model": asyncio.Semaphore(max_running) if max_running is not None else nullcontext(),
            "run_calls": asyncio.Semaphore(max_parallel_tools) if max_parallel_tools is not None else nullcontext(),
        }
        self._going: dict[tuple[str, int, str, str], _Going] = {}
        self._is_closed = False

    async def perform(self, effect: EffectName, work: Plain) -> Plain:
        """Do an effect of a workflow, or wait for it; a request that comes after the end is cancelled."""
        if self._is_closed:
            raise asyncio.CancelledError
        key = (work["run_id"], work["attempt"], work["name"], str(work["request"].get("gave_up")))
        while (going := self._going.get(key)) is not None and going.is_given_up:
            # It has not come to rest yet, and has no result for a request that comes now.
            await asyncio.wait((going.task,))
        if going is None:
            going = self._going[key] = _Going(lambda: self._perform(effect, work))
            going.task.add_done_callback(lambda _: self._going.pop(key, None))
        return await going.wait()

    async def let_go(self) -> None:
        """Cancel what is still running, and start nothing more."""
        self._is_closed = True
        late = [going.task for going in self._going.values()]
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    async def _perform(self, effect: EffectName, work: Plain) -> Plain:
        fence = Fence(run_id=work["run_id"], attempt=work["attempt"])
        async with self._room_for(effect, work["request"]):
            return await self._effects.perform(effect, work["session_id"], fence, work["request"], work.get("within"))

    def _room_for(self, effect: EffectName, request: Plain) -> AbstractAsyncContextManager[Any]:
        """A call that hands work to others takes no place: those may be waiting for one."""
        is_for_others = effect == "run_calls" and request["calls"][0]["kind"] in ("child", "remote", "companion")
        return nullcontext() if is_for_others else self._room.get(effect, nullcontext())


class _Going:
    def __init__(self, work: Callable[[], Awaitable[Plain]]) -> None:
        self.task = asyncio.ensure_future(work())
        self.is_given_up = False
        self._waiting = 0

    async def wait(self) -> Plain:
        self._waiting += 1
        try:
            return await asyncio.shield(self.task)
        finally:
            self._waiting -= 1
            if not self._waiting and not self.task.done():
                self.is_given_up = True
                self.task.cancel()
