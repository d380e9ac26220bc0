"""What tools need from the process, kept open while this process holds a run."""

from collections.abc import AsyncGenerator, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

from helix_agents.agent.failures import Contained, ControlFlow
from helix_agents.domain.errors import HelixError
from helix_agents.domain.ids import SessionId
from helix_agents.domain.texts import said_by
from helix_agents.engine.log import log_exception
from helix_agents.engine.services import OpenDeps
from helix_agents.ports.state_store import SessionStateStore


@asynccontextmanager
async def opened_deps(
    store: SessionStateStore, open_deps: OpenDeps | None, session_id: SessionId
) -> AsyncGenerator[Any]:
    """Open the deps of a session's run; None if the executor has none.

    An error while closing them is only logged: by then the run's work is stored, or left for another process to
    continue.

    Raises:
        RuntimeError: they could not be opened; says why.
    """
    if open_deps is None:
        yield None
        return
    session = await store.load_state(session_id)
    with Contained("Opening the deps"):
        try:
            manager = _manager(open_deps(session_id, session.user_id))
            deps = await manager.__aenter__()
        except HelixError:
            raise
        except Exception as problem:
            reason = f"{type(problem).__name__}: {said_by(problem)}"
            raise RuntimeError(f"The deps could not be opened: {reason}") from problem
    left: BaseException | None = None
    try:
        yield deps
    except BaseException as problem:
        left = problem
        raise
    finally:
        await _close(manager, left, session_id)


async def _close(manager: AbstractAsyncContextManager[Any], left: BaseException | None, session_id: SessionId) -> None:
    """Close the deps, passing on the exception that left the block, if any. They cannot suppress or replace it."""
    try:
        with Contained("Closing the deps"):
            await manager.__aexit__(None if left is None else type(left), left, left.__traceback__ if left else None)
    except (Exception, ControlFlow) as problem:
        if problem is not left:
            log_exception("deps.close_failed", problem, session_id=session_id)


def _manager(given: object) -> AbstractAsyncContextManager[Any]:
    if isinstance(given, AbstractAsyncContextManager):
        return cast("AbstractAsyncContextManager[Any]", given)
    kind = type(given).__name__
    if isinstance(given, Coroutine):
        cast("Coroutine[Any, Any, Any]", given).close()
    raise TypeError(
        f"the function returned {kind}, not an async context manager; decorate it with @asynccontextmanager"
    )
