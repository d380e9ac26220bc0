"""Skills in the folder beside this file: the model sees a list of them and reads the one that it needs."""

import asyncio

from helix_agents import Agent, Executor, ScriptedModel, SkillFolder
from helix_agents.domain.chunks import Custom
from helix_agents.testing import call

script = ScriptedModel(
    [
        call("load_skill", {"name": "refunds"}),
        call("read_skill_file", {"skill": "refunds", "path": "references/limits.md", "start_line": 3}),
        "I am sorry. For 700 I have to ask the owner.",
    ]
    * 100  # so that `helix chat examples/skills/app.py` can continue for a while
)
clerk = Agent(
    name="clerk",
    model=script,
    instructions="Help customers.",
    skills=SkillFolder("skills"),
    preload_skills=["house-style"],  # part of every request, without loading it
)


async def main() -> None:
    async with Executor.open("sqlite:///helix.db", agents=[clerk]) as helix:
        run = await helix.execute(clerk, "I want my 700 back")
        async for chunk in run.stream():
            if isinstance(chunk, Custom):
                print(chunk.name, chunk.data)
        print(await run.output())
    print(script.requests[0].instructions.partition("<available_skills>")[2])


if __name__ == "__main__":
    asyncio.run(main())
