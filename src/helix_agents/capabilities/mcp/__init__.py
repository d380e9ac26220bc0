"""The capabilities as an MCP server; needs the extra `mcp`."""

from helix_agents.capabilities.mcp.serving import serve_http, serve_stdio
from helix_agents.capabilities.mcp.tools import call_tool, tool_definitions

__all__ = ["call_tool", "serve_http", "serve_stdio", "tool_definitions"]
