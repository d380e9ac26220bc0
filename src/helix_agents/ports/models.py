"""Models by name: the prefix before the colon says which provider opens them."""

from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Any

from helix_agents.domain.errors import UnknownModelError
from helix_agents.ports.llm import LLMAdapter, OpenModel

ENTRY_POINTS = "helix_agents.models"


def open_model(name: str, **options: Any) -> LLMAdapter:
    """Open the model with a name such as `anthropic:claude-sonnet-4-5`. This makes no network request.

    `options` are passed to the provider as they are. The providers that come with this library take `api_key` and
    `base_url`, and without them read the environment as the provider's own client does.

    Raises:
        UnknownModelError: no installed provider has this prefix; third-party providers register theirs by an entry
            point.
        MissingExtraError: the provider needs an optional dependency that is not installed.
    """
    prefix, _, model = name.partition(":")
    found = entry_points(group=ENTRY_POINTS, name=prefix) if model else ()
    if not found:
        known = tuple(sorted(entry_points(group=ENTRY_POINTS).names))
        [meant] = get_close_matches(prefix, known, n=1) or [None]
        raise UnknownModelError(name, known, meant)
    opener: OpenModel = next(iter(found)).load()
    return opener(name, **options)
