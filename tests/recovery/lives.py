"""A conversation held by processes that may die: each opens the same file, goes on, and ends well or not at all."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from helix_agents.agent.agent import AnyAgent
from helix_agents.domain.errors import HelixError
from helix_agents.ports.backend import Backend, open_backend
from helix_agents.runtimes.in_process import Executor
from helix_agents.testing.clock import ManualClock
from helix_agents.testing.recording import Recorder, RecordingExecutor, StopAt
from helix_agents.testing.seams import DyingSeam
from tests.recovery.reference_conversation import Traces, dependencies


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Who takes part, how it goes on from wherever it stands, and what must hold in the end."""

    agents: Sequence[AnyAgent]
    go_on: Callable[[Executor], Awaitable[None]]
    check_end: Callable[[Backend, Traces], Awaitable[set[str]]]


class Life:
    """One process as far as the store can tell."""

    def __init__(self, folder: Path, clock: ManualClock, conversation: Conversation) -> None:
        self._url = f"sqlite:///{folder / 'helix.db'}?synchronous=normal"
        self._clock = clock
        self._conversation = conversation
        self.traces = Traces(folder / "traces")

    async def live(self, stop_at: StopAt | None = None) -> Recorder:
        """Hold the conversation to its end, or up to the cut; nothing is written after that."""
        seam, died = DyingSeam(), asyncio.Event()

        def die() -> None:
            seam.arm(after=1)
            died.set()

        recorder = Recorder(stop_at, on_stop=die)
        backend = await open_backend(self._url, seam=seam, clock=self._clock)
        parts = {"state": backend.state, "streams": backend.streams, "usage": backend.usage}
        agents = self._conversation.agents
        settings = {"agents": agents, "deps": dependencies(self.traces), "janitor_seconds": None, "grace": 0.0}
        helix = RecordingExecutor(recorder=recorder, **parts, **settings)
        await helix.__aenter__()
        going = asyncio.ensure_future(self._conversation.go_on(helix))
        dying = asyncio.ensure_future(died.wait())
        try:
            async with asyncio.timeout(20):
                await asyncio.wait((going, dying), return_when=asyncio.FIRST_COMPLETED)
            if not died.is_set():
                await going
        finally:
            for task in (going, dying):
                task.cancel()
            with suppress(HelixError):
                await helix.close()
            await asyncio.gather(going, dying, return_exceptions=True)
            await backend.close()
        return recorder

    async def check(self) -> set[str]:
        """What must hold now that the conversation is over."""
        async with await open_backend(self._url, clock=self._clock) as backend:
            return await self._conversation.check_end(backend, self.traces)
