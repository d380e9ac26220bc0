"""Audit rows in a chain: each row's hash covers its number, its content and the hash before it.

A chain alone shows that a row was edited, moved or removed. It cannot show that its end was cut off, or that all of it
was rewritten; for that, signed checkpoints are kept in a different place than the rows. Neither shows changes to rows
after the last checkpoint, or anything done by someone who holds both the rows and the signing key.
"""

import hashlib
from collections.abc import Mapping
from typing import Literal

import msgspec

from helix_agents.domain.errors import UnstorableValueError
from helix_agents.domain.records import JSON, Record, check_json

_ROW = b"helix-agents/audit-row/v1"
_GENESIS = b"helix-agents/audit-genesis/v1"
_canonical = msgspec.json.Encoder(order="sorted")


class AuditRow(Record):
    """One row. `entry` is kept as the text that was hashed: a store that reformats JSON would break the chain."""

    seq: int
    entry: str
    previous: str
    hash: str


class AuditCheckpoint(Record):
    """What a holder of the key saw: at row `seq` the chain had this head."""

    store_id: str
    seq: int
    head: str
    created_at: str
    key: str = ""
    signature: str = ""


FindingKind = Literal["edited", "deleted", "reordered", "cut_tail", "rewritten", "bad_checkpoint"]


class AuditFinding(Record):
    """Something wrong, and where: from row `seq` to row `last_seq`."""

    kind: FindingKind
    seq: int
    last_seq: int
    sentence: str


def genesis(store_id: str) -> str:
    """What the first row of a store follows; it differs for every store."""
    return hashlib.sha256(_GENESIS + store_id.encode()).hexdigest()


def entry_text(entry: Mapping[str, JSON]) -> str:
    """The entry as JSON with sorted names and no spaces: equal entries give equal texts.

    Raises:
        UnstorableValueError: it contains something that has no JSON form.
    """
    content = dict(entry)
    try:
        check_json(content, "audit entry")
        return _canonical.encode(content).decode()
    except (TypeError, ValueError, RecursionError) as problem:
        raise UnstorableValueError("audit entry", str(problem)) from problem


def next_row(previous_seq: int, previous_hash: str, entry: str) -> AuditRow:
    """The row that follows; after 0 and the store's genesis, the first row."""
    seq = previous_seq + 1
    return AuditRow(seq=seq, entry=entry, previous=previous_hash, hash=row_hash(seq, previous_hash, entry))


def row_hash(seq: int, previous: str, entry: str) -> str:
    """SHA-256 over the row's number, the hash before it and its text, framed so that no two rows share their bytes."""
    content = entry.encode("utf-8", "surrogatepass")
    # Whatever a store contains is hashed, even what `next_row` would never write.
    place = b"%s\n%d\n%s\n%d\n" % (_ROW, seq, previous.encode("utf-8", "surrogatepass"), len(content))
    return hashlib.sha256(place + content).hexdigest()
