"""Calling what users wrote, whether it is sync or async."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar, cast

from helix_agents.agent.failures import Contained

T = TypeVar("T")

RunInThread: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a function on some thread and returns its result; `asyncio.to_thread` is one."""


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it creates a coroutine, including callable objects and partials."""
    # On an object that defines it, `__call__` is what runs; on a function it is a wrapper that says nothing.
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def is_generator(function: Callable[..., Any]) -> bool:
    """Whether calling it creates a generator and runs nothing yet, including callable objects and partials."""
    return any(
        inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each)
        for each in (function, type(function).__call__)
    )


def name_of(function: object) -> str:
    """What to call it in a message: its name, or that of its class."""
    return getattr(function, "__name__", type(function).__name__)


def takes(function: Callable[..., Any], count: int) -> bool:
    """Whether it can be called with this many values."""
    try:
        inspect.signature(function).bind(*(None for _ in range(count)))
    except TypeError:
        return False
    except ValueError:
        # There is no way to know what it takes.
        return True
    return True


async def call_quick(what: str, function: Callable[..., Awaitable[T] | T], *arguments: Any) -> T:
    """Call a function that is meant to be quick, on the event loop, and wait for it if it is async.

    Raises:
        Exception: whatever it raised.
        ControlFlow: its decision.
    """
    with Contained(what):
        result = function(*arguments)
        return await cast("Awaitable[T]", result) if inspect.isawaitable(result) else cast("T", result)


async def call_possibly_slow(
    what: str, function: Callable[[], Any], *, in_thread: RunInThread | None, apart: bool = False
) -> Any:
    """Call a function that may block: on a thread if one is given, else on the event loop. With `apart` it gets its own
    task, so that a function that cancels the task it runs in ends alone.

    Raises:
        Exception: whatever it raised.
        ControlFlow: its decision.
    """
    with Contained(what):
        result = function() if in_thread is None else await in_thread(lambda: _on_thread(what, function))
        # A sync wrapper around an async function looks sync until it is called.
        if not inspect.isawaitable(result):
            return result
        return await (_apart(what, result) if apart else result)


async def _apart(what: str, result: Awaitable[Any]) -> Any:
    """Wait for it in a task of its own, which ends alone. Left to itself, a task that meets SystemExit passes it on to
    the event loop, and that ends the process."""

    async def contained() -> Any:
        with Contained(what):
            return await result

    task = asyncio.ensure_future(contained())
    try:
        return await task
    finally:
        # A task that was cancelled before its first step never came to it.
        if task.done() and inspect.iscoroutine(result):
            result.close()


def _on_thread(what: str, function: Callable[[], Any]) -> Any:
    """These exceptions end at the thread. A future cannot even carry StopIteration: its waiter would wait forever."""
    try:
        return function()
    except (StopIteration, GeneratorExit, SystemExit, KeyboardInterrupt) as problem:
        raise RuntimeError(f"{what} raised {type(problem).__name__}({problem})") from problem
