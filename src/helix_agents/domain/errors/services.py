"""Errors of what we speak to beside models and stores: durable engines, remote agents, MCP servers, and plugs."""

from helix_agents.domain.errors.root import HelixError


class RuntimeUnavailableError(HelixError):
    """The server of a durable engine did not answer; runs that were started rest in the store."""

    code = "runtime_unavailable"
    retryable = True
    engine: str
    address: str
    reason: str

    def __str__(self) -> str:
        return f"{self.engine} at {self.address} is not answering: {self.reason}. Check address and server."


class RemoteAgentError(HelixError):
    """The service behind a remote sub-agent did not do what was asked of it."""

    code = "remote_agent_error"
    url: str


class RemoteUnavailableError(RemoteAgentError):
    """The service does not answer, or asks to be asked again later."""

    code = "remote_unavailable"
    retryable = True
    reason: str

    def __str__(self) -> str:
        return f"The agent service at {self.url} does not answer: {self.reason}."


class RemoteRefusedError(RemoteAgentError):
    """The service refused a request; the same request again is refused again."""

    code = "remote_refused"
    status: int
    refusal: str
    detail: str

    def __str__(self) -> str:
        return f"The agent service at {self.url} refused ({self.status} {self.refusal}): {self.detail}"


class RemoteProtocolError(RemoteAgentError):
    """The service answered something that no agent server says, or more than is taken from one."""

    code = "remote_protocol"
    reason: str

    def __str__(self) -> str:
        return f"The agent service at {self.url} does not keep to the protocol: {self.reason}."


class RemoteSubAgentLostError(RemoteAgentError):
    """A remote sub-agent whose end nobody will learn."""

    code = "framework_subagent_lost"
    session_id: str
    cause: str

    def __str__(self) -> str:
        return (
            f"Remote sub-agent {self.session_id!r} at {self.url} is lost ({self.cause}): what it did so far, "
            "or whether it still works, is not known here."
        )


class RemoteSubAgentClientToolUnsupportedError(RemoteAgentError):
    """A remote sub-agent waits for somebody, and its service takes no answers."""

    code = "client-tool-unsupported"
    session_id: str

    def __str__(self) -> str:
        return (
            f"Remote sub-agent {self.session_id!r} waits for an answer, but the service at {self.url} takes none "
            "through its transport; use one that routes answers, or give that agent no client tools and approvals."
        )


class MCPServerError(HelixError):
    """An MCP server did not do what was asked of it."""

    code = "mcp_server_error"
    server: str
    reason: str


class MCPUnavailableError(MCPServerError):
    """The server does not answer, cannot be started, or went away."""

    code = "mcp_unavailable"
    retryable = True

    def __str__(self) -> str:
        return f"MCP server {self.server!r} does not answer: {self.reason}."


class MCPRefusedError(MCPServerError):
    """The server refused a request; the same request again is refused again."""

    code = "mcp_refused"

    def __str__(self) -> str:
        return f"MCP server {self.server!r} refused: {self.reason}"


class MCPProtocolError(MCPServerError):
    """The server answered something that no MCP server says, or speaks no version of the protocol known here."""

    code = "mcp_protocol"

    def __str__(self) -> str:
        return f"MCP server {self.server!r} does not keep to the protocol: {self.reason}."


class SkillsError(HelixError):
    """The skills of an agent cannot be listed."""

    code = "skills_error"


class SkillsUnavailableError(SkillsError):
    """An agent's skills could not be listed, so its model was asked nothing; a retry asks for them again."""

    code = "skills_unavailable"
    retryable = True
    agent: str
    reason: str

    def __str__(self) -> str:
        return f"The skills of agent {self.agent!r} cannot be listed: {self.reason}"


class SkillSourceError(SkillsError):
    """The source of an entry in a manifest of skills does not give what it should."""

    code = "skill_source"
    entry: str
    reason: str

    def __str__(self) -> str:
        return f"Skills {self.entry!r} cannot be fetched: {self.reason}."


class WorkspaceError(HelixError):
    """Something is wrong with a workspace, or with a file in it."""

    code = "workspace_error"


class WorkspaceFailedError(WorkspaceError):
    """A session's workspace is not to be had from its provider; what the session did so far is stored."""

    code = "workspace_failed"
    retryable = True
    workspace: str
    reason: str

    def __str__(self) -> str:
        return f"Workspace {self.workspace!r} is not to be had: {self.reason}"


class WorkspaceFileError(WorkspaceError):
    """A file or folder of a workspace cannot be had, or cannot be changed like this; nothing was changed."""

    code = "workspace_file"
    path: str
    problem: str

    def __str__(self) -> str:
        return f"{self.path!r}: {self.problem}"
