"""A small MCP server over standard input and output; it could be anyone's, in any language."""

from mcp.server import MCPServer
from mcp_types import ToolAnnotations

server = MCPServer("library")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def search(topic: str) -> list[str]:
    """Find books about a topic."""
    return {"tides": ["The Moon", "Sea Breath"]}.get(topic, [])


@server.tool()
def borrow(title: str) -> str:
    """Borrow a book for four weeks."""
    return f"{title} is yours for four weeks"


if __name__ == "__main__":
    server.run()
