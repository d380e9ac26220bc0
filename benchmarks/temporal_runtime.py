"""What a step costs on Temporal: one-tool steps on SQLite, alternating with a bare workflow of as many activities.

Run: uv run python benchmarks/temporal_runtime.py [--quick]
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from itertools import count
from typing import Any

from raw_turn import RawTurn, long, short
from temporalio.client import Client
from temporalio.worker import Worker

from helix_agents.agent.agent import Agent
from helix_agents.agent.tools import tool
from helix_agents.llm.scripted import ScriptedModel, call, reply
from helix_agents.runtimes.temporal import TemporalAgentExecutor
from helix_agents.testing.temporal_service import TemporalService

QUEUE = "raw"
_sessions = count(1)


@tool
async def search(query: str) -> str:
    """Look something up."""
    return "a page"


def worker(steps: int) -> Agent[Any, str, Any]:
    """An agent of this many steps with a tool call each, and the answer."""
    calls = [call("search", {"query": "tides"}, id=f"call_{number}") for number in range(steps)]
    script = [*(reply("I look. ", calls=[each]) for each in calls), reply("Done.")]
    return Agent(name="worker", model=ScriptedModel(script), tools=[search], max_steps=steps + 1)


async def ours(helix: TemporalAgentExecutor, steps: int) -> tuple[float, str]:
    session_id = f"session-{next(_sessions)}"
    begin = time.perf_counter()
    assert await (await helix.execute(worker(steps), "go", session_id)).output() == "Done."
    return time.perf_counter() - begin, session_id


async def raw(client: Client, steps: int) -> float:
    begin = time.perf_counter()
    order = {"session_id": "session", "run_id": "run", "attempt": 1, "steps": steps}
    name = f"raw-{next(_sessions)}"
    await client.execute_workflow("RawTurn", order, id=name, task_queue=QUEUE, request_eager_start=True)
    return time.perf_counter() - begin


async def history_bytes(client: Client, workflow_id: str) -> int:
    events = client.get_workflow_handle(workflow_id).fetch_history_events()
    return sum([len(event.SerializeToString()) async for event in events])


async def measure(address: str, *, rounds: int, steps: int) -> dict[str, float]:
    """Medians over rounds in which both sides alternate; the cost of a step is what a longer run takes more, divided by
    its additional steps."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/helix.db"
        client = await Client.connect(address)
        bare = Worker(client, task_queue=QUEUE, workflows=[RawTurn], activities=[short, long])
        async with bare, TemporalAgentExecutor.open(url, address=address, janitor_seconds=None) as helix:
            await ours(helix, 1)
            await raw(client, 1)
            found: dict[str, list[float]] = {"ours": [], "raw": []}
            sessions: dict[int, str] = {}
            for _ in range(rounds):
                few, sessions[1] = await ours(helix, 1)
                many, sessions[steps + 1] = await ours(helix, steps + 1)
                found["ours"].append((many - few) / steps)
                found["raw"].append((await raw(client, steps + 1) - await raw(client, 1)) / steps)
            sizes = {each: await history_bytes(client, f"helix__worker__{name}") for each, name in sessions.items()}
    mine, theirs = (statistics.median(found[side]) for side in ("ours", "raw"))
    return {
        "temporal.step_ms": round(mine * 1000, 1),
        "temporal.raw_step_ms": round(theirs * 1000, 1),
        "temporal.ratio": round(mine / theirs, 2),
        "temporal.history_bytes_per_step": round((sizes[steps + 1] - sizes[1]) / steps),
    }


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--quick", action="store_true")
    quick = asked.parse_args().quick
    with TemporalService() as service:
        figures = asyncio.run(measure(service.address, rounds=5 if quick else 15, steps=10))
    for name, value in figures.items():
        print(f"{name:<34}{value:>10,}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
