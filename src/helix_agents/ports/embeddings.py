"""What turns texts into vectors, so that they can be compared by what they mean."""

from collections.abc import Sequence
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Any, Literal, Protocol, TypeAlias

from helix_agents.domain.errors import UnknownModelError

ENTRY_POINTS = "helix_agents.embedders"

EmbeddingPurpose: TypeAlias = Literal["document", "query"]
"""Whether a text is kept, or asked with; some embedders read the two differently."""


class EmbeddingAdapter(Protocol):
    """An embedder. `name` stands for everything that makes its vectors comparable: model, version and dimensions."""

    @property
    def name(self) -> str:
        """What its vectors are known by; vectors of another name are never compared with them."""
        ...

    async def embed(self, texts: Sequence[str], *, purpose: EmbeddingPurpose) -> Sequence[Sequence[float]]:
        """A vector for each text, all of the same length.

        Raises:
            ModelError: it could not; says whether asking again may help.
        """
        ...


class OpenEmbedder(Protocol):
    """What an embedder's entry point provides under its prefix."""

    def __call__(self, name: str, **options: Any) -> EmbeddingAdapter: ...


def open_embedder(name: str, **options: Any) -> EmbeddingAdapter:
    """Open the embedder that a name such as `openai:text-embedding-3-small` means. Nothing is asked of the network.

    `options` go to the provider as they are; those that come with this library take `api_key`, `base_url` and
    `dimensions`, and without them do as the provider's own client does.

    Raises:
        UnknownModelError: no installed provider has this prefix; a third party's gets one by an entry point.
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
