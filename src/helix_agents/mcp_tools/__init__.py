"""Tools of MCP servers: known from a catalogue that was taken once, called over a connection that opens by itself."""

from helix_agents.mcp_tools.server import MCPToolServer

__all__ = ["MCPToolServer"]
