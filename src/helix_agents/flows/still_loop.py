"""An event loop without time and without input: it runs tasks until every one of them waits for something outside."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, NoReturn, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class NotInAFlowError(RuntimeError):
    """A flow asked the event loop for something that a replay could not repeat."""


class StillLoop(asyncio.AbstractEventLoop):
    """Runs tasks in the order in which they became ready, which is the same whenever they are given the same results.

    It has to be run in a thread in which no other loop runs.
    """

    def __init__(self) -> None:
        self._ready: deque[asyncio.Handle] = deque()

    def run_until_still(self) -> None:
        """Run until nothing is ready any more."""
        asyncio._set_running_loop(self)  # pyright: ignore[reportPrivateUsage]
        try:
            while self._ready:
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]
        finally:
            asyncio._set_running_loop(None)  # pyright: ignore[reportPrivateUsage]

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, T], **options: Any) -> asyncio.Task[T]:  # type: ignore[override]
        return asyncio.Task(coro, loop=self, **options)

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Say nothing: what matters reaches whoever waits for the task."""

    def call_later(self, *_: Any, **__: Any) -> NoReturn:
        raise NotInAFlowError("it waits for time to pass, which a flow cannot do by itself; wait inside a tool")

    def call_at(self, *_: Any, **__: Any) -> NoReturn:
        self.call_later()

    def time(self) -> NoReturn:
        raise NotInAFlowError("it asks what time it is, which differs when the flow is replayed; ask inside a tool")

    def run_in_executor(self, *_: Any, **__: Any) -> NoReturn:
        raise NotInAFlowError("it starts a thread, and what the thread does would not be stored; do it in a tool")
