"""Calling what users wrote, whether it is sync or async."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar, cast

from helix_agents.agent.failures import Contained

T = TypeVar("T")

RunInThread: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a function on some thread and answers its result; `asyncio.to_thread` is one."""


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it makes a coroutine; callable objects and partials included."""
    # On an object that defines it, `__call__` is what runs; on a function it is a wrapper that says nothing.
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def is_generator(function: Callable[..., Any]) -> bool:
    """Whether calling it runs nothing, but makes a generator; callable objects and partials included."""
    return any(
        inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each)
        for each in (function, type(function).__call__)
    )


async def call_quick(what: str, function: Callable[..., Awaitable[T] | T], *arguments: Any) -> T:
    """Call something that is meant to be quick, on the event loop, and wait for it if it is async.

    Raises:
        Exception: what it raised.
        ControlFlow: what it decided.
    """
    with Contained(what):
        result = function(*arguments)
        return await cast("Awaitable[T]", result) if inspect.isawaitable(result) else cast("T", result)


async def call_possibly_slow(
    what: str, function: Callable[[], Any], *, in_thread: RunInThread | None, apart: bool = False
) -> Any:
    """Call something that may block: on a thread when one is given, else on the event loop, in a task of its own if it
    is to be `apart`, so that one that cancels the task it runs in ends alone.

    Raises:
        Exception: what it raised.
        ControlFlow: what it decided.
    """
    with Contained(what):
        result = function() if in_thread is None else await in_thread(lambda: _on_thread(what, function))
        # A sync wrapper around an async function looks sync until it is called.
        if not inspect.isawaitable(result):
            return result
        return await (asyncio.ensure_future(result) if apart else result)


def _on_thread(what: str, function: Callable[[], Any]) -> Any:
    """What these mean ends at the thread. A future cannot even carry the first: who waits for it waits for ever."""
    try:
        return function()
    except (StopIteration, GeneratorExit, SystemExit, KeyboardInterrupt) as problem:
        raise RuntimeError(f"{what} raised {type(problem).__name__}({problem})") from problem
