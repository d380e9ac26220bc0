"""The headers of one run: made by the user's function for each call, so that a tool acts as the run's own user."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from helix_agents.agent.calling import call_quick
from helix_agents.agent.context import ToolContext
from helix_agents.agent.headers import check_header
from helix_agents.engine.log import log_exception
from helix_agents.mcp_tools.troubles import TroubleMet

RunHeaders: TypeAlias = Callable[[ToolContext[Any, Any]], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""A function, sync or async, that makes the headers of a call from its context."""


async def headers_of(server: str, make: RunHeaders, ctx: ToolContext[Any, Any]) -> Mapping[str, str]:
    """The headers of a call, which may be sent as they are. What the function raises to end its call ends it.

    Raises:
        TroubleMet: they could not be made.
        ControlFlow: the function's own decision, such as `ToolFailed`.
    """
    subject = f"MCP server {server!r}"
    try:
        made = dict(await call_quick(f"The run_headers of {subject}", make, ctx))
        for name, value in made.items():
            check_header(subject, name, value)
    except Exception as problem:
        # What went wrong with a secret belongs only in its owner's log.
        log_exception("mcp.headers_failed", problem, server=server)
        raise TroubleMet("unavailable", "its request headers could not be made", early=True) from None
    return made
