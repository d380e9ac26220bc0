"""The file of a store goes away under a living process: whoever waits is told so, soon, and nobody is held up."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from helix_agents.agent.agent import Agent, AnyAgent
from helix_agents.agent.tools import tool
from helix_agents.backends.sqlite import lanes
from helix_agents.domain.errors import (
    ExecutorClosedError,
    SessionCorruptError,
    StoreReplacedError,
    StoreUnavailableError,
)
from helix_agents.domain.results import Failed
from helix_agents.domain.runs import RunRecord
from helix_agents.ports.backend import open_backend
from helix_agents.runtimes.executor.handle import RunHandle
from helix_agents.runtimes.in_process import Executor, drivers
from helix_agents.testing import ScriptedModel, call
from helix_agents.testing.contracts.executor.stage import Gate, until

SESSION = "s-1"

pytestmark = pytest.mark.usefixtures("looks_each_time")


@pytest.fixture
def looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "LOOK_AGAIN_SECONDS", 0.0)


def worker(gate: Gate) -> AnyAgent:
    @tool
    async def work() -> str:
        """Work."""
        await gate.wait()
        return "worked"

    return Agent(name="worker", model=ScriptedModel([call("work"), "Done."]), tools=[work])


@asynccontextmanager
async def at_work(path: Path, gate: Gate, **options: Any) -> AsyncGenerator[tuple[Executor, RunHandle[Any]]]:
    """An executor on the file, and a run of it in the middle of a tool."""
    agent = worker(gate)
    async with asyncio.timeout(15), await open_backend(f"sqlite:///{path}", **options) as parts:
        stores = {"state": parts.state, "streams": parts.streams, "usage": parts.usage}
        async with Executor(**stores, agents=[agent], janitor_seconds=None) as helix:
            run = await helix.execute(agent, "Go.", SESSION)
            await gate.until_reached()
            yield helix, run


async def lose(path: Path) -> None:
    await asyncio.to_thread(path.rename, path.with_suffix(".away"))


async def put_back(path: Path) -> None:
    await asyncio.to_thread(path.with_suffix(".away").rename, path)


async def test_who_waits_for_a_run_whose_store_goes_away_is_told_so_and_the_process_leaves_soon(tmp_path: Path):
    path, gate = tmp_path / "helix.db", Gate()
    async with at_work(path, gate) as (helix, run):
        waiting = asyncio.create_task(run.result())
        await lose(path)
        gate.opened.set()
        with pytest.raises(StoreReplacedError, match="Put the file back"):
            await waiting
        again = await asyncio.gather(run.result(), return_exceptions=True)
        assert isinstance(again[0], StoreReplacedError)
        began = asyncio.get_running_loop().time()
        await helix.close()
        assert asyncio.get_running_loop().time() - began < 5


async def test_who_reads_a_stream_whose_store_goes_away_is_told_so(tmp_path: Path):
    path, gate = tmp_path / "helix.db", Gate()
    async with at_work(path, gate) as (_, run):

        async def read() -> None:
            async for _ in run.stream():
                pass

        reading = asyncio.create_task(read())
        await lose(path)
        gate.opened.set()
        with pytest.raises(StoreReplacedError):
            await reading


async def test_who_waits_or_reads_in_another_process_is_told_so_too(tmp_path: Path):
    """It writes nothing but that it is alive."""
    path, gate = tmp_path / "helix.db", Gate()
    async with at_work(path, gate) as (_, run), Executor.open(f"sqlite:///{path}", lease_ms=300) as other:
        handle = await other.get_handle(worker(gate), SESSION)
        assert handle is not None
        assert handle.run_id == run.run_id

        async def read() -> None:
            async for _ in handle.stream():
                pass

        readers = [asyncio.create_task(handle.result()), asyncio.create_task(read())]
        await lose(path)
        for told in await asyncio.gather(*readers, return_exceptions=True):
            assert isinstance(told, StoreReplacedError)
        with pytest.raises(StoreReplacedError):
            await other.sessions.get(SESSION)
        gate.opened.set()


async def test_a_run_whose_file_is_put_back_goes_on(tmp_path: Path):
    path, gate = tmp_path / "helix.db", Gate()
    async with at_work(path, gate) as (helix, run):
        await lose(path)
        gate.opened.set()
        with pytest.raises(StoreReplacedError):
            await run.result()
        await put_back(path)
        while True:
            try:
                again = await helix.get_handle(worker(gate), SESSION)
                assert again is not None
                assert again.run_id == run.run_id
                assert await again.output() == "Done."
                return
            except StoreReplacedError:
                await asyncio.sleep(0.05)


async def test_a_run_whose_file_is_put_back_and_cannot_be_claimed_is_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """No other process would come for it: its lease is alive."""
    path, gate = tmp_path / "helix.db", Gate()
    asked = asyncio.Event()

    async def refuse(*_: Any, **__: Any) -> RunRecord:
        asked.set()
        raise SessionCorruptError("run", "half of it is missing")

    async with at_work(path, gate) as (helix, run):
        await lose(path)
        monkeypatch.setattr(drivers, "claim", refuse)
        gate.opened.set()
        with pytest.raises(StoreReplacedError):
            await run.result()
        await asked.wait()
        await put_back(path)
        agent = worker(gate)

        async def is_settled() -> bool:
            with suppress(StoreReplacedError):
                return (await helix.sessions.get(SESSION)).status == "failed"
            return False

        await until(is_settled)
        again = await helix.get_handle(agent, SESSION)
        assert again is not None
        match await again.result():
            case Failed(code="session_corrupt"):
                pass
            case other:
                raise AssertionError(other)
        assert await (await helix.retry(agent, SESSION)).output() == "Done."


async def test_a_process_that_leaves_does_not_wait_for_a_store_that_is_away(tmp_path: Path):
    """What its run had done since the last commit is done again by whoever takes it over; waiting saves none of it."""
    path, gate = tmp_path / "helix.db", Gate()
    away = False

    def seam(statement: str) -> None:
        if away:
            raise StoreUnavailableError("helix.db", "it is away")

    async with at_work(path, gate, seam=seam) as (helix, run):
        waiting = asyncio.create_task(run.result())
        away = True
        gate.opened.set()
        await asyncio.sleep(0)
        began = asyncio.get_running_loop().time()
        await helix.close()
        assert asyncio.get_running_loop().time() - began < 5
        with pytest.raises(ExecutorClosedError):
            await waiting
