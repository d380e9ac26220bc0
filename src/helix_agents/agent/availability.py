"""Tools that are not always offered: a function of the run decides before each model call."""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from helix_agents.agent.calling import call_quick, is_generator, takes
from helix_agents.agent.context import RunContext
from helix_agents.domain.errors import DefinitionError

AvailabilityPredicate: TypeAlias = Callable[[RunContext[Any, Any]], Awaitable[bool] | bool]
"""Decides, before each model call, whether the model may call a tool in this step."""


class Conditional(NamedTuple):
    """A tool that is not always offered, and the function that decides."""

    name: str
    available: AvailabilityPredicate


def check_available(subject: str, given: Any) -> None:
    """Reject anything but a function of the run.

    Raises:
        DefinitionError: says what is wrong with it.
    """
    if given is None:
        return
    if not callable(given) or inspect.isclass(given):
        cure = "to leave a tool out for good, leave it out of the agent's tools"
        raise DefinitionError(subject, f"available={given!r} is not a function of the run; {cure}.")
    if is_generator(given):
        # A generator counts as true, so the tool would always be offered.
        raise DefinitionError(subject, "available is a generator, which runs nothing when it is called; use return.")
    if not takes(given, 1):
        raise DefinitionError(subject, "available is called with the run; write it as a function of it, (ctx).")


async def withheld_from(tools: Sequence[Conditional], ctx: RunContext[Any, Any]) -> frozenset[str]:
    """The names of the tools that the model is not offered in this step. A function that several tools share is asked
    once, so that they agree.

    Raises:
        Exception: whatever a function raised.
    """
    said: dict[int, bool] = {}
    for each in tools:
        if id(each.available) not in said:
            what = f"The availability predicate of {each.name!r}"
            said[id(each.available)] = bool(await call_quick(what, each.available, ctx))
    return frozenset(each.name for each in tools if not said[id(each.available)])
