"""Runs that are put where nobody takes them from: that is told, to whoever submits and to whoever works elsewhere."""

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from helix_agents import Agent, DBOSAgentExecutor, ScriptedModel, TemporalAgentExecutor, tool
from helix_agents.cli.app import run as command
from helix_agents.runtimes.executor import queues
from helix_agents.testing import call
from helix_agents.testing.temporal_service import temporal_address as temporal_address
from helix_agents.testing.temporal_service import temporal_service as temporal_service

guide = Agent(name="guide", model=ScriptedModel(["At six."]))


@pytest.fixture(autouse=True)
def nobody_is_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "PATIENCE_MS", 0)
    monkeypatch.setattr(queues, "LOOK_SECONDS", 0.0)


def told(caplog: pytest.LogCaptureFixture, engine: str) -> list[str]:
    events = [record for record in caplog.records if getattr(record, "event", "") == f"{engine}.nobody_works"]
    assert all(record.levelno == logging.WARNING for record in events)
    return [vars(record)["helix_queue"] for record in events]


async def until_told(caplog: pytest.LogCaptureFixture, engine: str, queue: str, times: int = 1) -> None:
    async with asyncio.timeout(30):
        while told(caplog, engine).count(queue) < times:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_task_queue_that_nobody_polls_is_told_and_told_once(
    tmp_path: Path, temporal_address: str, caplog: pytest.LogCaptureFixture
):
    store, queue = f"sqlite:///{tmp_path}/helix.db", f"unattended-{os.getpid()}"
    own: dict[str, Any] = {"agents": [guide], "address": temporal_address, "prefix": queue, "janitor_seconds": 0.1}
    async with (
        TemporalAgentExecutor.open(store, **own, works=False, task_queue="a-typo") as helix,
        asyncio.timeout(60),
    ):
        run = await helix.execute(guide, "When?")
        await until_told(caplog, "temporal", "a-typo")
        for _ in range(3):
            await helix.sweep()
        assert told(caplog, "temporal") == ["a-typo"]
        async with TemporalAgentExecutor.open(store, **own, task_queue=queue):
            # Who works beside it says so, too: that is where an operator looks.
            await until_told(caplog, "temporal", "a-typo", times=2)
        async with TemporalAgentExecutor.open(store, **own, task_queue="a-typo"):
            assert await run.output() == "At six."


async def test_a_worker_of_another_store_is_no_worker(
    tmp_path: Path, temporal_address: str, caplog: pytest.LogCaptureFixture
):
    queue = f"elsewhere-{os.getpid()}"
    own: dict[str, Any] = {"agents": [guide], "address": temporal_address, "prefix": queue, "task_queue": queue}
    async with (
        TemporalAgentExecutor.open(f"sqlite:///{tmp_path}/other.db", **own),
        TemporalAgentExecutor.open(f"sqlite:///{tmp_path}/helix.db", **own, works=False, janitor_seconds=0.1) as helix,
    ):
        await helix.execute(guide, "When?")
        await until_told(caplog, "temporal", queue)


async def test_a_task_queue_that_somebody_polls_is_not_told(
    tmp_path: Path, temporal_address: str, caplog: pytest.LogCaptureFixture
):
    queue, asked, answer = f"attended-{os.getpid()}", asyncio.Event(), asyncio.Event()

    @tool
    async def look() -> str:
        """Look at the sea."""
        asked.set()
        await answer.wait()
        return "It is high."

    slow = Agent(name="slow", model=ScriptedModel([call("look"), "Now."]), tools=[look])
    own: dict[str, Any] = {"agents": [slow], "address": temporal_address, "prefix": queue, "task_queue": queue}
    async with TemporalAgentExecutor.open(f"sqlite:///{tmp_path}/helix.db", **own) as helix, asyncio.timeout(60):
        run = await helix.execute(slow, "When?")
        await asked.wait()
        await helix.sweep()
        answer.set()
        await run.output()
    assert told(caplog, "temporal") == []


async def test_a_queue_of_dbos_that_nobody_takes_from_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    store = f"sqlite:///{tmp_path}/helix.db"
    async with DBOSAgentExecutor.open(
        store, agents=[guide], placement="elsewhere", prefix="a-typo", janitor_seconds=0.1
    ) as helix:
        await helix.execute(guide, "When?")
        await until_told(caplog, "dbos", "a-typo")


@pytest.mark.may_block("the command has a loop of its own, in a thread")
async def test_the_doctor_asks_who_takes_what_has_not_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("helix_agents.cli.commands.doctor.LONGEST_WAIT_MS", -1)
    store = f"sqlite:///{tmp_path}/helix.db"
    async with DBOSAgentExecutor.open(
        store, agents=[guide], placement="elsewhere", prefix="a-typo", janitor_seconds=None
    ) as helix:
        await helix.execute(guide, "When?", "s-1")
        assert await asyncio.to_thread(command, ["doctor", "--store", store]) == 0
    seen = capsys.readouterr().out
    assert "1 run with a durable engine, 1 of them still at the first step, such as a-typo__guide__s-1" in seen
    assert "without a process" not in seen
