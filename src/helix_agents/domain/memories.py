"""Memories: what is known about someone beyond one conversation, and what a write to it means."""

import math
from array import array
from datetime import UTC, datetime
from hashlib import sha256
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from helix_agents.domain.door import check_name, check_number
from helix_agents.domain.errors import InvalidInputError, MemoryChangedError, MemoryNotFoundError, UnstorableValueError
from helix_agents.domain.ids import SessionId, check_id
from helix_agents.domain.records import JSON, Record, check_json, check_record

MemoryId: TypeAlias = str
EntityId: TypeAlias = str
"""Who memories belong to: a user, a team, a customer. One entity's memories are never found by another."""

EmbeddingStatus: TypeAlias = Literal["pending", "complete"]

MOST_CHARACTERS = 8_000
"""The longest memory. A memory is a fact or two; longer texts are documents, and most embedders read no more at
once."""

MOST_METADATA_BYTES = 16_000

MOST_DIMENSIONS = 16_000
"""The longest vector; databases compare no longer ones."""


class MemoryRecord(Record):
    """One memory of an entity.

    `source` says where it comes from, such as the agent that saved it, and `session_id` from which conversation.
    `version` counts its changes. A search by its words finds it as soon as it is saved; a search by meaning finds it
    once `embedded_by` names the embedder that has read it, until its text changes.
    """

    id: MemoryId
    entity: EntityId
    source: str
    text: str
    metadata: dict[str, JSON] = {}
    session_id: SessionId | None = None
    version: int = 1
    created_at: int = 0
    updated_at: int = 0
    embedded_by: str | None = None

    @property
    def day(self) -> str:
        """The day since when its text is known, in UTC, because what is known about someone grows old."""
        return datetime.fromtimestamp(self.updated_at / 1000, UTC).date().isoformat()

    @property
    def embedding_status(self) -> EmbeddingStatus:
        """Whether a search by meaning can find it yet."""
        return "pending" if self.embedded_by is None else "complete"


class SaveMemory(Record):
    """A memory to keep. If its id already exists, it replaces the memory under that id."""

    id: MemoryId
    entity: EntityId
    source: str
    text: str
    metadata: dict[str, JSON] = {}
    session_id: SessionId | None = None


class SavedMemory(Record):
    """The result of a save: a memory was `created`, the one under its id `replaced`, or the same text was `known`."""

    outcome: Literal["created", "replaced", "known"]
    memory: MemoryRecord


class UpdateMemory(Record):
    """A change to one memory; fields that are None are unchanged. With `expected_version`, only if it is still
    current."""

    entity: EntityId
    id: MemoryId
    text: str | None = None
    metadata: dict[str, JSON] | None = None
    expected_version: int | None = None


class MemoryEmbedding(NamedTuple):
    """An embedder's vector for a memory's text. It is matched by the text itself, because versions start again with a
    memory that was deleted and saved anew."""

    entity: EntityId
    id: MemoryId
    text: str
    embedded_by: str
    vector: bytes


class NearMemory(Record):
    """A memory, and how near its meaning is: 1 is the same, 0 is unrelated."""

    memory: MemoryRecord
    similarity: float


class MemoryEntity(Record):
    """How many memories an entity has from one source."""

    entity: EntityId
    source: str
    memories: int


def digest_of(text: str) -> bytes:
    """Two memories of one source with the same digest have the same text, ignoring blanks and letter case."""
    return sha256(" ".join(text.split()).casefold().encode("utf-8", "surrogatepass")).digest()


def check_text(text: object) -> None:
    """Reject a text that cannot be a memory.

    Raises:
        InvalidInputError: it is empty, too long, or cannot be stored; the message says what to do.
    """
    if not isinstance(text, str):
        raise InvalidInputError("memory", f"its text is of type {type(text).__name__}")
    if not text.strip():
        raise InvalidInputError("memory", "its text is blank")
    if len(text) > MOST_CHARACTERS:
        problem = f"its text has {len(text)} characters, but at most {MOST_CHARACTERS} are kept; save only its facts"
        raise InvalidInputError("memory", problem)
    if "\0" in text:
        raise InvalidInputError("memory", "its text contains a null character")
    try:
        text.encode()
    except UnicodeEncodeError as problem:
        raise InvalidInputError("memory", f"its text is not valid Unicode: {problem.reason}") from problem


def check_metadata(metadata: object) -> None:
    """Reject metadata that a store could not return.

    Raises:
        UnstorableValueError, InvalidInputError: it is not a JSON object, or is too large.
    """
    if not isinstance(metadata, dict):
        raise UnstorableValueError("metadata of a memory", f"it is of type {type(metadata).__name__}, not a dict")
    check_json(metadata, "metadata of a memory")
    size = len(msgspec.json.encode(metadata))
    if size > MOST_METADATA_BYTES:
        raise InvalidInputError("memory", f"its metadata has {size} bytes, but at most {MOST_METADATA_BYTES} are kept")


def check_save(request: SaveMemory) -> None:
    """Check everything that comes with a new memory."""
    check_id(request.entity, "entity")
    check_id(request.id, "memory id")
    check_id(request.source, "source")
    if request.session_id is not None:
        check_id(request.session_id)
    check_text(request.text)
    check_metadata(request.metadata)
    check_record(request)


def check_update(request: UpdateMemory) -> None:
    """Check everything that comes with a change to a memory."""
    check_id(request.entity, "entity")
    check_id(request.id, "memory id")
    if request.text is not None:
        check_text(request.text)
    if request.metadata is not None:
        check_metadata(request.metadata)
    check_record(request)
    if request.expected_version is not None:
        check_number(request.expected_version, "version of a memory")


def check_embedding(embedding: MemoryEmbedding) -> None:
    """Check what an embedder returns."""
    check_id(embedding.entity, "entity")
    check_id(embedding.id, "memory id")
    check_text(embedding.text)
    check_name(embedding.embedded_by, "name of an embedder")
    if not embedding.embedded_by:
        raise InvalidInputError("embedding", "it does not say who made it")
    if not embedding.vector or len(embedding.vector) % 4:
        raise InvalidInputError("embedding", f"{len(embedding.vector)} bytes are not a vector of 32-bit numbers")
    values = array("f", embedding.vector)
    if len(values) > MOST_DIMENSIONS:
        raise InvalidInputError(
            "embedding", f"it has {len(values)} dimensions, but at most {MOST_DIMENSIONS} are compared"
        )
    if not all(map(math.isfinite, values)):
        raise InvalidInputError("embedding", "one of its values is not a number")


def plan_save(
    request: SaveMemory, *, under_id: MemoryRecord | None, same_text: MemoryRecord | None, now: int
) -> SavedMemory:
    """The result of a save, given what is stored: the memory under its id, and one of its source with the same text."""
    if under_id is not None:
        if under_id.text == request.text and under_id.metadata == request.metadata:
            return SavedMemory(outcome="known", memory=under_id)
        return SavedMemory(outcome="replaced", memory=_with(under_id, request.text, request.metadata, now))
    if same_text is not None:
        return SavedMemory(outcome="known", memory=same_text)
    memory = MemoryRecord(
        id=request.id,
        entity=request.entity,
        source=request.source,
        text=request.text,
        metadata=request.metadata,
        session_id=request.session_id,
        created_at=now,
        updated_at=now,
    )
    return SavedMemory(outcome="created", memory=memory)


def plan_update(request: UpdateMemory, stored: MemoryRecord | None, now: int) -> MemoryRecord:
    """The memory after a change; the same object if nothing changes.

    Raises:
        MemoryNotFoundError: the entity has no such memory.
        MemoryChangedError: it was changed since `expected_version`.
    """
    if stored is None:
        raise MemoryNotFoundError(request.entity, request.id)
    if request.expected_version is not None and request.expected_version != stored.version:
        raise MemoryChangedError(request.id, request.expected_version, stored.version)
    text = stored.text if request.text is None else request.text
    metadata = stored.metadata if request.metadata is None else request.metadata
    if text == stored.text and metadata == stored.metadata:
        return stored
    return _with(stored, text, metadata, now)


def fits(embedding: MemoryEmbedding, stored: MemoryRecord | None) -> bool:
    """Whether an embedding belongs to the stored text."""
    return stored is not None and stored.text == embedding.text


def _with(stored: MemoryRecord, text: str, metadata: dict[str, JSON], now: int) -> MemoryRecord:
    embedded_by = stored.embedded_by if text == stored.text else None
    return msgspec.structs.replace(
        stored,
        text=text,
        metadata=metadata,
        version=stored.version + 1,
        updated_at=max(now, stored.updated_at),
        embedded_by=embedded_by,
    )
