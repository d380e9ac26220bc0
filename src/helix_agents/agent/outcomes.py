"""What is known about a call whose process died while it ran: the answers a `reconcile` function may give."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from helix_agents.agent.context import RunContext, ToolContext

Effect: TypeAlias = Literal["repeatable", "once"]
"""Whether a call may be repeated without harm, or must not happen twice."""


@dataclass(frozen=True)
class Happened:
    """The effect took place, and this is its result."""

    result: Any = None


@dataclass(frozen=True)
class DidNotHappen:
    """The effect did not take place: the tool may run."""


@dataclass(frozen=True)
class StillUnknown:
    """It is still not known: a person is asked."""


Reconciled: TypeAlias = Happened | DidNotHappen | StillUnknown

Reconcile: TypeAlias = Callable[[Mapping[str, Any], ToolContext[Any, Any]], Awaitable[Reconciled] | Reconciled]
"""Finds out, from the call's input and its idempotency key, whether the effect took place."""

UnknownOutcome: TypeAlias = Literal["ask", "retry", "fail"] | Reconcile

Preview: TypeAlias = Callable[[Mapping[str, Any], RunContext[Any, Any]], Awaitable[Any] | Any]
"""Shows what a call would do, for the person who has to approve it."""

ApprovalPredicate: TypeAlias = Callable[[Mapping[str, Any], RunContext[Any, Any]], Awaitable[bool] | bool]
"""Decides, from the validated input of a call, whether a person has to approve it."""
