"""The tools of a server, made from its catalogue: names, cautious defaults, and the call itself."""

import asyncio
import hashlib
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Literal

from helix_agents.agent.availability import AvailabilityPredicate
from helix_agents.agent.calling import RunInThread, call_possibly_slow
from helix_agents.agent.choices import check_choice
from helix_agents.agent.context import ToolContext
from helix_agents.agent.durations import Deadline, Duration, deadline_milliseconds, optional_milliseconds
from helix_agents.agent.failures import OutcomeUnknown, ToolFailed
from helix_agents.agent.outcomes import ApprovalPredicate, Effect, UnknownOutcome
from helix_agents.agent.tools import Tool
from helix_agents.domain.errors import DefinitionError
from helix_agents.domain.pending import OnDeadline
from helix_agents.domain.records import JSON
from helix_agents.engine.log import log_event
from helix_agents.mcp_tools.catalogue import Offer
from helix_agents.mcp_tools.connections import Connections, Progress
from helix_agents.mcp_tools.credentials import RunHeaders, headers_of
from helix_agents.mcp_tools.schemas import SchemaInput
from helix_agents.mcp_tools.troubles import CallRefused, TroubleMet

IDEMPOTENCY_KEY = "helix-agents/idempotency-key"
"""The field in the `_meta` of a call with a value that is the same for every attempt of that call."""

PROGRESS = "mcp.progress"
"""The name of the stream events that report the progress of a call."""

_LONGEST_NAME = 64
_PROGRESS_SECONDS = 0.1
_LONGEST_MESSAGE = 1_000
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MCPTool(Tool[..., Any]):
    """A tool that an MCP server runs."""

    connections: Connections

    async def call(
        self,
        context: ToolContext[Any, Any],
        values: Mapping[str, Any],
        *,
        in_thread: RunInThread = asyncio.to_thread,
        apart: bool = False,
    ) -> Any:
        """Let the server run it; raises as for any tool."""
        return await call_possibly_slow(
            self.subject, partial(self.function, context, values), in_thread=None, apart=apart
        )

    async def close(self) -> None:
        """Release the connection once it is not in use."""
        await self.connections.close()


@dataclass(frozen=True, kw_only=True)
class ToolSettings:
    """What the user decided for some tools of a server; what is left out follows the server's hints, or our
    defaults."""

    require_approval: bool | ApprovalPredicate | None
    effect: Effect | None
    unknown_outcome: UnknownOutcome | None
    timeout: Duration | None
    retries: int | None
    deadline: Deadline
    on_deadline: Literal["timeout", "deny"]
    available: AvailabilityPredicate | None


def effect_of(offer: Offer) -> Effect:
    """What repeating a call means, as far as the server says: a tool that does not call itself harmless is not
    repeated."""
    is_harmless = offer.hint("readOnlyHint") or offer.hint("idempotentHint")
    return "repeatable" if is_harmless else "once"


def asks_first(offer: Offer) -> bool:
    """Whether a person is asked unless the user decides: if the server itself says that the tool is destructive."""
    return offer.hint("destructiveHint") is True and offer.hint("readOnlyHint") is not True


def tool_name(server: str, name: str) -> str:
    """The name by which a model calls a server's tool; characters that providers reject are replaced, long names
    cut."""
    whole = f"{server}__{_ILLEGAL.sub('_', name)}"
    if len(whole) <= _LONGEST_NAME:
        return whole
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{whole[: _LONGEST_NAME - 9]}_{digest}"


def check_distinct(subject: str, server: str, offers: Sequence[Offer]) -> None:
    """Reject tools that a model could not tell apart.

    Raises:
        DefinitionError: two names become the same.
    """
    seen: dict[str, str] = {}
    for offer in offers:
        called = tool_name(server, offer.name)
        other = seen.setdefault(called, offer.name)
        if other != offer.name:
            raise DefinitionError(
                subject, f"{other!r} and {offer.name!r} would both be called {called!r}; leave one out with exclude=…."
            )


def make_tool(
    server: str,
    offer: Offer,
    connections: Connections,
    settings: ToolSettings,
    run_headers: RunHeaders | None = None,
) -> MCPTool:
    """One tool of a server.

    Raises:
        DefinitionError: options contradict each other.
    """
    called = tool_name(server, offer.name)
    subject = f"Tool {called!r}"
    check_choice(subject, "on_deadline", settings.on_deadline, ("timeout", "deny"))
    approval = asks_first(offer) if settings.require_approval is None else settings.require_approval
    effect: Effect = settings.effect or effect_of(offer)
    # Settings apply to several tools at once, and some only to tools that could need them.
    is_once = effect == "once" or settings.effect is not None
    may_wait = bool(approval) or is_once
    return MCPTool(
        name=called,
        description=(offer.description or offer.title or f"{offer.name} of {server}").strip() or called,
        input=SchemaInput(offer.input_schema),
        function=_function(server, offer.name, connections, run_headers, repeatable=effect == "repeatable"),
        timeout_ms=optional_milliseconds(settings.timeout, subject, "timeout"),
        retries=settings.retries,
        effect=effect,
        unknown_outcome=settings.unknown_outcome if is_once else None,
        require_approval=approval,
        deadline_ms=deadline_milliseconds(settings.deadline, subject, "deadline") if may_wait else "inherit",
        on_deadline=OnDeadline(action=settings.on_deadline if may_wait else "timeout"),
        available=settings.available,
        connections=connections,
    )


def _function(
    server: str, name: str, connections: Connections, run_headers: RunHeaders | None, *, repeatable: bool
) -> Callable[..., Any]:
    async def call(ctx: ToolContext[Any, Any], arguments: Mapping[str, JSON]) -> JSON:
        """Let the server run the tool.

        Raises:
            ToolFailed: it failed, or was not started.
            OutcomeUnknown: the server may have done it, but no answer came.
        """
        meta = {IDEMPOTENCY_KEY: ctx.idempotency_key}
        with failing_as_a_tool(server, name):
            fresh = None if run_headers is None else partial(headers_of, server, run_headers, ctx)
            result = await connections.call(
                name, arguments, meta, _progress_to(ctx), repeatable=repeatable, fresh=fresh
            )
        # Loaded with the connection: it needs the protocol's library.
        from helix_agents.mcp_tools.results import content_of, text_of

        if result.is_error:
            raise ToolFailed(text_of(result))
        return content_of(result)

    return call


@contextmanager
def failing_as_a_tool(server: str, name: str) -> Generator[None]:
    """What goes wrong with a server in the block, as the failure of a tool.

    Raises:
        ToolFailed: it failed, or was not started.
        OutcomeUnknown: the server may have done it, but no answer came.
    """
    try:
        yield
    except TroubleMet as met:
        error = met.as_error(server, calling=True)
        log_event("mcp.call_failed", server=server, tool=name, code=error.code, reason=met.reason)
        raise (OutcomeUnknown if met.may_have_been_done else ToolFailed)(str(error)) from met
    except CallRefused as refused:
        raise ToolFailed(f"MCP server {server!r} refused the call: {refused.message}") from refused


def _progress_to(ctx: ToolContext[Any, Any]) -> Progress:
    """Reports the progress of a call to readers, no more often than they can see."""
    told_at = 0.0

    async def tell(progress: float, total: float | None, message: str | None) -> None:
        nonlocal told_at
        now = monotonic()
        if now - told_at >= _PROGRESS_SECONDS:
            told_at = now
            said = None if message is None else message[:_LONGEST_MESSAGE]
            about = {"tool_call_id": ctx.tool_call_id, "progress": progress, "total": total, "message": said}
            ctx.emit(PROGRESS, {key: value for key, value in about.items() if value is not None})

    return tell
