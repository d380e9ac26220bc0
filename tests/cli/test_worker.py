"""`helix worker temporal`: runs that one process submits are driven by another, which leaves when it is told to."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from temporalio.client import Client

from helix_agents import Completed, TemporalAgentExecutor
from helix_agents.cli.app import run
from helix_agents.cli.exit_codes import ExitCode
from helix_agents.runtimes.temporal.service import knows_attributes
from helix_agents.testing.service_process import free_port
from helix_agents.testing.temporal_service import temporal_address as temporal_address
from helix_agents.testing.temporal_service import temporal_service as temporal_service
from tests.cli.sample_agents import counter


async def test_a_worker_drives_what_another_process_submits_and_leaves_on_sigterm(folder: Path, temporal_address: str):
    store, queue = f"sqlite:///{folder / 'helix.db'}", f"worker-{os.getpid()}"
    place = ["agents:registry", "--address", temporal_address, "--task-queue", queue, "--prefix", queue]
    command = ["-c", "from helix_agents.cli import main; main()", "worker", "temporal", *place]
    worker = await asyncio.create_subprocess_exec(
        sys.executable,
        *(*command, "--store", store, "--register"),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            assert worker.stdout is not None
            assert b"can be searched for" in await worker.stdout.readline()
            assert b"Working on queue" in await worker.stdout.readline()
            own = {"address": temporal_address, "task_queue": queue, "prefix": queue, "works": False}
            async with TemporalAgentExecutor.open(store, agents=[counter], **own) as helix:
                result = await (await helix.execute(counter, "Hello", "s-1")).result()
                assert isinstance(result, Completed)
            assert await knows_attributes(await Client.connect(temporal_address))
            worker.send_signal(signal.SIGTERM)
            assert await worker.wait() == -signal.SIGTERM
    finally:
        if worker.returncode is None:
            worker.kill()
            await worker.wait()


def test_a_server_that_is_not_there_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(folder)
    address = f"127.0.0.1:{free_port()}"
    assert (
        run(["worker", "temporal", "agents:several", "--address", address, "--store", f"sqlite:///{folder}/helix.db"])
        == ExitCode.FAILED
    )
    told = capsys.readouterr().err
    assert f"Temporal at {address} is not answering" in told
    assert "tonic" not in told
