"""The tool that delegates to an agent of other people."""

from collections.abc import Collection
from typing import Any

from helix_agents.agent.availability import AvailabilityPredicate
from helix_agents.agent.durations import Duration
from helix_agents.agent.headers import Headers
from helix_agents.agent.remote_agents import RemoteAgentTool, RemoteLimits, remote_tool
from helix_agents.domain.errors import DefinitionError
from helix_agents.server.remote_a2a.transport import A2ARemoteAgentTransport


def a2a_agent_tool(
    url: str | A2ARemoteAgentTransport,
    name: str,
    *,
    description: str,
    input: Any = None,
    output: Any = None,
    timeout: Duration | None = 3_600,
    lost_after: Duration = 300,
    limits: RemoteLimits | None = None,
    token: str | None = None,
    headers: Headers | None = None,
    origins: Collection[str] = (),
    available: AvailabilityPredicate | None = None,
) -> RemoteAgentTool:
    """Let an agent delegate to an agent of any framework that speaks A2A 1.0.

    The parent's stream shows what the agent says; what it asks can be answered at the root.

    Args:
        url: The agent's address, with its card at `/.well-known/agent-card.json` below it, or that of the card itself;
            or a transport to it.
        name: What the agent is called here: the tool is `subagent__<name>`.
        description: When to delegate, for the parent's model, which is not shown what the card says.
        input: A type whose fields the parent's model fills in; the agent gets them as JSON. Default: a `message`.
        output: The type that the result must have; otherwise the call fails with `tool_output_invalid`.
        timeout: How long the agent may work before its task is cancelled. Time spent waiting for people does not count.
        lost_after: How long to retry a server that does not respond before the task counts as lost.
        limits: Limits on what is accepted from one task.
        token: Sent as `Authorization: Bearer …`.
        headers: Sent with every request.
        origins: Other servers to which the card may send its callers, such as `https://api.example.com`.
        available: Decides before each model call whether the parent's model may delegate; see `tool`.

    Raises:
        DefinitionError: a name, an option, the input or the output cannot be used.
    """
    if isinstance(url, str):
        transport = A2ARemoteAgentTransport(url, token=token, headers=headers, origins=origins)
    elif token is None and headers is None and not origins:
        transport = url
    else:
        raise DefinitionError(
            f"A2A agent {name!r}", "a transport has its own token, headers and origins; pass them to the transport."
        )
    return remote_tool(
        transport,
        name,
        name=None,
        description=description,
        input=input,
        output=output,
        timeout=timeout,
        lost_after=lost_after,
        limits=limits,
        available=available,
    )
