"""The smallest agent: a model, a sentence of instructions, one answer. The conversation ends up in helix.db."""

import asyncio

from helix_agents import Agent, Executor, ScriptedModel

# No key needed. For a real model: model="anthropic:claude-sonnet-4-5", and pip install 'helix-agents[anthropic]'.
model = ScriptedModel(lambda request: "Hello! This conversation is stored, whatever happens to me.")
greeter = Agent(name="greeter", model=model, instructions="Greet people.")


async def main() -> None:
    async with Executor.open("sqlite:///helix.db", agents=[greeter]) as helix:
        run = await helix.execute(greeter, "Hi there")
        print(await run.output())


if __name__ == "__main__":
    asyncio.run(main())
