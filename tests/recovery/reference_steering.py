"""A turn to which two messages are sent while it works: whoever continues it sends them again."""

import asyncio
from typing import Any

from helix_agents import Agent, Completed, ScriptedModel, UserMessage, tool
from helix_agents.domain.messages import AssistantMessage
from helix_agents.ports.backend import Backend
from helix_agents.ports.llm import ModelRequest
from helix_agents.runtimes.in_process import Executor
from helix_agents.testing import call
from helix_agents.testing.contracts.executor.stage import assert_legal
from tests.recovery.reference_conversation import Traces

SESSION = "steered"
MESSAGES = ("Tea", "Milk")

_sent: list[asyncio.Event] = []


@tool
async def work() -> str:
    """Work until both messages are sent."""
    await _sent[-1].wait()
    return "worked"


def _answer(request: ModelRequest) -> Any:
    said: list[str] = []
    for message in reversed(request.messages):
        if not isinstance(message, UserMessage):
            break
        said.append(str(message.content))
    if "Begin" in said:
        return call("work")
    return "Heard " + ", ".join(reversed(said)) if said else "Done."


AGENT = Agent(name="clerk", model=ScriptedModel(_answer), tools=[work])
AGENTS = [AGENT]


async def go_on(helix: Executor) -> None:
    """Take the conversation from wherever it stands to its end, knowing nothing but what is stored."""
    _sent.append(asyncio.Event())
    await helix.recover()
    handle = await helix.get_handle(AGENT, SESSION) or await helix.execute(AGENT, "Begin", SESSION)
    steering = [
        await helix.execute(AGENT, text, SESSION, idempotency_key=text, if_running="steer") for text in MESSAGES
    ]
    _sent[-1].set()
    for each in (handle, *steering):
        assert isinstance(await each.result(), Completed)


async def check_end(backend: Backend, traces: Traces) -> set[str]:
    """Every message is there once, in order, and was heard; nothing waits."""
    transcript = [stored.message for stored in await backend.state.load_transcript(SESSION)]
    assert_legal(transcript)
    said = [str(each.content) for each in transcript if isinstance(each, UserMessage)]
    assert said == ["Begin", *MESSAGES]
    replies = " ".join(each.text for each in transcript if isinstance(each, AssistantMessage))
    assert [replies.count(text) for text in MESSAGES] == [1, 1]
    assert await backend.state.list_queues() == ()
    runs = (await backend.state.list_runs(SESSION)).items
    assert {run.status for run in runs} == {"completed"}
    for text in MESSAGES:
        message = next(each for each in transcript if isinstance(each, UserMessage) and each.content == text)
        assert message.id == text
    return set()
