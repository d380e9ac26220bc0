"""What a task says, as chunks: the texts of its artifacts, numbered so that every reconnection continues them."""

from typing import Any
from zlib import crc32

from helix_agents.domain.chunks import StepDiscarded, StreamChunk, TextDelta
from helix_agents.ports.remote_agents import RemoteSession
from helix_agents.server.a2a.protocol import AgentTask, Artifact, ArtifactUpdate

# More characters than any task says; and how many values the check of them has. Numbers stay exact in JavaScript.
_SPAN = 100_000_000
_CHECKS = 4096
_MOST_VERSIONS = 8


class Telling:
    """Turns a task's artifacts into chunks, each piece of a text once.

    The protocol has no numbers, so a chunk's number is made of the count of characters up to its end, over all
    artifacts in their order, and a check of these characters, by which a reconnection finds out whether they still
    hold. When an agent changes what it has said, everything is withdrawn and said anew, under numbers that are higher.
    An agent that does so again and again is put right at the end.
    """

    def __init__(self, session: RemoteSession, after: int) -> None:
        self._header: dict[str, Any] = {
            "session_id": session.session_id,
            "run_id": session.session_id,
            "agent_type": session.agent,
        }
        place, self._check = divmod(after, _CHECKS)
        self._version, self._told = divmod(place, _SPAN)
        self._sum = 0
        self._texts: dict[str, list[str]] = {}
        self._is_new = True
        self._changes = 0
        self._held = False

    def whole(self, task: AgentTask) -> list[StreamChunk]:
        """What the task as a whole adds to what was said."""
        before = "".join(piece for pieces in self._texts.values() for piece in pieces)
        self._texts = {each.artifact_id: [text_of(each)] for each in task.artifacts or ()}
        said = "".join(pieces[0] for pieces in self._texts.values())
        fits = self._continues(said) if self._is_new else said.startswith(before)
        self._is_new = False
        if not fits:
            return self._changed()
        return self._rest_after(self._told) if not self._held else []

    def piece(self, update: ArtifactUpdate) -> list[StreamChunk]:
        """What one update adds."""
        name, text = update.artifact.artifact_id, text_of(update.artifact)
        is_blind, self._is_new = self._is_new and self._told > 0, False
        known = self._texts.get(name)
        if known is None:
            self._texts[name] = [text]
            return self._changed() if is_blind else self._say(len(self._texts), text)
        before = "".join(known) if not update.append else ""
        self._texts[name] = [*known, text] if update.append else [text]
        if not text.startswith(before) or (name != next(reversed(self._texts)) and text != before):
            return self._changed()
        return self._say(len(self._texts), text[len(before) :])

    def end(self, task: AgentTask) -> list[StreamChunk]:
        """What is still to be put right when the task rests."""
        chunks = self.whole(task)
        return self._anew() if self._held else chunks

    def _say(self, step: int, text: str) -> list[StreamChunk]:
        if not text or self._held:
            return []
        self._told += len(text)
        self._sum = crc32(text.encode(), self._sum)
        return [TextDelta(**self._header, step=step, delta=text, sequence=self._number())]

    def _number(self) -> int:
        return (self._version * _SPAN + self._told) * _CHECKS + self._sum % _CHECKS

    def _continues(self, said: str) -> bool:
        """Whether a text continues what was said before this connection."""
        self._sum = crc32(said[: self._told].encode())
        return len(said) >= self._told and self._sum % _CHECKS == self._check

    def _rest_after(self, told: int) -> list[StreamChunk]:
        chunks: list[StreamChunk] = []
        passed = 0
        for step, pieces in enumerate(self._texts.values(), 1):
            text = "".join(pieces)
            chunks += self._say(step, text[max(told - passed, 0) :])
            passed += len(text)
        return chunks

    def _changed(self) -> list[StreamChunk]:
        self._changes += 1
        self._held = self._changes > _MOST_VERSIONS
        return [] if self._held else self._anew()

    def _anew(self) -> list[StreamChunk]:
        self._held = False
        self._version, self._told, self._sum = self._version + 1, 0, 0
        withdrawn = StepDiscarded(**self._header, step=1, from_sequence=0, to_sequence=0, sequence=self._number())
        return [withdrawn, *self._rest_after(0)]


def text_of(artifact: Artifact) -> str:
    """The words of an artifact."""
    return "".join(part.text for part in artifact.parts or () if part.text is not None)
