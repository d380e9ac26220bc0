"""Where a remote child came to rest, and the failure codes for one that could not continue."""

from dataclasses import dataclass

from helix_agents.agent.remote_agents import RemoteAgentTool
from helix_agents.domain.errors import (
    RemoteSubAgentClientToolUnsupportedError,
    RemoteSubAgentLostError,
    ToolOutputError,
)
from helix_agents.domain.pending import PendingCall
from helix_agents.domain.records import JSON, encode
from helix_agents.domain.runs import RunStatus
from helix_agents.domain.sessions import SessionStatus
from helix_agents.ports.remote_agents import RemoteStatus

DISPATCH_FAILED = "sub_agent_dispatch_failed"
LIMIT_EXCEEDED = "remote_limit_exceeded"
OUTPUT_INVALID = "tool_output_invalid"
TYPED_FAILURES = frozenset(
    (
        DISPATCH_FAILED,
        LIMIT_EXCEEDED,
        OUTPUT_INVALID,
        RemoteSubAgentLostError.code,
        RemoteSubAgentClientToolUnsupportedError.code,
    )
)

ERROR_CHARACTERS = 8_000
_CODE_CHARACTERS = 128


@dataclass(frozen=True, kw_only=True)
class Rest:
    """Where a remote child came to rest. `told`: its service reported it. `confirmed`: nothing runs there."""

    status: RunStatus
    reason: str
    output: JSON = None
    error: str | None = None
    pending: tuple[PendingCall, ...] = ()
    interrupt_reason: str | None = None
    told: bool = False
    confirmed: bool = False

    @property
    def session_status(self) -> SessionStatus:
        match self.status:
            case "completed" | "failed" | "interrupted":
                return self.status
            case _:
                return "active"


def end_of(status: RemoteStatus, tool: RemoteAgentTool, most_bytes: int) -> Rest | None:
    """How the child ended, as its service reports it; None if it has not."""
    match status.run_status:
        case "completed":
            return _completed(status, tool, most_bytes)
        case "failed":
            reason = (status.failure_reason or "failed")[:_CODE_CHARACTERS]
            error = (status.error or reason)[:ERROR_CHARACTERS]
            return Rest(status="failed", reason=reason, error=error, told=True, confirmed=True)
        case "interrupted":
            why = (status.interrupt_reason or "interrupted")[:ERROR_CHARACTERS]
            return Rest(status="interrupted", reason="interrupted", interrupt_reason=why, told=True, confirmed=True)
        case _:
            return None


def interrupted(reason: str | None, *, confirmed: bool) -> Rest:
    """The child was stopped from here."""
    return Rest(status="interrupted", reason="interrupted", interrupt_reason=reason, confirmed=confirmed)


def _completed(status: RemoteStatus, tool: RemoteAgentTool, most_bytes: int) -> Rest:
    size = len(encode(status.output))
    if size > most_bytes:
        return _invalid(f"its result has {size} bytes, but at most {most_bytes} are stored")
    try:
        output = tool.check_output(status.output, {}).content
    except ToolOutputError as problem:
        return _invalid(str(problem)[:ERROR_CHARACTERS])
    return Rest(status="completed", reason="completed", output=output, told=True, confirmed=True)


def _invalid(error: str) -> Rest:
    return Rest(status="failed", reason=OUTPUT_INVALID, error=error, told=True, confirmed=True)
