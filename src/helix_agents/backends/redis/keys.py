"""Where everything is stored: one cluster slot per session tree, one for the indexes of a namespace, one per lock."""

from functools import lru_cache
from typing import NamedTuple

DEFAULT_PREFIX = "helix"
LINE = "\x1f"
"""Joins ids inside a name; no id contains it, because ids are printable."""


def quoted(text: str) -> str:
    """The text in a form that is allowed in a key's hash tag: injective, and without the characters that end one."""
    return text.replace("%", "%25").replace("/", "%2F").replace("{", "%7B").replace("}", "%7D")


class Slot(NamedTuple):
    """Keys that share a hash tag, and so a slot; only such keys can change together."""

    prefix: str

    def key(self, kind: str, name: str = "") -> str:
        """The key of this kind and name. The name comes last, so it may contain anything."""
        return f"{self.prefix}{kind}:{name}"

    def session(self, session_id: str) -> str:
        """The session itself: its row, current run, stop and remembered answer. Its revision guards the next seven."""
        return self.key("s", session_id)

    def runs(self, session_id: str) -> str:
        """All runs of a session by id."""
        return self.key("r", session_id)

    def turns(self, session_id: str) -> str:
        """Run ids in the order of their turns."""
        return self.key("o", session_id)

    def checkpoints(self, session_id: str) -> str:
        """The session's checkpoints, oldest first."""
        return self.key("c", session_id)

    def refs(self, session_id: str) -> str:
        """References to children by child."""
        return self.key("f", session_id)

    def staging(self, session_id: str) -> str:
        """Staged changes by step and call."""
        return self.key("g", session_id)

    def effects(self, session_id: str) -> str:
        """The ledger by call."""
        return self.key("e", session_id)

    def queued(self, session_id: str) -> str:
        """Waiting turns by run."""
        return self.key("n", session_id)

    def taken(self, session_id: str) -> str:
        """By turn that waited, the run that took its messages in."""
        return self.key("k", session_id)

    def usage(self, session_id: str) -> str:
        """Usage by run, attempt, step and number."""
        return self.key("u", session_id)

    def usage_guard(self, session_id: str) -> str:
        """Guards usage that is recorded or deleted outside a step."""
        return self.key("v", session_id)

    def pending(self, root_session_id: str) -> str:
        """Open calls of a root's tree by call; its revision also guards the ended ones."""
        return self.key("p", root_session_id)

    def ended_calls(self, root_session_id: str) -> str:
        """Consumed and dropped calls, kept so that a repeated answer is recognised."""
        return self.key("q", root_session_id)

    @property
    def members(self) -> str:
        """Every session of this slot with its parent."""
        return self.key("t")

    @property
    def segments(self) -> str:
        """Every stretch of history of this slot."""
        return self.key("l")

    def messages(self, segment: str) -> str:
        """The messages of one stretch of history."""
        return self.key("m", segment)

    def states(self, segment: str) -> str:
        """The state writes of one stretch of history."""
        return self.key("w", segment)

    def place(self, name: str) -> str:
        """In the slot of a name: the slot that the session of that name is in, if not here."""
        return self.key("at", name)

    def barrier(self, claim: str) -> str:
        """Exists once a claim to create a session here has been revoked."""
        return self.key("x", claim)

    def stream(self, stream_id: str) -> str:
        """The head of a stream; its revision guards the chunks."""
        return self.key("h", stream_id)

    def chunks(self, stream_id: str) -> str:
        """The chunks of a stream, a Redis stream whose entry ids are our sequence numbers."""
        return self.key("b", stream_id)


class Keys(NamedTuple):
    """The keys of one namespace."""

    prefix: str
    namespace: str

    def slot(self, tag: str) -> Slot:
        """The slot of a tree, named after its first session."""
        return self._slot("tree", tag)

    def lock(self, name: str) -> Slot:
        """The slot of one lock."""
        return self._slot("lock", name)

    @property
    def indexes(self) -> Slot:
        """The slot of the index across sessions."""
        return self._slot("index", "")

    def channel(self, topic: str) -> str:
        """The channel on which a topic rings."""
        return f"{self.prefix}:bell/{quoted(self.namespace)}/{topic}"

    def _slot(self, kind: str, tag: str) -> Slot:
        return _slot(self.prefix, self.namespace, kind, tag)


@lru_cache(maxsize=4_096)
def _slot(prefix: str, namespace: str, kind: str, tag: str) -> Slot:
    return Slot(f"{prefix}:{{{kind}/{quoted(namespace)}/{quoted(tag)}}}:")
