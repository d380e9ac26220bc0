"""What must hold for an agent to use tools of its model's provider, checked when it is defined."""

from collections.abc import Sequence
from typing import Any, cast, get_args

from helix_agents.agent.choices import check_choice, check_text, check_whole
from helix_agents.domain.errors import DefinitionError
from helix_agents.ports.provider_tools import (
    ContextSize,
    FileSearch,
    ProviderMCP,
    ProviderTool,
    UserLocation,
    WebFetch,
    WebSearch,
)


def check_provider_tools(given: Any, subject: str) -> None:
    """Reject anything that is not a list of provider tools, and tools that could not work.

    Raises:
        DefinitionError: says why and what to do.
    """
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise DefinitionError(subject, f"provider_tools={given!r} is not a list; write provider_tools=[WebSearch()].")
    seen: set[str] = set()
    for tool in cast("Sequence[Any]", given):
        if not isinstance(tool, ProviderTool):
            named = getattr(tool, "__name__", repr(tool))
            cure = "call it" if isinstance(tool, type) else "tools that run in your process belong in tools"
            raise DefinitionError(subject, f"{named} in provider_tools is not a provider tool; {cure}.")
        _check(tool, f"{type(tool).__name__} of {subject}")
        name = f"ProviderMCP {tool.label!r}" if isinstance(tool, ProviderMCP) else type(tool).__name__
        if name in seen:
            raise DefinitionError(subject, f"provider_tools has {name} twice.")
        seen.add(name)


def _check(tool: ProviderTool, subject: str) -> None:
    match tool:
        case WebSearch():
            _check_web_tool(tool, subject)
            if tool.context_size is not None:
                check_choice(subject, "context_size", tool.context_size, get_args(ContextSize))
            if tool.user_location is not None and not isinstance(cast("object", tool.user_location), UserLocation):
                raise DefinitionError(subject, f"user_location={tool.user_location!r} is not a UserLocation(city=…).")
        case WebFetch():
            _check_web_tool(tool, subject)
            if tool.max_content_tokens is not None:
                check_whole(subject, "max_content_tokens", tool.max_content_tokens, 1)
        case FileSearch():
            _check_words(subject, "stores", tool.stores)
        case ProviderMCP():
            check_text(subject, "label", tool.label)
            check_text(subject, "url", tool.url)
            if tool.allowed_tools is not None:
                _check_words(subject, "allowed_tools", tool.allowed_tools)
        case _:
            return


def _check_web_tool(tool: WebSearch | WebFetch, subject: str) -> None:
    if tool.max_uses is not None:
        check_whole(subject, "max_uses", tool.max_uses, 1)
    for option in ("allowed_domains", "blocked_domains"):
        if getattr(tool, option) is not None:
            _check_words(subject, option, getattr(tool, option))


def _check_words(subject: str, option: str, words: object) -> None:
    if isinstance(words, str) or not isinstance(words, Sequence) or not words:
        raise DefinitionError(subject, f"{option}={words!r} has to be a list with at least one name.")
    for word in cast("Sequence[object]", words):
        check_text(subject, option, word)
