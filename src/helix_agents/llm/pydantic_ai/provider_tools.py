"""Tools that a provider runs itself: how it is asked for them, and what is shown of their calls."""

from collections.abc import Sequence
from typing import Any, cast

from pydantic_ai.messages import NativeToolReturnPart
from pydantic_ai.native_tools import (
    AbstractNativeTool,
    CodeExecutionTool,
    FileSearchTool,
    MCPServerTool,
    WebFetchTool,
    WebSearchTool,
    WebSearchUserLocation,
)
from pydantic_core import to_jsonable_python

from helix_agents.domain.records import JSON
from helix_agents.llm.pydantic_ai.wording import mended_value
from helix_agents.ports.provider_tools import (
    CodeExecution,
    FileSearch,
    ProviderMCP,
    ProviderTool,
    UserLocation,
    WebFetch,
    WebSearch,
)


def native_tool(tool: ProviderTool) -> AbstractNativeTool:
    """The tool in Pydantic AI's format."""
    match tool:
        case WebSearch():
            return WebSearchTool(
                max_uses=tool.max_uses,
                allowed_domains=_list(tool.allowed_domains),
                blocked_domains=_list(tool.blocked_domains),
                user_location=None if tool.user_location is None else _location(tool.user_location),
                search_context_size=tool.context_size or "medium",
            )
        case WebFetch():
            return WebFetchTool(
                max_uses=tool.max_uses,
                allowed_domains=_list(tool.allowed_domains),
                blocked_domains=_list(tool.blocked_domains),
                max_content_tokens=tool.max_content_tokens,
            )
        case CodeExecution():
            return CodeExecutionTool()
        case FileSearch():
            return FileSearchTool(file_store_ids=list(tool.stores))
        case ProviderMCP():
            return MCPServerTool(
                id=tool.label,
                url=tool.url,
                authorization_token=tool.authorization,
                description=tool.description,
                allowed_tools=_list(tool.allowed_tools),
                headers=tool.headers,
            )
        case _:
            raise TypeError(f"{type(tool).__name__} is not a tool of a provider that this adapter knows")


def shown(content: Any) -> JSON:
    """What can be shown of a result: all of it, except what only the provider can read, and the bytes of files."""
    return _shown(stored(content))


def stored(value: Any) -> JSON:
    """A value of a provider as JSON."""
    return mended_value(to_jsonable_python(value, serialize_unknown=True))


def failed(part: NativeToolReturnPart) -> bool:
    """Whether the provider's tool failed, which every provider says in its own way. Code that failed is a result."""
    if part.outcome != "success":
        return True
    match part.content:
        case {"error_code": str()} | {"is_error": True} | {"status": "failed" | "incomplete"}:
            return True
        case {"error": error}:
            return error is not None
        case _:
            return False


def _shown(value: JSON) -> JSON:
    if isinstance(value, list):
        return [_shown(each) for each in cast("list[JSON]", value)]
    if not isinstance(value, dict):
        return value
    known = cast("dict[str, JSON]", value)
    hidden = {"data"} if known.get("type") == "base64" else set[str]()
    return {
        name: _shown(each) for name, each in known.items() if name not in hidden and not name.startswith("encrypted_")
    }


def _list(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else list(names)


def _location(place: UserLocation) -> WebSearchUserLocation:
    known = {name: getattr(place, name) for name in place.__struct_fields__}
    return cast("WebSearchUserLocation", {name: value for name, value in known.items() if value is not None})
