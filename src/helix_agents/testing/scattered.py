"""An executor whose effects share nothing: each opens its run anew and releases it, as distant processes would.

This is what a durable engine with many workers does, without the engine. Whatever an effect forgets to leave in the
store is missing in the next one.
"""

import asyncio
from contextlib import nullcontext
from typing import Any

from helix_agents.agent.hooks import SomeHooks
from helix_agents.domain.ids import ToolCallId
from helix_agents.domain.records import decode_json, encode
from helix_agents.domain.runs import RunRecord
from helix_agents.engine.anywhere import Effects
from helix_agents.engine.effects import RunEnd
from helix_agents.engine.inline import drive_child
from helix_agents.engine.live_runs import LiveRuns, OfOneCall
from helix_agents.engine.plain import EffectName, Plain, PlainOps, run_plain_turn
from helix_agents.engine.scope import RunScope
from helix_agents.engine.steps.stop_watch import StopSignal
from helix_agents.engine.steps.taking import Begun
from helix_agents.engine.store_desk import StoreDesk
from helix_agents.ports.llm import LLMAdapter
from helix_agents.runtimes.executor.core import ExecutorCore
from helix_agents.runtimes.executor.leases import LeaseKeeper
from helix_agents.runtimes.in_process.drivers import Drivers
from helix_agents.system import RandomIds


class _ScatteredDrivers(Drivers):
    """Drives the loop here, and each of its effects as if in a process of its own."""

    def __init__(self, lease: LeaseKeeper, *, keep_seconds: float, **settings: Any) -> None:
        super().__init__(lease, **settings)
        self._keep_seconds = keep_seconds

    async def drive_child(self, parent: RunScope, run: RunRecord, tool_call_id: ToolCallId, stop: StopSignal) -> RunEnd:
        desk = StoreDesk(self.services.store, run.session_id, run.fence, alone=True)
        limit = self._max_parallel_tools
        return await drive_child(parent, run, tool_call_id, stop, desk=desk, max_parallel=limit, wrap=self._wrap)

    async def _drive(self, run: RunRecord, hooks: SomeHooks, model: LLMAdapter | None, begun: Begun | None) -> RunEnd:
        runs = LiveRuns(services=self.services, alone=False, open_deps=self._open_deps, keep_seconds=self._keep_seconds)
        runs.of_calls[run.run_id] = OfOneCall(hooks=hooks, model=model)
        effects = Effects(self.services, runs)
        room = nullcontext() if self._max_parallel_tools is None else asyncio.Semaphore(self._max_parallel_tools)

        async def perform(effect: EffectName, _: str, request: Plain) -> Plain:
            sent = decode_json(encode(request))
            async with room if effect == "run_calls" else nullcontext():
                return decode_json(encode(await effects.perform(effect, run.session_id, run.fence, sent)))

        ops = PlainOps(perform, should_yield=lambda: self.leaving)
        try:
            return await run_plain_turn(self._wrap(ops))
        finally:
            await runs.release_all()


class ScatteredExecutor(ExecutorCore):
    """Settings are those of `Executor`; a run that is not needed for `keep_seconds` is released."""

    def __init__(
        self, *, state: Any, lease_ms: int = 15_000, deps: Any = None, keep_seconds: float = 0.0, **settings: Any
    ) -> None:
        own = {name: settings.pop(name, None) for name in ("max_running", "max_parallel_tools")}
        lease = LeaseKeeper(state, RandomIds().new("process"), lease_ms)
        drivers = _ScatteredDrivers(lease, open_deps=deps, wrap=self._wrap, keep_seconds=keep_seconds, **own)
        super().__init__(drivers, state=state, **settings)
