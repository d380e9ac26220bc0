"""A workflow whose module brings in the loop, for Temporal's sandbox to judge."""

from temporalio import workflow

from helix_agents.engine.plain import run_plain_turn
from helix_agents.engine.turn import run_turn


@workflow.defn
class Turn:
    @workflow.run
    async def run(self) -> str:
        return f"{run_turn.__name__} {run_plain_turn.__name__}"
