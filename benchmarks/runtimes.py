"""What a step costs on each runtime, compared with what its engine costs by itself.

Run: uv run python benchmarks/runtimes.py [--quick]

One step is a model call, a tool and a commit. Beside it runs a bare DBOS workflow with as many steps as our loop asks
for effects, each of which does nothing: the ratio says what the agent costs on top of its engine. Our DBOS runtime does
not record the commit of a whole step, because the store remembers it, so the ratio to a bare workflow without that step
is given as well.
"""

import argparse
import asyncio
import json
import logging
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from dbos import DBOS

import helix_agents
from helix_agents import Agent, AnyAgent, DBOSAgentExecutor, Executor, ScriptedModel, tool
from helix_agents.testing import call
from helix_agents.testing.temporal_service import TemporalService

EFFECTS_PER_STEP = 3
RECORDED_PER_STEP = 2
AIMS = (
    ("in_process.ms_per_step", "in process, ms per step", ""),
    ("dbos.ms_per_step", "on DBOS, ms per step", ""),
    ("dbos.raw_ms_per_step", "a bare DBOS workflow, a step for each effect", ""),
    ("dbos.ratio", "DBOS over the bare workflow", "<= 1.3"),
    ("dbos.ratio_of_recorded", "the same, for effects that DBOS records only", ""),
    ("temporal.step_ms", "on Temporal, ms per step", ""),
    ("temporal.raw_step_ms", "a bare Temporal workflow of as many activities", ""),
    ("temporal.ratio", "Temporal over the bare workflow", "<= 1.2"),
    ("temporal.history_bytes_per_step", "bytes of history per step", ""),
    ("in_process.lines", "lines of the in-process runtime", ""),
    ("dbos.lines", "lines of the DBOS runtime", "a few hundred"),
    ("temporal.lines", "lines of the Temporal runtime", "a few hundred"),
    ("shared.lines", "lines of the executor they share", ""),
)

Run = Callable[[int], Awaitable[float]]


@tool
async def look_up(topic: str) -> str:
    """Look something up."""
    return f"a page about {topic}"


def agent(steps: int) -> AnyAgent:
    """An agent that calls its tool in every step but the last."""
    script = [call("look_up", {"topic": f"t{number}"}) for number in range(steps - 1)]
    return Agent(name="stepper", model=ScriptedModel([*script, "Done."]), tools=[look_up], max_steps=steps + 1)


def executed(helix: Any) -> Run:
    """A function that runs a session of a number of steps and returns the seconds it took."""

    async def run(steps: int) -> float:
        stepper = agent(steps)
        begun = time.perf_counter()
        await (await helix.execute(stepper, "Go", uuid4().hex)).output()
        return time.perf_counter() - begun

    return run


async def _nothing() -> dict[str, str]:
    return {"is": "ack", "next": "continue"}


@DBOS.workflow(name="bare")
async def _bare(effects: int) -> None:
    for number in range(effects):
        await DBOS.run_step_async({"name": f"effect:{number}"}, _nothing)


def bare(per_step: int) -> Run:
    """A function that runs this many empty DBOS steps for each of ours, and one for the beginning."""

    async def run(steps: int) -> float:
        begun = time.perf_counter()
        await (await DBOS.start_workflow_async(_bare, 1 + per_step * steps)).get_result()
        return time.perf_counter() - begun

    return run


@asynccontextmanager
async def runtimes(folder: Path) -> AsyncGenerator[dict[str, Run]]:
    """Each runtime on its own SQLite file, with settings that survive a power cut."""
    async with (
        Executor.open(f"sqlite:///{folder}/in_process.db", janitor_seconds=None) as here,
        DBOSAgentExecutor.open(f"sqlite:///{folder}/dbos.db", janitor_seconds=None) as there,
    ):
        yield {
            "in_process": executed(here),
            "dbos": executed(there),
            "raw": bare(EFFECTS_PER_STEP),
            "recorded": bare(RECORDED_PER_STEP),
        }


async def measure(rounds: int, steps: int) -> dict[str, float]:
    """Milliseconds per step; the runtimes alternate, so that a busy machine is busy for all of them."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        async with runtimes(Path(folder)) as all_of_them:
            for run in all_of_them.values():
                await run(2)
            for _ in range(rounds):
                for name, run in all_of_them.items():
                    found.setdefault(name, []).append(await run(steps) / steps * 1000)
    medians = {name: statistics.median(times) for name, times in found.items()}

    def ratio_to(raw: str) -> float:
        return statistics.median(ours / theirs for ours, theirs in zip(found["dbos"], found[raw], strict=True))

    return {
        "in_process.ms_per_step": medians["in_process"],
        "dbos.ms_per_step": medians["dbos"],
        "dbos.raw_ms_per_step": medians["raw"],
        "dbos.ratio": ratio_to("raw"),
        "dbos.ratio_of_recorded": ratio_to("recorded"),
    }


def lines_of(folder: str) -> int:
    """Lines of a part of the package."""
    root = Path(helix_agents.__file__).parent / "runtimes" / folder
    return sum(len(path.read_text().splitlines()) for path in root.glob("*.py"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    logging.disable(logging.CRITICAL)
    figures: dict[str, float] = asyncio.run(measure(3 if quick else 9, 20 if quick else 50))
    figures |= {"in_process.lines": lines_of("in_process"), "dbos.lines": lines_of("dbos")}
    figures |= {"shared.lines": lines_of("executor"), "temporal.lines": lines_of("temporal")}
    # Imported here, because the workflow that it measures beside ours needs its own module.
    import temporal_runtime

    with TemporalService() as service:
        figures |= asyncio.run(temporal_runtime.measure(service.address, rounds=3 if quick else 15, steps=10))
    for name, told, aim in AIMS:
        print(f"{told:<48} {figures[name]:>10.2f}  {aim}")
    nested: dict[str, dict[str, float]] = {}
    for name, value in figures.items():
        runtime, _, figure = name.partition(".")
        nested.setdefault(runtime, {})[figure] = round(value, 3)
    print(json.dumps(nested))


if __name__ == "__main__":
    main()
