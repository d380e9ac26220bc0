"""What a function asks of its event loop: a replay can repeat it, or the function is told that it cannot, and where."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from helix_agents import FlowRun, flow, tool
from tests.flows.test_flows import double, fail, failure_of, output_of


async def _is_robust(run: FlowRun) -> str:
    while True:
        try:
            await asyncio.sleep(1)
        except Exception:
            continue


async def _catches_everything(run: FlowRun) -> str:
    with contextlib.suppress(BaseException):
        await asyncio.sleep(1)
    return f"{await run.call(double, 1)}"


async def _sleeps_beside_calls(run: FlowRun) -> str:
    async with asyncio.TaskGroup() as group:
        group.create_task(run.call(double, 1))
        group.create_task(asyncio.sleep(1))
    return "never"


async def _connects(run: FlowRun) -> str:
    await asyncio.open_connection("localhost", 1)
    return "never"


async def _starts_a_process(run: FlowRun) -> str:
    await asyncio.create_subprocess_exec("true")
    return "never"


async def _hears_from_threads(run: FlowRun) -> str:
    asyncio.get_running_loop().call_soon_threadsafe(print, "never")
    return "never"


async def _polls(run: FlowRun) -> str:
    task = asyncio.create_task(run.call(double, 1))
    while not task.done():  # noqa: ASYNC110
        await asyncio.sleep(0)
    return "never"


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (_is_robust, "it waits for time to pass"),
        (_catches_everything, "it waits for time to pass"),
        (_sleeps_beside_calls, "it waits for time to pass"),
        (_connects, "it calls create_connection of the event loop, and what comes of that would not be stored"),
        (_starts_a_process, "it calls subprocess_exec of the event loop"),
        (_hears_from_threads, "another thread wants to tell it something"),
        (_polls, "it keeps running without waiting for a call"),
    ],
)
async def test_a_function_cannot_get_around_what_a_flow_has_not(
    function: Callable[..., Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("helix_agents.flows.still_loop.MOST_TURNS", 10_000)
    failure = await failure_of(flow(name="lazy", tools=[double])(function))
    assert failure.code == "flow_stuck"
    assert failure.error.startswith(f"Flow 'lazy' cannot go on: {told}")


async def test_the_error_names_the_line_that_waits() -> None:
    async def lazy(run: FlowRun) -> str:
        await run.call(double, 1)
        await asyncio.sleep(1)
        return "never"

    first = lazy.__code__.co_firstlineno
    assert f"(line {first + 2} of test_still_loop.py)" in (await failure_of(flow(tools=[double])(lazy))).error


async def test_a_generator_that_is_left_early_cleans_up_with_calls() -> None:
    numbers: list[int] = []

    @tool
    async def count(number: int) -> int:
        """Count."""
        numbers.append(number)
        return number

    @flow(tools=[count])
    async def leave(run: FlowRun) -> str:
        """Leave a loop."""

        async def counted() -> AsyncGenerator[int]:
            try:
                for number in range(9):
                    yield await run.call(count, number)
            finally:
                await run.call(count, 100)

        async for number in counted():
            if number == 1:
                break
        return f"{await run.call(count, 200)} {await run.call(count, 300)}"

    assert await output_of(leave) == "200 300"
    assert numbers[:2] == [0, 1]
    assert sorted(numbers[2:]) == [100, 200, 300]


async def test_what_a_function_leaves_running_ends_with_it() -> None:
    ended: list[str] = []

    @flow(tools=[double])
    async def hurry(run: FlowRun) -> str:
        """Return without waiting."""

        async def background() -> None:
            try:
                await run.call(double, 1)
            finally:
                ended.append("cleaned up")

        task = asyncio.create_task(background())
        await asyncio.sleep(0)
        return f"{task.done()}"

    assert await output_of(hurry) == "False"
    assert ended == ["cleaned up"]


async def test_an_exception_that_nobody_waits_for_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    @flow(tools=[double])
    async def forget(run: FlowRun) -> str:
        """Forget a task."""

        async def broken() -> None:
            raise ValueError("lost")

        task = asyncio.create_task(broken())
        await asyncio.sleep(0)
        del task
        return f"{await run.call(double, 1)}"

    with caplog.at_level(logging.ERROR, "helix_agents"):
        assert await output_of(forget) == "2"
    [record] = [each for each in caplog.records if vars(each).get("event") == "flow.task_failed"]
    assert "lost" in caplog.text
    assert "flow='forget'" in record.getMessage()


async def test_every_exception_of_a_group_is_named() -> None:
    @flow(tools=[fail])
    async def group(run: FlowRun) -> str:
        """Do two things at once."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(run.call(fail, "finally"))
            tasks.create_task(run.call(fail, "by accident"))
        return "never"

    assert (await failure_of(group)).error == (
        "Flow 'group' failed: CallFailedError: fail failed (tool_failed): no such thing; "
        "CallFailedError: fail failed (tool_execution_failed): ValueError: a bug"
    )
