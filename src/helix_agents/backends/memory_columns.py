"""How a memory is laid out in table columns, the same in every database."""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any

from helix_agents.domain.memories import EntityId, MemoryRecord
from helix_agents.domain.records import decode_json, encode

MEMORY = "entity, id, source, text, metadata, session_id, version, created_at, updated_at, embedded_by"
"""The columns of a memory, in the order of `memory_of`."""


def memory_of(row: Sequence[Any]) -> MemoryRecord:
    """A memory from its columns."""
    entity, memory_id, source, text, metadata, session_id, version, created_at, updated_at, embedded_by = row
    return MemoryRecord(
        id=memory_id,
        entity=entity,
        source=source,
        text=text,
        metadata=decode_json(metadata),
        session_id=session_id,
        version=version,
        created_at=created_at,
        updated_at=updated_at,
        embedded_by=embedded_by or None,
    )


def columns_of(memory: MemoryRecord) -> tuple[Any, ...]:
    """A memory as its columns."""
    return (
        memory.entity,
        memory.id,
        memory.source,
        memory.text,
        encode(memory.metadata).decode(),
        memory.session_id,
        memory.version,
        memory.created_at,
        memory.updated_at,
        memory.embedded_by or "",
    )


def in_scope(words: Iterable[str], namespace: str, entity: EntityId) -> list[str]:
    """Words prefixed with their namespace and entity, for an index that covers all entities.

    A search must still check whom its hits belong to, because two entities may get the same prefix.
    """
    scope = sha256(encode([namespace, entity])).hexdigest()[:12]
    return [f"{scope}{word}" for word in words]
