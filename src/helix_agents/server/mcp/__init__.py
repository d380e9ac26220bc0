"""MCP over the same sessions: every agent is a tool, and a call of it is a turn that cannot be lost."""
