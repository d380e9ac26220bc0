"""What tools need from the process, open as long as a run of it is in hand."""

from collections.abc import AsyncGenerator, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, cast

from helix_agents.agent.failures import Contained
from helix_agents.domain.errors import HelixError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.texts import said_by
from helix_agents.engine.services import OpenDeps
from helix_agents.ports.state_store import SessionStateStore


@asynccontextmanager
async def opened_deps(
    store: SessionStateStore, open_deps: OpenDeps | None, session_id: SessionId
) -> AsyncGenerator[Any]:
    """Open the deps of a session's run; None where there are none.

    Raises:
        RuntimeError: they could not be opened; says why.
    """
    if open_deps is None:
        yield None
        return
    session = await store.load_state(session_id)
    async with AsyncExitStack() as stack:
        with Contained("Opening the deps"):
            try:
                deps = await stack.enter_async_context(_manager(open_deps(session_id, session.user_id)))
            except HelixError:
                raise
            except Exception as problem:
                reason = f"{type(problem).__name__}: {said_by(problem)}"
                raise RuntimeError(f"The deps could not be opened: {reason}") from problem
        yield deps


def _manager(given: object) -> AbstractAsyncContextManager[Any]:
    if isinstance(given, AbstractAsyncContextManager):
        return cast("AbstractAsyncContextManager[Any]", given)
    kind = type(given).__name__
    if isinstance(given, Coroutine):
        cast("Coroutine[Any, Any, Any]", given).close()
    raise TypeError(f"the function gave {kind} and no async context manager; decorate it with @asynccontextmanager")
