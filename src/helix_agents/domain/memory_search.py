"""Which memories answer a query: an exact comparison with those of one entity, and two rankings combined into one."""

import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import nlargest
from operator import mul
from typing import NamedTuple

from helix_agents.domain.memories import MemoryId, MemoryRecord, NearMemory
from helix_agents.domain.memory_words import words_of
from helix_agents.domain.records import Record

# How much the first places of a ranking outweigh the later ones; the usual value when rankings are combined.
_RANK = 60


class MemoryHit(Record):
    """A memory that answers a query, by words that both contain or by its meaning, if that was compared."""

    memory: MemoryRecord
    by_words: bool
    similarity: float | None = None


class Looked(NamedTuple):
    """A memory, and what is needed to find it."""

    memory: MemoryRecord
    words: frozenset[str]
    vector: bytes | None = None


def look_at(memory: MemoryRecord, vector: bytes | None = None) -> Looked:
    """What an exact comparison needs to know about a memory."""
    return Looked(memory, frozenset(words_of(memory.text)), vector)


def by_words(rows: Sequence[Looked], words: Iterable[str], limit: int) -> tuple[MemoryRecord, ...]:
    """Memories that contain at least one of the words; the more and the rarer the better, then the newest first."""
    asked = set(words)
    weights = {word: math.log(1 + len(rows) / n) for word in asked if (n := sum(word in row.words for row in rows))}
    scored = (
        (sum(weights[word] for word in asked & row.words), row.memory.updated_at, row.memory.id, row)
        for row in rows
        if not asked.isdisjoint(row.words)
    )
    return tuple(best[3].memory for best in nlargest(limit, scored, key=lambda each: each[:3]))


def by_meaning(rows: Iterable[Looked], vector: bytes, embedded_by: str, limit: int) -> tuple[NearMemory, ...]:
    """The memories read by this embedder whose meaning is nearest to a vector."""
    asked = numbers(vector)
    near = (
        NearMemory(memory=row.memory, similarity=_product(asked, row.vector))
        for row in rows
        if row.vector is not None and row.memory.embedded_by == embedded_by and len(row.vector) == len(vector)
    )
    return tuple(nlargest(limit, near, key=lambda each: (each.similarity, each.memory.updated_at, each.memory.id)))


def similarity(one: bytes, other: bytes) -> float:
    """How near two vectors of one length are."""
    return _product(numbers(one), other)


def numbers(vector: bytes) -> "array[float]":
    """A stored vector."""
    found = array("f")
    found.frombytes(vector)
    return found


def unit_vector(values: Sequence[float]) -> bytes:
    """A vector as it is stored: 32-bit numbers, of length 1, so that a product tells how near two vectors are."""
    length = math.sqrt(math.fsum(value * value for value in values))
    return array("f", [value / length for value in values] if length else [0.0] * len(values)).tobytes()


def put_together(
    worded: Sequence[MemoryRecord], near: Sequence[NearMemory], limit: int, least_similarity: float
) -> tuple[MemoryHit, ...]:
    """The best of both rankings. The same text is returned once, whichever sources it is from."""
    similarities: Mapping[MemoryId, float] = {each.memory.id: each.similarity for each in near}
    alike = [each.memory for each in near if each.similarity >= least_similarity]
    scores: dict[MemoryId, float] = {}
    found: dict[MemoryId, MemoryRecord] = {}
    for ranking in (worded, alike):
        for place, memory in enumerate(ranking, 1):
            found[memory.id] = memory
            scores[memory.id] = scores.get(memory.id, 0.0) + 1 / (_RANK + place)
    with_words = {memory.id for memory in worded}
    best = sorted(found.values(), key=lambda each: (scores[each.id], each.updated_at, each.id), reverse=True)
    once = {" ".join(each.text.split()).casefold(): each for each in reversed(best)}
    hits = (each for each in best if once[" ".join(each.text.split()).casefold()] is each)
    return tuple(
        MemoryHit(memory=each, by_words=each.id in with_words, similarity=similarities.get(each.id))
        for each, _ in zip(hits, range(limit), strict=False)
    )


def _product(one: "array[float]", other: bytes) -> float:
    return _sum_of_products(one, numbers(other))


def _one_by_one(one: "array[float]", other: "array[float]") -> float:
    return sum(map(mul, one, other))


# Python 3.12 and later have a function that does it in C.
_sum_of_products: Callable[["array[float]", "array[float]"], float] = getattr(math, "sumprod", _one_by_one)
