"""A worker process of the demo: starts a run, takes one over, or resumes it. Killing it is safe."""

import asyncio
import sys
from functools import partial
from pathlib import Path

SESSION_ID = "demo"
LEASE_MS = 1_500
"""How long a dead process counts as alive; short here, so that the demo does not have to wait."""


async def work(task: str, url: str, folder: str, model: str) -> None:
    """Do one task and leave when the run ends or waits for an answer."""
    from helix_agents.cli.commands.demo.desk import TASK, build_agents, open_shop, scripted_model
    from helix_agents.engine.services import EngineOptions
    from helix_agents.runtimes.in_process import Executor

    agents = build_agents(model or scripted_model())
    editor = agents[0]
    async with Executor.open(
        url,
        agents=agents,
        deps=partial(open_shop, Path(folder)),
        options=EngineOptions(effect_lease_ms=LEASE_MS),
        lease_ms=LEASE_MS,
        janitor_seconds=None,
    ) as helix:
        if task == "begin":
            handle = await helix.execute(editor, TASK, SESSION_ID)
        elif task == "resume":
            handle = await helix.resume(editor, SESSION_ID)
        else:
            while True:
                # The run is free once the dead process' lease has run out.
                if (await helix.recover()).run_ids:
                    break
                await asyncio.sleep(0.05)
            handle = await helix.get_handle(editor, SESSION_ID)
        if handle is not None:
            await handle.result()


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:]))
