"""A stream that is a network away: what is said before its writer is there may turn out to be too large for it."""

import asyncio
from typing import Any

from helix_agents import Agent, Completed, tool
from helix_agents.backends.in_memory import InMemoryStateStore, InMemoryStreamManager, InMemoryUsageStore, Memory
from helix_agents.domain.chunks import SubagentEnd, ToolEnd
from helix_agents.domain.messages import ToolMessage
from helix_agents.ports.streams import StreamWriter
from helix_agents.runtimes.in_process import Executor
from helix_agents.testing import ScriptedModel, call, reply

SESSION = "s-1"
LONG = "x" * 999_900


class FarAway(InMemoryStreamManager):
    def shares_transactions_with(self, store: object) -> bool:
        return False

    async def create_writer(self, *given: Any, **named: Any) -> StreamWriter:
        await asyncio.sleep(0.2)
        return await super().create_writer(*given, **named)


@tool
async def read() -> str:
    """Read a long text."""
    return LONG


async def test_a_result_too_large_for_a_chunk_is_in_the_transcript_also_before_the_writer_is_there() -> None:
    reader = Agent(name="reader", description="Reads.", model=ScriptedModel([LONG]))
    calls = [call("read", {}), call("subagent__reader", {"message": "Read"})]
    boss = Agent(name="boss", model=ScriptedModel([reply(calls=calls), "Done."]), tools=[read, reader.as_tool()])
    memory = Memory()
    streams = FarAway(memory)
    parts: dict[str, Any] = {"state": InMemoryStateStore(memory), "usage": InMemoryUsageStore(memory)}
    async with Executor(streams=streams, **parts, janitor_seconds=None) as helix:
        assert isinstance(await (await helix.execute(boss, "Go.", SESSION)).result(), Completed)
        rows = await parts["state"].load_transcript(SESSION)
        assert [row.message.content for row in rows if isinstance(row.message, ToolMessage)] == [LONG] * 2
        said = await streams.get_all_chunks(SESSION)
        assert [chunk.result for chunk in said if isinstance(chunk, ToolEnd | SubagentEnd)] == [None]
