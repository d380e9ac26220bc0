"""An event loop without time and without input: it runs tasks until every one of them waits for something outside."""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextvars import Context
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MOST_TURNS = 1_000_000
"""How often the tasks of a function may run before all of them wait. No function that makes calls comes near it."""

_ENDS_AT_MOST = 10
"""A task may wait again while it cleans up; after so many times it is left to the garbage collector."""


class NotInAFlowError(BaseException):
    """A flow asked the event loop for something that a replay could not repeat.

    It is not an `Exception`, so that no `except Exception` makes a flow try the same again for ever.
    """


class StillLoop(asyncio.AbstractEventLoop):
    """Runs tasks in the order in which they became ready, which is the same whenever they are given the same results.

    It has to be run in a thread in which no other loop runs. `refused` is the first thing it was asked for that it has
    not; a function that has asked for such a thing cannot go on, whether or not it caught the refusal. `on_lost` is
    told of exceptions that end a task and reach nobody.
    """

    def __init__(self, on_lost: Callable[[BaseException], object]) -> None:
        self._ready: deque[asyncio.Handle] = deque()
        # A task that waits is in no other place: asyncio itself refers to tasks weakly.
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._on_lost = on_lost
        self._is_running = False
        self._is_ending = False
        self.refused: NotInAFlowError | None = None

    def run_until_still(self) -> None:
        """Run until nothing is ready any more.

        Raises:
            NotInAFlowError: there is no end to it.
        """
        hooks = sys.get_asyncgen_hooks()
        asyncio._set_running_loop(self)  # pyright: ignore[reportPrivateUsage]
        self._is_running = True
        sys.set_asyncgen_hooks(firstiter=None, finalizer=self._close_generator)
        try:
            for _ in range(MOST_TURNS):
                if not self._ready:
                    return
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]
                # The traceback of a task that failed may refer to this frame, and would keep the task in a cycle.
                del handle
        finally:
            sys.set_asyncgen_hooks(*hooks)
            self._is_running = False
            asyncio._set_running_loop(None)  # pyright: ignore[reportPrivateUsage]
        self._ready.clear()
        told = "it keeps running without waiting for a call; in place of a loop around asyncio.sleep(0), await the task"
        self.refused = self.refused or NotInAFlowError(told)

    def end(self) -> None:
        """Cancel what still waits, and let it clean up. What it waits for from now on never comes."""
        self._is_ending = True
        for _ in range(_ENDS_AT_MOST):
            if not self._tasks:
                return
            for task in tuple(self._tasks):
                task.cancel()
            self.run_until_still()

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, T], **options: Any) -> asyncio.Task[T]:  # type: ignore[override]
        task = asyncio.Task(coro, loop=self, **options)
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        return task

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return False

    def get_debug(self) -> bool:
        return False

    def get_task_factory(self) -> None:
        return None

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Tell of an exception that nobody waited for."""
        problem = context.get("exception")
        if isinstance(problem, BaseException) and not self._is_ending:
            self._on_lost(problem)

    def call_later(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse("it waits for time to pass, which a flow cannot do by itself; wait inside a tool")

    def call_at(self, *_: Any, **__: Any) -> NoReturn:
        self.call_later()

    def time(self) -> NoReturn:
        self._refuse(
            "it asks what time it is, as every timeout does, and that differs when the flow is replayed; give the tool "
            "a timeout=… or a deadline=…, and ask for the time inside a tool"
        )

    def run_in_executor(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse("it starts a thread, and what the thread does would not be stored; do it in a tool")

    def call_soon_threadsafe(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse("another thread wants to tell it something, which would not be stored; do it in a tool")

    def _refuse(self, told: str) -> NoReturn:
        refusal = NotInAFlowError(told + _place(sys._getframe(2)))  # pyright: ignore[reportPrivateUsage]
        self.refused = self.refused or refusal
        raise refusal

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    def _close_generator(self, generator: AsyncGenerator[Any, None]) -> None:
        """Let an async generator that is not used up clean up, as every event loop does."""
        # A generator that is collected later, in whatever thread, can only be dropped.
        if self._is_running and asyncio._get_running_loop() is self:  # pyright: ignore[reportPrivateUsage]
            self.create_task(generator.aclose())


def _refusing(verb: str) -> Callable[..., NoReturn]:
    def refuse(loop: StillLoop, *_: Any, **__: Any) -> NoReturn:
        told = f"it calls {verb} of the event loop, and what comes of that would not be stored; do it in a tool"
        loop._refuse(told)  # pyright: ignore[reportPrivateUsage]

    return refuse


# Everything else that a loop can do reaches out of the process, in this version of Python and in later ones.
for _verb in vars(asyncio.AbstractEventLoop):
    if not _verb.startswith("_") and _verb not in vars(StillLoop):
        setattr(StillLoop, _verb, _refusing(_verb))


def _place(frame: FrameType | None) -> str:
    """Where the function is: the outermost line of its own code in the stack of the task that runs."""
    found = ""
    while frame is not None and frame.f_code.co_filename != __file__:
        if not frame.f_code.co_filename.startswith(_ASYNCIO):
            found = f" (line {frame.f_lineno} of {Path(frame.f_code.co_filename).name})"
        frame = frame.f_back
    return found


_ASYNCIO = asyncio.__file__.rpartition("__init__")[0]
