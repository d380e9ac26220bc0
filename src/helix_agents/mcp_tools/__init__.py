"""Tools of MCP servers: known from a stored catalogue, called over a connection that opens by itself."""

from helix_agents.mcp_tools.server import MCPToolServer

__all__ = ["MCPToolServer"]
