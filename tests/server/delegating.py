"""What the tests of remote sub-agents look at: the parent here, and the child at its service."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2

from helix_agents import AnyAgent, Completed, PendingCall, RunResult, Suspended
from helix_agents.domain.chunks import StreamChunk, SubagentEnd, SubagentStart, TextDelta
from helix_agents.domain.messages import ToolMessage
from helix_agents.engine.remote.stops import id_there
from helix_agents.runtimes.executor.core import ExecutorCore
from tests.server.live import ANN, PATIENCE, LiveServer, bearer


async def eventually(what: Callable[[], Awaitable[Any]], within: float = PATIENCE) -> Any:
    """Look until something holds; bounded."""
    async with asyncio.timeout(within):
        while not (found := await what()):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return found


async def ask(live: LiveServer, method: str, path: str, **content: Any) -> Any:
    """A request to the child's service, as whoever delegates makes it."""
    async with httpx2.AsyncClient(base_url=live.url, headers=bearer(ANN), timeout=PATIENCE) as client:
        answer = await client.request(method, path, **content)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None


async def status_at(live: LiveServer, session: str) -> Any:
    """How the child stands at its service, by its id here."""
    return await ask(live, "GET", f"/status?sessionId={id_there(session)}")


async def finish(helix: ExecutorCore, agent: AnyAgent, order: str, session: str = "s") -> RunResult[Any]:
    return await (await helix.execute(agent, order, session)).result()


async def results_of(helix: ExecutorCore, session: str = "s") -> list[ToolMessage]:
    """The results of the session's calls, newest first."""
    page = await helix.sessions.messages(session)
    return [each.message for each in page.items if isinstance(each.message, ToolMessage)]


async def delegated(helix: ExecutorCore, session: str = "s") -> ToolMessage:
    """The result of the session's last delegated call."""
    return (await results_of(helix, session))[0]


async def child_of(helix: ExecutorCore, session: str = "s") -> str:
    page = await helix._services.store.get_sub_session_refs(session)
    return page[-1].sub_session_id


def only(result: RunResult[Any]) -> PendingCall:
    assert isinstance(result, Suspended), result
    (waiting,) = result.pending
    return waiting


async def watched_search(
    helix: ExecutorCore, agent: AnyAgent, **settings: Any
) -> tuple[SubagentStart, list[StreamChunk], SubagentEnd]:
    """Let the child search, and see its work between its start and its end, and its result as the call's result."""
    run = await helix.execute(agent, "remote search", "s", **settings)
    chunks = [chunk async for chunk in run.stream()]
    result = await run.result()
    assert isinstance(result, Completed)
    assert result.output == "I was told: I was told: ['page 1 about tides', 'page 2 about tides'].."
    (start,) = [chunk for chunk in chunks if isinstance(chunk, SubagentStart)]
    (end,) = [chunk for chunk in chunks if isinstance(chunk, SubagentEnd)]
    between = chunks[chunks.index(start) + 1 : chunks.index(end)]
    said = "".join(each.delta for each in between if isinstance(each, TextDelta))
    assert (end.status, said.count("'page 2 about tides'].")) == ("completed", 1)
    return start, between, end
