"""Tools that a model's provider runs itself, inside its own reply."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from helix_agents.domain.records import Record

ContextSize: TypeAlias = Literal["low", "medium", "high"]


class ProviderTool(Record):
    """A tool of the provider. Settings that limit it are kept, or the model is refused; see `HINTS` for the others."""


class UserLocation(Record):
    """Roughly where the user is: a search prefers results for that place. `country` has two letters, such as `DE`."""

    city: str | None = None
    region: str | None = None
    country: str | None = None
    timezone: str | None = None


class WebSearch(ProviderTool):
    """The provider searches the web: `WebSearch(max_uses=3, allowed_domains=["example.org"])`.

    Args:
        max_uses: How many searches one request to the model may make. Anthropic only.
        allowed_domains: The only domains to search. Anthropic and OpenAI.
        blocked_domains: Domains that are never searched. Anthropic and OpenAI; Anthropic takes either list, not both.
        user_location: Where the user is. A provider that does not ask for it is not told.
        context_size: How much of what is found the model reads. A provider that has no such setting is not told.
    """

    max_uses: int | None = None
    allowed_domains: Sequence[str] | None = None
    blocked_domains: Sequence[str] | None = None
    user_location: UserLocation | None = None
    context_size: ContextSize | None = None


class WebFetch(ProviderTool):
    """The provider reads web pages whose address is in the conversation: `WebFetch(allowed_domains=["example.org"])`.

    Args:
        max_uses: How many pages one request to the model may read. Anthropic only.
        allowed_domains: The only domains to read from. Anthropic only.
        blocked_domains: Domains that are never read from. Anthropic only, which takes either list, not both.
        max_content_tokens: How much of one page the model reads. Anthropic only.
    """

    max_uses: int | None = None
    allowed_domains: Sequence[str] | None = None
    blocked_domains: Sequence[str] | None = None
    max_content_tokens: int | None = None


class CodeExecution(ProviderTool):
    """The provider runs code that the model writes, in a sandbox of its own. The sandbox cannot reach your process."""


class FileSearch(ProviderTool):
    """The provider searches files that you have put into a store there. `stores` are the ids it gave these stores."""

    stores: Sequence[str]


class ProviderMCP(ProviderTool):
    """The provider calls the tools of an MCP server, which it has to reach over the internet.

    These calls do not pass through your process: nobody approves them, and they are not in the ledger. Where that
    matters, use `MCPToolServer`.

    Args:
        label: What the server is called in the conversation.
        url: Where it is.
        authorization: A token that the provider sends to it. It is not part of the record's `repr`, and never stored.
        allowed_tools: The only tools the model may call. None means all of them.
        headers: HTTP headers that the provider sends to it. OpenAI only.
        description: What the server is for. A provider that has no such setting is not told.
    """

    label: str
    url: str
    authorization: str | None = None
    allowed_tools: Sequence[str] | None = None
    headers: dict[str, str] | None = None
    description: str | None = None

    def __repr__(self) -> str:
        return f"ProviderMCP(label={self.label!r}, url={self.url!r})"


HINTS = frozenset({"user_location", "context_size", "description"})
"""Settings that only improve an answer: a model that does not know them goes without."""


@runtime_checkable
class RunsProviderTools(Protocol):
    """What an adapter has in addition if its model's provider runs tools itself."""

    def refuse_provider_tools(self, tools: Sequence[ProviderTool], *, beside_tools: bool) -> str | None:
        """Why these tools cannot be used with this model, as a sentence that says with which they can; None if they can
        be. `beside_tools` says that the agent has tools of its own as well. This makes no network request."""
        ...


def refusal_of(model: Any, tools: Sequence[ProviderTool], *, beside_tools: bool) -> str | None:
    """Why a model cannot be used with these tools; None if it can."""
    if not tools:
        return None
    if not isinstance(model, RunsProviderTools):
        name, used = model.name, ", ".join(type(each).__name__ for each in tools)
        return f"the adapter of model {name!r} does not run tools of a provider, such as {used}; see RunsProviderTools"
    return model.refuse_provider_tools(tools, beside_tools=beside_tools)
