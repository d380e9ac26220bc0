"""A workflow whose module brings in the loop, for Temporal's sandbox to judge."""

from temporalio import workflow

from helix_agents.engine.turn import run_turn


@workflow.defn
class Turn:
    @workflow.run
    async def run(self) -> str:
        return run_turn.__name__
