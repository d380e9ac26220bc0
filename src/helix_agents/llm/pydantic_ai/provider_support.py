"""Which tools the providers run, and with which settings: known without loading a provider's library."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from helix_agents.ports.provider_tools import (
    HINTS,
    CodeExecution,
    FileSearch,
    ProviderMCP,
    ProviderTool,
    WebFetch,
    WebSearch,
)

Kinds: TypeAlias = Mapping[type[ProviderTool], frozenset[str]]

_DOMAINS = ("allowed_domains", "blocked_domains")


def _settings(*names: str) -> frozenset[str]:
    return frozenset(names)


@dataclass(frozen=True, kw_only=True)
class Support:
    """What one provider runs: for each tool, the settings that it keeps.

    `only` is what the name of a model has to contain, and `alone` the beginnings of names of models that run no tools
    beside the agent's own. `one_list` says that allowed and blocked domains exclude each other.
    """

    kinds: Kinds
    only: str = ""
    alone: tuple[str, ...] = ()
    one_list: bool = False


ANTHROPIC = Support(
    kinds={
        WebSearch: _settings("max_uses", *_DOMAINS, "user_location"),
        WebFetch: _settings("max_uses", *_DOMAINS, "max_content_tokens"),
        CodeExecution: _settings(),
        ProviderMCP: _settings("label", "url", "authorization", "allowed_tools"),
    },
    one_list=True,
)
OPENAI = Support(
    kinds={
        WebSearch: _settings(*_DOMAINS, "user_location", "context_size"),
        CodeExecution: _settings(),
        FileSearch: _settings("stores"),
        ProviderMCP: _settings("label", "url", "authorization", "allowed_tools", "headers", "description"),
    }
)
OPENAI_CHAT = Support(kinds={WebSearch: _settings("user_location", "context_size")}, only="-search-preview")
NOTHING = Support(kinds={})
GOOGLE = Support(
    kinds={WebSearch: _settings(), WebFetch: _settings(), CodeExecution: _settings(), FileSearch: _settings("stores")},
    alone=("gemini-1", "gemini-2", "gemini-pro", "gemma"),
)

PROVIDERS: Mapping[str, Support] = {
    "anthropic": ANTHROPIC,
    "openai": OPENAI,
    "openai-chat": OPENAI_CHAT,
    "google": GOOGLE,
    "google-cloud": GOOGLE,
}


def refusal(model: str, support: Support, tools: Sequence[ProviderTool], *, beside_tools: bool) -> str | None:
    """Why a model cannot be used with these tools, and with which models they can be; None if it can."""
    _, _, name = model.partition(":")
    if beside_tools and name.startswith(support.alone):
        used = " and ".join(type(each).__name__ for each in tools)
        return f"model {model!r} does not run {used} beside tools of your own; newer Gemini models do"
    return next(filter(None, (_refusal(model, support, name, each) for each in tools)), None)


def _refusal(model: str, support: Support, name: str, tool: ProviderTool) -> str | None:
    kind = type(tool).__name__
    if type(tool) not in support.kinds or support.only not in name:
        return f"the provider of model {model!r} does not run {kind}; {_able(tool, with_settings=False)}"
    given = _given(tool) - HINTS
    if lost := sorted(given - support.kinds[type(tool)]):
        settings = " and ".join(lost)
        return f"the provider of model {model!r} does not keep {settings} of {kind}; {_able(tool, with_settings=True)}"
    if support.one_list and given.issuperset(_DOMAINS):
        return f"the provider of model {model!r} takes allowed_domains or blocked_domains of {kind}, not both"
    return None


def _able(tool: ProviderTool, *, with_settings: bool) -> str:
    """Which models run this tool, as it is or with other settings."""
    needed = _given(tool) - HINTS if with_settings else frozenset[str]()
    able = [
        f"{provider}:…{support.only}"
        for provider, support in PROVIDERS.items()
        if type(tool) in support.kinds and needed <= support.kinds[type(tool)]
    ]
    return f"models that do: {', '.join(able)}" if able else "no model does; leave it out"


def _given(tool: ProviderTool) -> frozenset[str]:
    """The settings that were given."""
    values: dict[str, Any] = {name: getattr(tool, name) for name in tool.__struct_fields__}
    return frozenset(name for name, value in values.items() if value is not None)
