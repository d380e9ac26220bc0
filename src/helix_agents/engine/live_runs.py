"""A run taken in hand for one effect or for many: its scope, and what lives as long as the scope does."""

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import Any

from helix_agents.agent.hooks import SomeHooks
from helix_agents.domain.errors import HelixError, SupersededError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.runs import Fence
from helix_agents.engine.effects import Position
from helix_agents.engine.log import log_exception
from helix_agents.engine.opening import go_on, open_scope
from helix_agents.engine.scope import RunScope
from helix_agents.engine.services import OpenDeps, Services
from helix_agents.engine.stop import watching
from helix_agents.engine.store_desk import StoreDesk
from helix_agents.ports.llm import LLMAdapter


class LiveRun:
    """One attempt of a run in this process: the scope with its stream writer, the stop that is watched, the deps.

    A task of its own holds all of that, so that whatever opened is closed where it was opened, whoever asks for it.
    """

    def __init__(
        self,
        services: Services,
        session_id: SessionId,
        fence: Fence,
        *,
        open_deps: OpenDeps | None = None,
        hooks: SomeHooks = None,
        model: LLMAdapter | None = None,
        alone: bool,
    ) -> None:
        self._services = services
        self._session_id = session_id
        self._fence = fence
        self._open_deps = open_deps
        self._hooks = hooks
        self._model = model
        self._alone = alone
        self._released = asyncio.Event()
        self._holder: asyncio.Task[None] | None = None

    async def open(self, *, beginning: bool, join: bool) -> RunScope | Position:
        """Take the run in hand; one that is not at its `beginning` goes on with what earlier effects left.

        Raises:
            SupersededError: another driver has the run or its stream.
        """
        opened: asyncio.Future[RunScope | Position] = asyncio.get_running_loop().create_future()
        self._holder = asyncio.create_task(self._hold(opened, beginning=beginning, join=join))
        return await opened

    async def close(self) -> None:
        """Store what was said and let go of everything; idempotent."""
        self._released.set()
        if self._holder is not None:
            await asyncio.wait((self._holder,))

    async def _hold(self, opened: "asyncio.Future[RunScope | Position]", *, beginning: bool, join: bool) -> None:
        try:
            async with watching(self._services.store, self._session_id) as stop, await self._deps() as deps:
                scope = await open_scope(
                    self._services,
                    self._session_id,
                    self._fence,
                    desk=StoreDesk(self._services.store, self._session_id, self._fence, alone=self._alone),
                    stop=stop,
                    deps=deps,
                    hooks=self._hooks,
                    model=self._model,
                    join=join,
                )
                if isinstance(scope, RunScope):
                    scope.is_shared = not self._alone
                    if not beginning:
                        await go_on(scope, joined=join)
                if not opened.done():
                    opened.set_result(scope)
                if isinstance(scope, RunScope):
                    await self._released.wait()
                    with suppress(SupersededError):
                        await scope.writer.close()
        except BaseException as problem:
            if opened.done():
                if isinstance(problem, HelixError):
                    # What was not stored any more is said again by whoever goes on.
                    log_exception("run.release_failed", problem, session_id=self._session_id)
                    return
                raise
            opened.set_exception(problem)

    async def _deps(self) -> AbstractAsyncContextManager[Any]:
        if self._open_deps is None:
            return nullcontext()
        session = await self._services.store.load_state(self._session_id)
        return self._open_deps(self._session_id, session.user_id)
