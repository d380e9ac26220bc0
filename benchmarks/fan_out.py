"""What a sub-agent costs: one parent with 1 to 100 children side by side on SQLite, compared with the same agent alone.

Run: uv run python benchmarks/fan_out.py [--quick]
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from itertools import count
from typing import Any

from peers import DONE, PAGE, QUERY, TEXT

from helix_agents.agent.agent import Agent
from helix_agents.agent.tools import tool
from helix_agents.engine.services import EngineOptions
from helix_agents.llm.scripted import ScriptedModel, call, reply
from helix_agents.ports.backend import open_backend
from helix_agents.runtimes.in_process import Executor

WIDTHS = (1, 10, 100)

_sessions = count(1)


@tool
async def search(query: str) -> str:
    """Look something up."""
    return PAGE


def child() -> Agent[Any, str, Any]:
    """An agent of two steps: a tool call, and the answer."""
    script = [reply(TEXT, calls=[call("search", QUERY, id="call_0")]), reply(DONE)]
    return Agent(name="child", description="Looks things up.", model=ScriptedModel(script), tools=[search])


def parent(children: int) -> Agent[Any, str, Any]:
    """An agent that delegates to this many children at once, and is done when they are."""
    calls = [call("subagent__child", {"message": "go"}, id=f"call_{number}") for number in range(children)]
    script = [reply(TEXT, calls=calls), reply(DONE)]
    return Agent(name="parent", model=ScriptedModel(script), tools=[child().as_tool()])


async def timed(helix: Executor, agent: Agent[Any, str, Any]) -> float:
    """Seconds that a fresh session takes."""
    begin = time.perf_counter()
    handle = await helix.execute(agent, "go", f"session-{next(_sessions)}")
    assert await handle.output() == DONE
    return time.perf_counter() - begin


async def alone(helix: Executor, sessions: int) -> float:
    """Seconds per session when this many sessions of the child agent run at the same time, each on its own."""
    begin = time.perf_counter()
    await asyncio.gather(*(timed(helix, child()) for _ in range(sessions)))
    return (time.perf_counter() - begin) / sessions


async def measure(rounds: int) -> dict[str, float]:
    """All figures, measured in alternation, so that a disturbance affects all sides."""
    costs: dict[str, list[float]] = {}

    def note(name: str, seconds: float) -> float:
        costs.setdefault(name, []).append(seconds)
        return seconds

    with tempfile.TemporaryDirectory() as folder:
        options = EngineOptions(max_children_per_step=max(WIDTHS))
        async with (
            await open_backend(f"sqlite:///{folder}/helix.db") as backend,
            Executor(state=backend.state, streams=backend.streams, usage=backend.usage, options=options) as helix,
        ):
            await timed(helix, parent(max(WIDTHS)))
            for _ in range(rounds):
                per_child: dict[int, float] = {}
                per_session: dict[int, float] = {}
                for width in WIDTHS:
                    repeats = max(1, 20 // width)
                    per_session[width] = statistics.median([await alone(helix, width) for _ in range(repeats)])
                    whole = statistics.median([await timed(helix, parent(width)) for _ in range(repeats)])
                    # The parent takes two steps of its own, like one of the children alone.
                    per_child[width] = (whole - per_session[1]) / width
                    note(f"child_us_{width}", per_child[width] * 1e6)
                    note(f"alone_us_{width}", per_session[width] * 1e6)
                    note(f"ratio_alone_{width}", per_child[width] / per_session[width])
                note("flatness", per_child[100] / per_child[1])
    return {name: statistics.median(values) for name, values in costs.items()}


def main() -> None:
    """Measure, print a table, and the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less than a minute")
    rounds = 5 if parser.parse_args().quick else 15
    figures = {name: round(value, 3) for name, value in asyncio.run(measure(rounds)).items()}
    print("Children side by side on SQLite, two steps each, without their parent; alone = as sessions of their own")
    print(f"{'':24}{'as children':>14}{'alone':>12}{'ratio':>9}")
    for width in WIDTHS:
        ours, theirs = figures[f"child_us_{width}"], figures[f"alone_us_{width}"]
        print(f"{f'{width} at once, each':24}{ours:>11.0f} us{theirs:>9.0f} us{figures[f'ratio_alone_{width}']:>9.2f}")
    print(f"{'flatness, 100 over 1':24}{'':>14}{'':>12}{figures['flatness']:>9.2f}   aim 1.2")
    print(json.dumps({"sqlite": figures}))


if __name__ == "__main__":
    main()
