"""Resources of a server: two tools with which a model lists and reads them."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from helix_agents.agent.context import ToolContext
from helix_agents.agent.durations import Duration, optional_milliseconds
from helix_agents.agent.outcomes import ApprovalPredicate
from helix_agents.domain.messages import Part, Text
from helix_agents.domain.records import JSON
from helix_agents.mcp_tools.connections import Connections
from helix_agents.mcp_tools.credentials import RunHeaders, headers_of
from helix_agents.mcp_tools.schemas import SchemaInput
from helix_agents.mcp_tools.tools import MCPTool, failing_as_a_tool, tool_name

if TYPE_CHECKING:
    import mcp_types as types

    from helix_agents.mcp_tools.protocol import Session

_CURSOR: dict[str, JSON] = {"type": "string", "description": "For more: the next_cursor of the page before."}
_URI: dict[str, JSON] = {"type": "string", "description": "The address of the resource, from the list."}

Ask = Callable[["Session", Mapping[str, Any]], Awaitable[JSON | Sequence[Part]]]


def resource_tools(
    server: str,
    connections: Connections,
    run_headers: RunHeaders | None,
    require_approval: bool | ApprovalPredicate,
    timeout: Duration | None,
) -> tuple[MCPTool, ...]:
    """The tools. They are the same for every server, and none of its own words is in their names or descriptions."""

    def made(name: str, description: str, properties: dict[str, JSON], required: list[JSON], ask: Ask) -> MCPTool:
        called = tool_name(server, name)
        schema: dict[str, JSON] = {"type": "object", "properties": properties, "required": required}

        async def run(ctx: ToolContext[Any, Any], arguments: Mapping[str, JSON]) -> JSON | Sequence[Part]:
            with failing_as_a_tool(server, name):
                fresh = None if run_headers is None else partial(headers_of, server, run_headers, ctx)
                return await connections.read(lambda session: ask(session, arguments), fresh)

        return MCPTool(
            name=called,
            description=description,
            input=SchemaInput({**schema, "additionalProperties": False}),
            function=run,
            timeout_ms=optional_milliseconds(timeout, f"Tool {called!r}", "timeout"),
            effect="repeatable",
            require_approval=require_approval,
            connections=connections,
        )

    about = f"List the resources of {server}: files, records and the like, by their addresses."
    return (
        made("list_resources", about, {"cursor": _CURSOR}, [], _list),
        made("read_resource", f"Read a resource of {server}.", {"uri": _URI}, ["uri"], _read),
    )


async def _list(session: "Session", arguments: Mapping[str, Any]) -> JSON:
    page, templates = await session.resources(arguments.get("cursor"))
    told: dict[str, JSON] = {"resources": [_about(each, each.uri) for each in page.resources]}
    if templates:
        # An address with {names} in it, which are to be filled in.
        told["templates"] = [_about(each, each.uri_template) for each in templates]
    if page.next_cursor is not None:
        told["next_cursor"] = page.next_cursor
    return told


def _about(offered: "types.Resource | types.ResourceTemplate", uri: str) -> JSON:
    about = {"uri": uri, "name": offered.name, "description": offered.description, "type": offered.mime_type}
    return {key: value for key, value in about.items() if value is not None}


async def _read(session: "Session", arguments: Mapping[str, Any]) -> JSON | Sequence[Part]:
    """The text of a resource; or its parts, if it has pictures or files, or if there are several."""
    # Loaded with the connection: it needs the protocol's library.
    from helix_agents.mcp_tools.results import contents_of

    contents = (await session.read(arguments["uri"])).contents
    parts = [contents_of(each) for each in contents]
    if len(parts) == 1:
        return parts[0].text if isinstance(parts[0], Text) else parts
    return [said for each, part in zip(contents, parts, strict=True) for said in (Text(text=f"{each.uri}:"), part)]
