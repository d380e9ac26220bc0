"""Agents of another service as tools: each call is a conversation there, whose result is the call's result."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from helix_agents.agent.availability import AvailabilityPredicate
from helix_agents.agent.client_tools import InputType
from helix_agents.agent.durations import Duration, milliseconds, optional_milliseconds
from helix_agents.agent.names import SUBAGENT, check_name
from helix_agents.agent.sub_agents import Delegation, DelegationTool, runs_as_an_agent
from helix_agents.agent.tools import output_adapter
from helix_agents.domain.errors import HelixError, ToolOutputError
from helix_agents.domain.parts import Content
from helix_agents.domain.records import JSON, decode_json
from helix_agents.ports.remote_agents import RemoteAgentTransport


@dataclass(frozen=True)
class RemoteLimits:
    """How much is accepted from one remote child. If a limit is exceeded, the call fails and the child is stopped."""

    chunks: int = 200_000
    bytes: int = 256_000_000
    pending: int = 64
    input_bytes: int = 1_000_000


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RemoteAgentTool(DelegationTool):
    """A tool whose calls an agent of another service does."""

    remote_agent: str
    transport: RemoteAgentTransport
    lost_after_ms: int
    limits: RemoteLimits = RemoteLimits()

    @property
    def child_type(self) -> str:
        return self.remote_agent

    def check_output(self, result: Any, given: Mapping[str, JSON]) -> Content:
        """As for any tool; a text that is JSON of the declared type counts as such, because many agents only write."""
        try:
            return super().check_output(result, given)
        except ToolOutputError:
            if not isinstance(result, str):
                raise
            try:
                said = decode_json(result)
            except HelixError:
                said = None
            if not isinstance(said, dict | list):
                raise
        return super().check_output(said, given)


def remote_tool(
    transport: RemoteAgentTransport,
    agent: str,
    *,
    name: str | None,
    description: str,
    input: Any,
    output: Any,
    timeout: Duration | None,
    lost_after: Duration,
    limits: RemoteLimits | None,
    available: AvailabilityPredicate | None,
) -> RemoteAgentTool:
    """The tool that delegates to an agent behind a transport.

    Raises:
        DefinitionError: a name, an option, the input or the output cannot be used.
    """
    called = check_name("Remote agent", name or agent)
    tool = f"{SUBAGENT}{called}"[:64]
    subject = f"Tool {tool!r}"
    return RemoteAgentTool(
        name=tool,
        description=description,
        input=InputType(input or Delegation, subject),
        function=runs_as_an_agent,
        kind="agent",
        output=output_adapter(output, subject),
        timeout_ms=optional_milliseconds(timeout, subject, "timeout"),
        available=available,
        remote_agent=check_name("Remote agent", agent),
        transport=transport,
        lost_after_ms=milliseconds(lost_after, subject, "lost_after"),
        limits=limits or RemoteLimits(),
    )
