"""Turns texts into vectors, so that they can be compared by meaning."""

from collections.abc import Sequence
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Any, Literal, Protocol, TypeAlias

from helix_agents.domain.errors import UnknownModelError

ENTRY_POINTS = "helix_agents.embedders"

EmbeddingPurpose: TypeAlias = Literal["document", "query"]
"""Whether a text is stored or is a query; some embedders treat the two differently."""


class EmbeddingAdapter(Protocol):
    """An embedder. `name` stands for everything that makes its vectors comparable: model, version and dimensions."""

    @property
    def name(self) -> str:
        """The name its vectors are stored under; vectors with different names are never compared."""
        ...

    async def embed(self, texts: Sequence[str], *, purpose: EmbeddingPurpose) -> Sequence[Sequence[float]]:
        """A vector for each text, all of the same length.

        Raises:
            ModelError: it failed; the error says whether asking again may help.
        """
        ...


class OpenEmbedder(Protocol):
    """What an embedder's entry point provides under its prefix."""

    def __call__(self, name: str, **options: Any) -> EmbeddingAdapter: ...


def open_embedder(name: str, **options: Any) -> EmbeddingAdapter:
    """Open the embedder with a name such as `openai:text-embedding-3-small`. This makes no network request.

    `options` are passed to the provider as they are. The providers that come with this library take `api_key`,
    `base_url` and `dimensions`, and without them behave like the provider's own client.

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
    opener: OpenEmbedder = next(iter(found)).load()
    return opener(name, **options)
