"""A process that takes up a conversation whose rewind left a child behind, and is killed before its first commit."""

from typing import Any

from helix_agents.agent.agent import Agent
from helix_agents.agent.client_tools import client_tool
from helix_agents.ports.backend import open_backend
from helix_agents.ports.llm import ModelRequest
from helix_agents.testing import ScriptedModel, call
from helix_agents.testing.recording import EffectKind, Recorder, RecordingExecutor, Side, StopAt
from helix_agents.testing.workers import Job
from tests.recovery.conversation_jobs import die
from tests.recovery.deaths import settings_on

MODULE = __name__

SESSION = "s-1"


@client_tool
def locate(city: str) -> str:
    """Where the client is."""
    raise NotImplementedError


def _answer(request: ModelRequest) -> Any:
    asked = getattr(request.messages[-1], "content", None) == "Go."
    return call("subagent__helper", {"message": "Help"}) if asked else "Well then."


HELPER = Agent(
    name="helper", description="Helps.", model=ScriptedModel([call("locate", {"city": "Rome"})]), tools=[locate]
)
WRITER = Agent(name="writer", model=ScriptedModel(_answer), tools=[HELPER.as_tool()])


async def go_on_and_die(job: Job, url: str, kind: EffectKind, side: Side) -> None:
    """Say something, and die at an effect of the run that answers it."""
    async with await open_backend(url) as parts:
        recorder = Recorder(StopAt(kind=kind, effect=1, side=side), on_stop=die)
        async with RecordingExecutor(recorder=recorder, **settings_on(parts, WRITER)) as dying:
            await (await dying.execute(WRITER, "Never mind.", SESSION)).result()
