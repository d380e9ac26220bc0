"""What tools need from the process, open as long as a run of it is in hand."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from helix_agents.agent.failures import contained
from helix_agents.domain.ids import SessionId
from helix_agents.engine.services import OpenDeps
from helix_agents.ports.state_store import SessionStateStore


@asynccontextmanager
async def opened_deps(
    store: SessionStateStore, open_deps: OpenDeps | None, session_id: SessionId
) -> AsyncGenerator[Any]:
    """Open the deps of a session's run; None where there are none.

    Raises:
        Exception: what opening them raised.
    """
    if open_deps is None:
        yield None
        return
    session = await store.load_state(session_id)
    async with AsyncExitStack() as stack:
        with contained("Opening the deps"):
            deps = await stack.enter_async_context(open_deps(session_id, session.user_id))
        yield deps
