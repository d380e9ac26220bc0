"""A process that is asked to end leaves in good order: steps commit, leases go, and it ends by the signal."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from helix_agents import Agent, Completed, Executor, ScriptedModel, tool
from helix_agents.testing import call, reply

PROGRAM = """
import asyncio, sys
from helix_agents import Executor
sys.path.insert(0, sys.argv[2])
from test_sigterm import worker

async def main():
    async with Executor.open(sys.argv[1], agents=[worker], grace=10.0, lease_ms=600_000) as helix:
        await (await helix.execute(worker, "go", "s-1")).result()

asyncio.run(main())
"""


@tool
async def linger() -> str:
    """Take as long as somebody wants."""
    print("begun", flush=True)
    while not Path("may-end").exists():  # noqa: ASYNC110  # another process says so
        await asyncio.sleep(0.01)
    return "done"


worker = Agent(
    name="worker",
    model=ScriptedModel([reply(calls=[call("linger", {})]), *["more"] * 3]),
    tools=[linger],
    max_steps=5,
)


@pytest.mark.timeout(60)
async def test_sigterm_lets_the_step_commit_and_another_process_goes_on_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'helix.db'}"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, url, str(Path(__file__).parent)), cwd=tmp_path, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await asyncio.wait_for(process.stdout.readline(), 30) == b"begun\n"
    process.send_signal(signal.SIGTERM)
    # Only now: however slow either process is, the signal finds the step unfinished.
    await asyncio.to_thread((tmp_path / "may-end").touch)
    assert await asyncio.wait_for(process.wait(), 30) == -signal.SIGTERM

    # Here the tool would never end: the step was committed there.
    async with Executor.open(url, agents=[worker], janitor_seconds=None) as helix:
        [run_id] = (await helix.recover()).run_ids
        handle = await helix.get_handle(worker, "s-1")
        assert handle is not None
        result = await asyncio.wait_for(handle.result(), 20)
    assert isinstance(result, Completed)
    assert (handle.run_id, result.output) == (run_id, "more")
