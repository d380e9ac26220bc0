"""A run that dies in a later round of a step: what earlier rounds said stays, what the last one said is told once."""

from collections import Counter
from typing import Any

import pytest
from pydantic import BaseModel

from helix_agents.agent.agent import Agent
from helix_agents.agent.companions import PersistentAgent
from helix_agents.agent.context import ToolContext
from helix_agents.agent.tools import tool
from helix_agents.domain.chunks import StatePatch, TextDelta, ToolEnd
from helix_agents.domain.errors import ExecutorClosedError
from helix_agents.domain.rendering import surviving
from helix_agents.ports.backend import Backend, open_backend
from helix_agents.runtimes.in_process import Executor
from helix_agents.testing import ScriptedModel, call, reply
from helix_agents.testing.recording import Recorder, RecordingExecutor, StopAt

SESSION = "s-1"


class Diary(BaseModel):
    done: list[str] = []


@tool
def look_up(ctx: ToolContext[Diary, Any], topic: str) -> str:
    """Look something up."""
    ctx.state.done.append(topic)
    return f"a page about {topic}"


@tool(finish_with=True)
def hand_in(ctx: ToolContext[Diary, Any], text: str) -> str:
    """Hand the work in."""
    ctx.state.done.append(text)
    return text


HELPER = Agent(name="helper", description="Helps.", model=ScriptedModel(["Helped."]))
BOSS = Agent(
    name="boss",
    model=ScriptedModel(
        [
            reply(
                "I look around. ",
                calls=[
                    call("look_up", {"topic": "tides"}, id="look"),
                    call("companion__listChildren", {}, id="list"),
                    call("hand_in", {"text": "Done."}, id="hand_in"),
                ],
            )
        ]
    ),
    state=Diary,
    tools=[look_up, hand_in],
    persistent_agents=[PersistentAgent(HELPER, mode="blocking")],
)


def executor(parts: Backend, recorder: Recorder) -> Executor:
    named: dict[str, Any] = {"state": parts.state, "streams": parts.streams, "usage": parts.usage}
    return RecordingExecutor(recorder=recorder, agents=[BOSS], janitor_seconds=None, **named)


@pytest.mark.parametrize("batch", [1, 2, 3])
async def test_what_a_dead_attempt_said_of_a_round_is_not_told_twice(batch: int):
    async with await open_backend(f"memory://rounds-{batch}") as parts:
        async with executor(parts, Recorder(StopAt(kind="run_batch", effect=batch, side="after"))) as first:
            run = await first.execute(BOSS, "Go.", SESSION)
            with pytest.raises(ExecutorClosedError):
                await run.result()
        # The process had time to store what its last round said.
        told = [chunk for chunk in await parts.streams.get_all_chunks(SESSION) if isinstance(chunk, ToolEnd)]
        assert len(told) == batch
        async with executor(parts, Recorder()) as second:
            await second.recover()
            again = await second.get_handle(BOSS, SESSION)
            assert again is not None
            assert await again.output() == "Done."
        chunks = surviving(await parts.streams.get_all_chunks(SESSION))
        ends = Counter(chunk.tool_call_id for chunk in chunks if isinstance(chunk, ToolEnd))
        assert ends == {"look": 1, "list": 1, "hand_in": 1}
        assert sum(isinstance(chunk, StatePatch) for chunk in chunks) == 2
        assert "".join(chunk.delta for chunk in chunks if isinstance(chunk, TextDelta)) == "I look around. "
        assert (await parts.state.load_state(SESSION)).custom_state == {"done": ["tides", "Done."]}
