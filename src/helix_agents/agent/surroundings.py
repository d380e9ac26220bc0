"""Hooks around a piece of work: set up before it, given the outcome after it, and never able to disturb it."""

import asyncio
from collections.abc import Callable, Generator, Iterable
from types import TracebackType
from typing import Any, Self

from helix_agents.agent.context import RunInfo
from helix_agents.agent.hook_events import HookEvent

AroundWork = Callable[[Any, Any], "Generator[None, Any, None] | None"]


class Surroundings:
    """The hooks around one call of a model or of a tool. `begin` inside a `with` block sets them up; the end of the
    block takes them down in reverse order, with the `outcome`, or else with the exception that ended the work.

    Nothing that a hook raises here reaches the work: it is reported.
    """

    __slots__ = ("_begun", "_event", "_hooks", "_info", "_report", "outcome")

    def __init__(
        self,
        hooks: Iterable[AroundWork],
        info: RunInfo,
        event: HookEvent,
        report: Callable[[str, BaseException], object],
    ) -> None:
        self._hooks = hooks
        self._info = info
        self._event = event
        self._report = report
        self._begun: list[tuple[str, Generator[None, Any, None]]] = []
        self.outcome: HookEvent | None = None

    @property
    def begun(self) -> bool:
        """Whether any hook waits for the outcome."""
        return bool(self._begun)

    def begin(self) -> None:
        for hook in self._hooks:
            name: str = getattr(hook, "__qualname__", repr(hook))
            try:
                generator = hook(self._info, self._event)
                if generator is not None:
                    next(generator)
                    self._begun.append((name, generator))
            except StopIteration:
                continue
            except BaseException as problem:
                self._note(name, problem)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, _: TracebackType | None
    ) -> None:
        if not self._begun:
            return
        ended_by = problem
        if problem is None and self.outcome is None:
            ended_by = asyncio.CancelledError()
        while self._begun:
            name, generator = self._begun.pop()
            try:
                if ended_by is None:
                    generator.send(self.outcome)
                else:
                    generator.throw(ended_by)
                generator.close()
                self._note(name, RuntimeError("a hook around something yields once"))
            except StopIteration:
                continue
            except BaseException as raised:
                if raised is not ended_by:
                    self._note(name, raised)

    def _note(self, name: str, problem: BaseException) -> None:
        if isinstance(problem, KeyboardInterrupt):
            raise problem
        self._report(name, problem)
