"""Texts that an embedder refused: a janitor asks for them once a day, and not in each of its rounds."""

from hashlib import sha256

from helix_agents.domain.memories import MemoryRecord

ASKED_AGAIN_MS = 24 * 60 * 60 * 1000
"""After how long a refused text is tried again: an embedder's limits may have changed by then."""

MOST_REFUSED = 10_000
"""How many texts are noted. Of more, the oldest are forgotten, and tried again sooner."""


class RefusedTexts:
    """The texts that one embedder refused lately, as far as this process knows."""

    def __init__(self) -> None:
        self._until: dict[bytes, int] = {}

    def has(self, memory: MemoryRecord, now_ms: int) -> bool:
        """Whether this text was refused, and is not to be tried again yet."""
        until = self._until.get(_mark(memory))
        return until is not None and now_ms < until

    def add(self, memory: MemoryRecord, now_ms: int) -> None:
        """Note that this text was refused just now."""
        mark = _mark(memory)
        self._until.pop(mark, None)
        self._until[mark] = now_ms + ASKED_AGAIN_MS
        if len(self._until) > MOST_REFUSED:
            del self._until[next(iter(self._until))]


def _mark(memory: MemoryRecord) -> bytes:
    # A new text of a memory is another one, and no memory's text is kept here.
    return sha256("\x1f".join((memory.entity, memory.id, memory.text)).encode()).digest()
