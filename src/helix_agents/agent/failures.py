"""How a tool or a hook reports that something went wrong, and how its exceptions are contained.

| raised in a tool                     | what happens                                                            |
|--------------------------------------|-------------------------------------------------------------------------|
| `RetryTool("use YYYY-MM-DD")`        | the model is told and may call again; counts against the tool's retries |
| `ToolFailed("no such invoice")`      | the model is told; it is final, and counts against nothing              |
| `OutcomeUnknown("no answer in 5 s")` | it may or may not have been done; the tool's `unknown_outcome` decides  |
| `FailRun("budget exhausted")`        | the run fails with this reason                                          |
| any other exception                  | the model sees that the tool failed; the traceback is in the log        |

In a check of the output, `RetryOutput("name your sources")` sends the model back, `FailRun` fails the run, and so does
any other exception. In a hook only `FailRun` has a meaning; anything else it raises is logged, and the run continues.

All of them derive from `BaseException`, so that neither an `except Exception` nor a retrying decorator around the
caller's own code can swallow a decision that is meant for the run.
"""

import asyncio
from types import TracebackType
from typing import cast

from helix_agents.domain.texts import said_by


class ControlFlow(BaseException):
    """A decision on its way from user code to the engine; it never leaves the effect in which it was made."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        # A caller that passes on an exception it caught means that exception's text.
        self.message = said_by(message) if isinstance(message, BaseException) else str(message)

    def __str__(self) -> str:
        return self.message


class RetryTool(ControlFlow):
    """The call can succeed with other arguments. The message tells the model which."""


class RetryOutput(ControlFlow):
    """The output is not acceptable. The message tells the model why, and it may hand in another one."""


class ToolFailed(ControlFlow):
    """The call failed for good. The message tells the model why."""


class OutcomeUnknown(ControlFlow):
    """It is not known whether the call took effect: a request was sent, and no answer came.

    In a tool with `effect="once"`, this has the same consequence as if the process had died there: the call is not
    silently repeated, and the tool's `unknown_outcome` decides, which by default asks a person. For any other tool, the
    model is told that the call may or may not have taken effect.
    """


class FailRun(ControlFlow):
    """The whole run has to fail, for this reason."""

    @property
    def reason(self) -> str:
        return said_by(self)


class Contained:
    """Lets user code end only with a result, a decision, an ordinary exception, or a cancellation that came from
    outside.

    `sys.exit` in a tool must not end the process, and a cancellation that the code caused itself must not look like a
    stop. Every model call and every tool runs in such a block; `what` is named in the error when it ends any other way.
    """

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, raised_at: TracebackType | None
    ) -> None:
        if problem is None or isinstance(problem, (Exception, ControlFlow, KeyboardInterrupt)):
            return
        if isinstance(problem, GeneratorExit) and (raised_at is None or raised_at.tb_next is None):
            # It was raised here and not in anything that was called: an abandoned coroutine is being closed. Turned
            # into anything else, it would be reported as a problem.
            return
        if isinstance(problem, asyncio.CancelledError):
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                return
            raise RuntimeError(f"{self._what} cancelled itself") from problem
        decision = _decision_in(problem)
        if decision is not None:
            raise decision from problem
        raise RuntimeError(f"{self._what} raised {type(problem).__name__}({problem})") from problem


def _decision_in(problem: BaseException) -> ControlFlow | None:
    """The first decision in the exception group of a TaskGroup; a decision to fail the run takes precedence."""
    if isinstance(problem, ControlFlow):
        return problem
    if not isinstance(problem, BaseExceptionGroup):
        return None
    group = cast("BaseExceptionGroup[BaseException]", problem)
    found = [decision for each in group.exceptions if (decision := _decision_in(each)) is not None]
    return next((decision for decision in found if isinstance(decision, FailRun)), found[0] if found else None)
