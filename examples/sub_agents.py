"""An agent that delegates: its researchers work in parallel, each in its own session, all in one stream."""

import asyncio

from pydantic import BaseModel

from helix_agents import Agent, Executor, RoutingScriptedModel
from helix_agents.domain.chunks import SubagentEnd, SubagentStart
from helix_agents.testing import call, finish, reply


class Finding(BaseModel):
    fact: str
    sure: bool = True


class Question(BaseModel):
    subject: str


# One script per agent, so that parent and children never take each other's lines.
model = RoutingScriptedModel(
    {
        "editor": [
            reply(calls=[call("subagent__researcher", {"subject": subject}) for subject in ("tides", "moon")]),
            "Tides follow the moon.",
        ],
        "researcher": [finish({"fact": "it pulls"})],
    }
)
researcher = Agent(name="researcher", description="Finds one fact.", model=model, output=Finding)
editor = Agent(name="editor", model=model, tools=[researcher.as_tool(input=Question, timeout=60)])


async def main() -> None:
    async with Executor.open("sqlite:///helix.db", agents=[editor]) as helix:
        run = await helix.execute(editor, "What about tides?")
        async for chunk in run.stream():
            if isinstance(chunk, SubagentStart):
                print(f"{chunk.child_agent_type} starts")
            elif isinstance(chunk, SubagentEnd):
                print(f"{chunk.child_agent_type} {chunk.status}: {chunk.result}")
        print(await run.output())
        usage = await run.usage()
        print(f"{usage.sessions} sessions, {usage.tokens.total} tokens")


if __name__ == "__main__":
    asyncio.run(main())
