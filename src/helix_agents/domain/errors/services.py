"""Errors of services other than models and stores: durable engines, remote agents, MCP servers, skills, workspaces."""

from helix_agents.domain.errors.root import HelixError


class RuntimeUnavailableError(HelixError):
    """The server of a durable engine did not answer. Runs that were started are kept in the store."""

    code = "runtime_unavailable"
    retryable = True
    engine: str
    address: str
    reason: str

    def __str__(self) -> str:
        return f"{self.engine} at {self.address} is not answering: {self.reason}. Check the address and the server."


class RemoteAgentError(HelixError):
    """The service behind a remote sub-agent did not do what was asked of it."""

    code = "remote_agent_error"
    url: str


class RemoteUnavailableError(RemoteAgentError):
    """The service does not answer, or asks the caller to try again later."""

    code = "remote_unavailable"
    retryable = True
    reason: str

    def __str__(self) -> str:
        return f"The agent service at {self.url} does not answer: {self.reason}."


class RemoteRefusedError(RemoteAgentError):
    """The service refused a request. It would refuse the same request again."""

    code = "remote_refused"
    status: int
    refusal: str
    detail: str

    def __str__(self) -> str:
        return f"The agent service at {self.url} refused the request ({self.status} {self.refusal}): {self.detail}"


class RemoteProtocolError(RemoteAgentError):
    """The service sent something that an agent server never sends, or more than is accepted."""

    code = "remote_protocol"
    reason: str

    def __str__(self) -> str:
        return f"The agent service at {self.url} does not follow the protocol: {self.reason}."


class RemoteSubAgentLostError(RemoteAgentError):
    """The outcome of a remote sub-agent can no longer be found out."""

    code = "framework_subagent_lost"
    session_id: str
    cause: str

    def __str__(self) -> str:
        return (
            f"Remote sub-agent {self.session_id!r} at {self.url} is lost ({self.cause}): it is unknown what it has "
            "done, or whether it is still running."
        )


class RemoteSubAgentClientToolUnsupportedError(RemoteAgentError):
    """A remote sub-agent waits for an answer, but its service accepts none."""

    code = "client-tool-unsupported"
    session_id: str

    def __str__(self) -> str:
        return (
            f"Remote sub-agent {self.session_id!r} waits for an answer, but the transport to the service at {self.url} "
            "cannot send one; use a transport that can, or an agent without client tools and approvals."
        )


class MCPServerError(HelixError):
    """An MCP server did not do what was asked of it."""

    code = "mcp_server_error"
    server: str
    reason: str


class MCPUnavailableError(MCPServerError):
    """The server does not answer, cannot be started, or has stopped."""

    code = "mcp_unavailable"
    retryable = True

    def __str__(self) -> str:
        return f"MCP server {self.server!r} does not answer: {self.reason}."


class MCPRefusedError(MCPServerError):
    """The server refused a request. It would refuse the same request again."""

    code = "mcp_refused"

    def __str__(self) -> str:
        return f"MCP server {self.server!r} refused the request: {self.reason}"


class MCPUnauthorizedError(MCPRefusedError):
    """The server does not accept the credentials: they are missing, wrong, or have expired."""

    code = "mcp_unauthorized"


class MCPProtocolError(MCPServerError):
    """The server sent something that an MCP server never sends, or speaks no supported version of the protocol."""

    code = "mcp_protocol"

    def __str__(self) -> str:
        return f"MCP server {self.server!r} does not follow the protocol: {self.reason}."


class SkillsError(HelixError):
    """Skills cannot be listed or fetched."""

    code = "skills_error"


class SkillsUnavailableError(SkillsError):
    """An agent's skills could not be listed, so its model was not called. A retry lists them again."""

    code = "skills_unavailable"
    retryable = True
    agent: str
    reason: str

    def __str__(self) -> str:
        return f"The skills of agent {self.agent!r} cannot be listed: {self.reason}"


class SkillSourceError(SkillsError):
    """The source of an entry in a skills manifest does not provide what the entry says."""

    code = "skill_source"
    entry: str
    reason: str

    def __str__(self) -> str:
        return f"Skills {self.entry!r} cannot be fetched: {self.reason}."


class WorkspaceError(HelixError):
    """Something is wrong with a workspace, or with a file in it."""

    code = "workspace_error"


class WorkspaceFailedError(WorkspaceError):
    """A session's workspace is not available from its provider. Everything the session has done so far is stored."""

    code = "workspace_failed"
    retryable = True
    workspace: str
    reason: str

    def __str__(self) -> str:
        return f"Workspace {self.workspace!r} is not available: {self.reason}"


class WorkspaceFileError(WorkspaceError):
    """A file or folder of a workspace cannot be read, or cannot be changed this way. Nothing was changed."""

    code = "workspace_file"
    path: str
    problem: str

    def __str__(self) -> str:
        return f"{self.path!r}: {self.problem}"
