"""The memories of one entity, as rows in a slot of their own, and their entry in the index."""

from collections.abc import Iterable
from typing import Any

from helix_agents.backends.redis.index import MEMORIES, UNEMBEDDED, Entry, entry_id, gone
from helix_agents.backends.redis.keys import LINE, Slot
from helix_agents.backends.redis.transaction import Command, Known, Transaction
from helix_agents.domain.memories import EntityId, MemoryId, MemoryRecord, digest_of
from helix_agents.domain.records import Record, decode, encode


class Counts(Record):
    """How many memories an entity has, by source and by embedder; the empty name counts those without one."""

    sources: dict[str, int] = {}
    embedders: dict[str, int] = {}

    def count(self, memory: MemoryRecord, by: int) -> None:
        """Count a memory in or out."""
        for counts, name in ((self.sources, memory.source), (self.embedders, memory.embedded_by or "")):
            counts[name] = counts.get(name, 0) + by
            if not counts[name]:
                del counts[name]


def tag_of(entity: EntityId) -> str:
    """The slot of an entity's memories, shared with no session."""
    return f"memory/{entity}"


class MemoryKeys:
    """The keys of one entity's memories. The revision of `head` guards all of them."""

    def __init__(self, slot: Slot) -> None:
        self.head = slot.key("mh")
        self.rows = slot.key("mr")
        self.vectors = slot.key("mv")
        self.digests = slot.key("md")


def digest_field(source: str, text: str) -> bytes:
    """The field that records which memory had this text first."""
    return f"{source}{LINE}".encode() + digest_of(text)


def read_counts(keys: MemoryKeys) -> Command:
    """Reads the counts of an entity."""
    return ("HGET", keys.head, "counts")


def counts_of(reply: bytes | None) -> Counts:
    """The counts in the answer to `read_counts`."""
    return Counts() if reply is None else decode(reply, Counts)


async def load_counts(tx: Transaction, keys: MemoryKeys) -> Known[Counts]:
    """The counts of an entity; loading them guards all of its memories."""
    return await tx.load(keys.head, (read_counts(keys),), lambda replies: counts_of(replies[0]))


def memories_entry(entity: EntityId, counts: Counts, now: int) -> Entry:
    """The index entry of an entity."""
    name = entry_id("m", entity)
    if not counts.sources:
        return gone(name, now)
    orders = ((MEMORIES, 0.0), *(((UNEMBEDDED, 0.0),) if "" in counts.embedders else ()))
    return Entry(name, encode(counts), orders)


def put_row(tx: Transaction, keys: MemoryKeys, memory: MemoryRecord) -> None:
    """Store a memory."""
    tx.do("HSET", keys.rows, memory.id, encode(memory))


def save_counts(tx: Transaction, keys: MemoryKeys, known: Known[Counts], entity: EntityId) -> None:
    """Store the counts after a change and update the index; if no memory is left, remove everything of the entity."""
    tx.change(known)
    if known.value.sources:
        tx.do("HSET", keys.head, "counts", encode(known.value))
    else:
        for key in (keys.rows, keys.vectors, keys.digests, keys.head):
            tx.do("UNLINK", key)
    tx.index(keys.head, memories_entry(entity, known.value, tx.now), ("m", tx.tag, entity))


def pairs(reply: list[Any]) -> Iterable[tuple[MemoryId, bytes]]:
    """The pairs in an answer to HGETALL."""
    return ((reply[n].decode(), reply[n + 1]) for n in range(0, len(reply), 2))
