"""A bare Temporal workflow with the activities of one-tool steps, all of them empty, as the floor for ours."""

from datetime import timedelta
from typing import Any

from temporalio import activity, workflow

LIMIT = timedelta(minutes=1)


@workflow.defn
class RawTurn:
    @workflow.run
    async def run(self, order: dict[str, Any]) -> int:
        await workflow.execute_local_activity("short", order, start_to_close_timeout=LIMIT)
        for step in range(order["steps"]):
            work = {**order, "step": step}
            for _ in ("ask_model", "run_calls"):
                await workflow.execute_activity("long", work, start_to_close_timeout=LIMIT, heartbeat_timeout=LIMIT)
            await workflow.execute_local_activity("short", work, start_to_close_timeout=LIMIT)
        return order["steps"]


@activity.defn(name="short")
async def short(work: dict[str, Any]) -> dict[str, Any]:
    return work


@activity.defn(name="long")
async def long(work: dict[str, Any]) -> dict[str, Any]:
    return work
