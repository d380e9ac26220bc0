"""An embedder without dependencies: texts that share words, or parts of words, get similar vectors."""

import math
import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from helix_agents.domain.errors import DefinitionError
from helix_agents.domain.memory_words import words_of
from helix_agents.ports.embeddings import EmbeddingAdapter, EmbeddingPurpose

DIMENSIONS = 256
_NAME = re.compile(r"hashing:([1-9][0-9]*)")


def open_hashing_embedder(name: str, **_: Any) -> "HashingEmbedder":
    """`hashing:256`, where the number is the dimensions.

    Raises:
        DefinitionError: it is not a number of dimensions.
    """
    read = _NAME.fullmatch(name)
    if read is None:
        raise DefinitionError(f"Embedder {name!r}", 'write "hashing:256", with the number of dimensions.')
    return HashingEmbedder(int(read[1]))


class HashingEmbedder(EmbeddingAdapter):
    """Vectors from the words of a text and every three letters in them, the same in every process.

    It knows nothing about meaning: it finds "colourful" for "colour", but not "red". For tests, and for programs that
    have no other embedder.
    """

    def __init__(self, dimensions: int = DIMENSIONS) -> None:
        if not 8 <= dimensions <= 16_000:
            raise DefinitionError("HashingEmbedder", f"dimensions={dimensions} has to be from 8 to 16000.")
        self._dimensions = dimensions

    @property
    def name(self) -> str:
        return f"hashing:{self._dimensions}"

    async def embed(self, texts: Sequence[str], *, purpose: EmbeddingPurpose) -> Sequence[Sequence[float]]:
        return [self._vector(text) for text in texts]

    def _vector(self, text: str) -> list[float]:
        vector = [0.0] * self._dimensions
        for word in words_of(text):
            self._add(vector, word, 1.0)
            edged = f"^{word}$"
            parts = [edged[n : n + 3] for n in range(len(edged) - 2)]
            for part in parts:
                self._add(vector, part, 1.0 / math.sqrt(len(parts)))
        return vector

    def _add(self, vector: list[float], feature: str, weight: float) -> None:
        number = int.from_bytes(blake2b(feature.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
        vector[(number >> 1) % self._dimensions] += weight if number & 1 else -weight
