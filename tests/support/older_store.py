"""What a store holds that an earlier version of the library left in the middle of things.

    python -m tests.support.older_store helix.db

leaves such a file, and dies in the middle of a run. Files that earlier versions left are kept in `fixtures/stores`, by
the version of their schema, and never made again. This module runs with the code of those versions, too.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from helix_agents import Agent, Executor, ScriptedModel, Suspended, ToolContext, client_tool, tool
from helix_agents.domain.messages import ToolMessage, UserMessage
from helix_agents.ports.llm import ModelRequest
from helix_agents.testing import call, reply

FOLDER = Path(__file__).parents[1] / "fixtures" / "stores"
SUSPENDED = ("approve", "ask", "delegate", "wait")
QUEUED = ("One", "Two")

_is_stuck = asyncio.Event()


class Diary(BaseModel):
    done: list[str] = []


@tool
async def note(ctx: ToolContext[Diary, Any], what: str) -> str:
    """Write something down; on the first attempt, whoever writes down the end does not come back from it."""
    if what == "end" and ctx.attempt == 1:
        _is_stuck.set()
        await asyncio.Event().wait()
    ctx.state.done.append(what)
    return f"noted {what}"


@tool(require_approval=True)
async def publish(ctx: ToolContext[Diary, Any], title: str) -> str:
    """Publish something."""
    ctx.state.done.append(title)
    return f"published {title}"


@client_tool
async def locate() -> str:
    """Where the user is."""
    raise NotImplementedError


def _answer(request: ModelRequest) -> Any:
    asked, results = "", 0
    for message in reversed(request.messages):
        if isinstance(message, UserMessage) and not message.hidden:
            asked = str(message.content)
            break
        results += isinstance(message, ToolMessage)
    plans = {
        "approve": [[call("note", {"what": "draft"}), call("publish", {"title": "Tides"})]],
        "ask": [[call("locate")]],
        "delegate": [[call("subagent__writer", {"message": "approve"}), call("subagent__writer", {"message": "Hi"})]],
        "wait": [[call("publish", {"title": "Moon"})]],
        "die": [[call("note", {"what": "begin"})], [call("note", {"what": "middle"}), call("note", {"what": "end"})]],
    }
    made = 0
    for calls in plans.get(asked, []):
        if results == made:
            return reply("I see. ", calls=calls)
        made += len(calls)
    return f"{asked}: done"


def agents() -> tuple[Agent[Any, Any, Any], Agent[Any, Any, Any]]:
    """The agent of every session, and the one that it delegates to."""
    model = ScriptedModel(_answer)
    writer = Agent(name="writer", description="Writes.", model=model, tools=[note, publish], state=Diary)
    boss = Agent(name="boss", model=model, tools=[note, publish, locate, writer.as_tool()], state=Diary)
    return boss, writer


async def leave(url: str) -> None:
    """Leave sessions that wait, that were rewound and branched, with queues; and die in the middle of a step."""
    boss, writer = agents()
    helix = await Executor.open(url, agents=[boss, writer], janitor_seconds=None)
    for name in SUSPENDED:
        ended = await (await helix.execute(boss, name, name, user_id="ann", tags=["old"])).result()
        assert isinstance(ended, Suspended), ended
    for name in ("told", "lost"):
        for text in ("First", "Second", "Third"):
            await (await helix.execute(boss, text, name)).output()
    (_, second, first) = (await helix.sessions.checkpoints("told")).items
    await helix.sessions.branch("told", "branch", checkpoint_id=second.checkpoint_id)
    await helix.rewind("told", first.checkpoint_id)
    await helix.sessions.branch("lost", "orphan")
    await helix.sessions.delete("lost")
    await helix.execute(boss, "die", "die")
    for name in ("wait", "die"):
        for text in QUEUED:
            await helix.execute(boss, text, name, idempotency_key=text, if_running="enqueue")
    await _is_stuck.wait()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(leave(f"sqlite:///{sys.argv[1]}"))
