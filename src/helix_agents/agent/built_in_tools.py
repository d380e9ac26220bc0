"""Tools that the library itself gives agents, under names that are reserved for it."""

from collections.abc import Callable
from typing import Any

from helix_agents.agent.docstrings import read_docstring
from helix_agents.agent.outcomes import ApprovalPredicate, Effect, UnknownOutcome
from helix_agents.agent.signatures import read_signature
from helix_agents.agent.tools import Tool


def built_in_tool(
    name: str,
    function: Callable[..., Any],
    *,
    effect: Effect = "repeatable",
    unknown_outcome: UnknownOutcome | None = None,
    require_approval: bool | ApprovalPredicate = False,
    timeout_ms: int | None = None,
) -> Tool[..., Any]:
    """A function as a built-in tool, described by its docstring; repeatable unless stated otherwise."""
    documented = read_docstring(function.__doc__)
    return Tool(
        name=name,
        description=documented.description,
        input=read_signature(function, f"Tool {name!r}", documented.parameters),
        function=function,
        effect=effect,
        unknown_outcome=unknown_outcome,
        require_approval=require_approval,
        timeout_ms=timeout_ms,
    )
