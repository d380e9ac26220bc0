"""Checks of an agent's output: functions that accept it, or send the model back."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, cast

from helix_agents.agent.calling import RunInThread, call_possibly_slow, is_async, is_generator, name_of, takes
from helix_agents.agent.context import DepsT, RunContext
from helix_agents.agent.failures import RetryOutput
from helix_agents.agent.output import OutputT
from helix_agents.agent.state_type import StateT
from helix_agents.domain.errors import DefinitionError

OutputCheck: TypeAlias = Callable[[RunContext[StateT, DepsT], OutputT], Awaitable[None] | None]
"""Looks at an output before the run completes with it. It accepts by returning, sends the model back with
`RetryOutput`, and fails the run with `FailRun`. Sync ones run on a thread."""


def check_output_checks(given: Any, subject: str) -> None:
    """Reject anything but a list of functions that can be called with a run and its output.

    Raises:
        DefinitionError: says what is wrong with which of them.
    """
    if given is None:
        return
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        raise DefinitionError(subject, f"output_checks={given!r} is not a list; write output_checks=[…].")
    for each in cast("Sequence[Any]", given):
        if not callable(each) or not takes(each, 2):
            problem = f"output_checks has {each!r}, which is not a function of a run and its output: (ctx, output)."
            raise DefinitionError(subject, problem)
        if is_generator(each):
            problem = f"the output check {name_of(each)!r} is a generator, which runs nothing when it is called."
            raise DefinitionError(subject, problem)


async def refused(
    checks: Sequence[OutputCheck[Any, Any, Any]],
    ctx: RunContext[Any, Any],
    output: Any,
    *,
    in_thread: RunInThread,
    apart: bool = False,
) -> RetryOutput | None:
    """Why a check refuses the output, or None if none of them does. They are asked in order, up to the first refusal:
    sync ones on a thread, async ones `apart` if requested.

    Raises:
        FailRun: the run has to fail.
        Exception: whatever else a check raised.
        TypeError: a check returned something. Whether that was meant as a yes or a no cannot be told.
    """
    for check in checks:
        what = f"The output check {name_of(check)!r}"
        sync = not is_async(check)
        seen = ctx.for_thread(asyncio.get_running_loop()) if sync else ctx
        try:
            call = partial(check, seen, output)
            returned = await call_possibly_slow(what, call, in_thread=in_thread if sync else None, apart=apart)
        except RetryOutput as refusal:
            return refusal
        if returned is not None:
            raise TypeError(
                f"{what} returned a {type(returned).__name__}; it accepts by returning nothing, and refuses with "
                "raise RetryOutput(…)"
            )
    return None
