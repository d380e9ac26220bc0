"""Loaded once where workers are forked: the first look into the sandbox takes seconds, and they have it behind them."""

import asyncio

from temporalio import workflow

from helix_agents.runtimes.temporal.worker import sandbox
from helix_agents.runtimes.temporal.workflow import Turn


async def _look() -> None:
    sandbox().prepare_workflow(workflow._Definition.must_from_class(Turn))


asyncio.run(_look())
