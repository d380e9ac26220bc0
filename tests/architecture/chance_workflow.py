"""A workflow whose module leaves something to chance when it is imported: a sandbox has to refuse it."""

import random

from temporalio import workflow

CHANCE = random.random()


@workflow.defn
class Gamble:
    @workflow.run
    async def run(self) -> float:
        return CHANCE
