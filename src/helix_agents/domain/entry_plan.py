"""The effect of a transaction on entries, decided once for every store: a store reads rows and writes the result."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from helix_agents.domain.capability_errors import InvalidInput, KeyNotFound, QuotaExceeded, VersionConflict
from helix_agents.domain.entries import (
    Change,
    Changed,
    Clear,
    Entry,
    EntryEvent,
    EntryOperation,
    EntryTransaction,
    Put,
    Remove,
    ScopeUsage,
    Transacted,
    weight,
)
from helix_agents.domain.records import JSON, Record, decode, encode

ONCE = "sys.once"
"""The scope that keeps the results of transactions that may be sent again."""

SHOWN_VALUE_BYTES = 4_096
LARGEST_SHOWN = 5


class Rows(Protocol):
    """What a plan needs from a store, within its transaction."""

    def find(self, scope: str, key: str) -> Entry | None:
        """The key's present row, even if it is a deletion."""
        ...

    def usage(self, scope: str) -> ScopeUsage:
        """What the scope holds."""
        ...

    def older(self, scope: str, key: str, up_to: int) -> int:
        """The weight of the kept older versions up to this one."""
        ...

    def living(self, scope: str) -> Sequence[Entry]:
        """Every key of the scope that exists."""
        ...

    def largest(self, scope: str, count: int) -> Sequence[Entry]:
        """The largest keys, including history."""
        ...


@dataclass
class Plan:
    """The rows to write, in any order: no two of them concern the same row.

    `forgotten` rows are removed altogether; `dropped` keys lose all older versions, `pruned` keys those up to a
    version. `erased` scopes come first: everything in them is removed, and then what the plan writes there is written.
    """

    revision: int
    at: int
    owner: str
    mark: int | None = None
    entries: dict[tuple[str, str], Entry] = field(default_factory=dict[tuple[str, str], Entry])
    versions: list[Entry] = field(default_factory=list[Entry])
    dropped: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    pruned: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    forgotten: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    erased: set[str] = field(default_factory=set[str])
    usages: dict[str, ScopeUsage] = field(default_factory=dict[str, ScopeUsage])
    events: list[EntryEvent] = field(default_factory=list[EntryEvent])
    results: list[Changed] = field(default_factory=list[Changed])

    @property
    def answer(self) -> Transacted:
        """The result for the caller."""
        return Transacted(revision=self.revision, at=self.at, results=tuple(self.results))


class Remembered(Record):
    """The first result of a transaction that may be sent again, and its request."""

    digest: str
    answer: Transacted


def digest_of(request: EntryTransaction) -> str:
    """What makes two transactions the same request."""
    if request.digest is not None:
        return request.digest
    return hashlib.sha256(encode(msgspec.structs.replace(request, audit=()))).hexdigest()


def first_answer(request: EntryTransaction, row: Entry | None) -> Transacted | None:
    """The result of an earlier identical request; None if this is the first.

    Raises:
        InvalidInput: the key was used for another request.
    """
    if row is None or row.value is None:
        return None
    remembered = decode(row.value, Remembered)
    if remembered.digest != digest_of(request):
        raise InvalidInput(
            "This idempotency key was used for another request; give every request a key of its own.",
            {"idempotency_key": request.once},
        )
    return msgspec.structs.replace(remembered.answer, repeated=True)


def next_revision(changes: Sequence[Change], head: int) -> int:
    """The revision of a transaction: only announced changes take a new one, so that watching causes no changes."""
    return head + any(change.announce for change in changes if not isinstance(change, Clear))


def plan_transaction(request: EntryTransaction, rows: Rows, *, revision: int, now: int) -> Plan:
    """Work out a transaction; refuses before anything is written.

    Raises:
        VersionConflict, KeyNotFound, QuotaExceeded: it is not possible.
    """
    plan = plan_changes(request.changes, rows, revision=revision, now=now, owner=request.owner)
    if request.once is not None:
        remembered = Remembered(digest=digest_of(request), answer=plan.answer)
        value = encode(remembered).decode()
        _put(plan, rows, Put(scope=ONCE, key=request.once, value=value))
    return plan


def plan_changes(
    changes: Sequence[Change], rows: Rows, *, revision: int, now: int, owner: str, mark: int | None = None
) -> Plan:
    """Work out changes, each of which sees the effects of those before it."""
    plan = Plan(revision=revision, at=now, owner=owner, mark=mark)
    for change in changes:
        match change:
            case Put():
                plan.results.append(_put(plan, rows, change))
            case Remove():
                plan.results.append(_remove(plan, rows, change))
            case Clear(scope=scope, forget=True):
                plan.results.append(_erase(plan, rows, scope))
            case Clear(scope=scope, keep_versions=keep):
                plan.results.append(_clear(plan, rows, scope, keep))
    return plan


def _put(plan: Plan, rows: Rows, change: Put) -> Changed:
    scope, key = change.scope, change.key
    before = _present(plan, rows, scope, key)
    _check_version(before, key, change.expected_version)
    lives = before is not None and before.value is not None
    version = 1 if before is None else before.version + 1
    size = weight(key, change.value)
    history, freed = _history(plan, rows, before, change.keep_versions, version)
    usage = _usage(plan, rows, scope)
    more = size - (before.size if before is not None else 0)
    if change.keep_versions is not None:
        # Where every version is kept, that is for the sake of a rewind, and is not charged to the caller.
        more += history - (before.history_bytes if before is not None else 0)
    after = ScopeUsage(
        scope=scope, keys=usage.keys + (0 if lives else 1), bytes=usage.bytes + more, revision=plan.revision
    )
    _check_quota(rows, change, usage, after)
    if before is not None:
        _keep_older(plan, before, change.keep_versions, freed)
    plan.usages[scope] = after
    plan.forgotten.discard((scope, key))
    plan.entries[scope, key] = Entry(
        scope=scope,
        key=key,
        version=version,
        revision=plan.revision,
        value=change.value,
        size=size,
        history_bytes=history,
        created_at=before.created_at if before is not None and lives else plan.at,
        updated_at=plan.at,
        owner=plan.owner,
        mark=plan.mark,
    )
    if change.announce:
        _tell(plan, scope, key, version, "put", size)
    return Changed(
        version=version,
        previous_version=before.version if before is not None and lives else 0,
        previous=before.value if before is not None else None,
    )


def _remove(plan: Plan, rows: Rows, change: Remove) -> Changed:
    scope, key = change.scope, change.key
    before = _present(plan, rows, scope, key)
    _check_version(before, key, change.expected_version)
    if before is None or before.value is None:
        if change.must_exist:
            raise KeyNotFound(f"There is no key {key!r}.", {"key": key, "reason": "key_unknown"})
        return Changed(version=before.version if before is not None else 0)
    # Where deletions are versions, this one has its own number; elsewhere the next value gets the next number.
    version = before.version + 1 if change.keep_versions is None else before.version
    usage = _usage(plan, rows, scope)
    history = before.history_bytes
    if change.keep_versions is None:
        _keep_older(plan, before, None, 0)
        history += before.size
    else:
        _drop_older(plan, scope, key)
        history = 0
    freed = before.size if change.keep_versions is None else before.size + before.history_bytes
    plan.usages[scope] = ScopeUsage(scope=scope, keys=usage.keys - 1, bytes=usage.bytes - freed, revision=plan.revision)
    if change.forget:
        plan.entries.pop((scope, key), None)
        plan.forgotten.add((scope, key))
    else:
        plan.entries[scope, key] = msgspec.structs.replace(
            before,
            version=version,
            revision=plan.revision,
            value=None,
            size=0,
            history_bytes=history,
            updated_at=plan.at,
            owner=plan.owner,
            mark=plan.mark,
        )
    if change.announce:
        _tell(plan, scope, key, version, "delete", 0)
    return Changed(version=version, previous_version=before.version, previous=before.value, removed=1)


def _clear(plan: Plan, rows: Rows, scope: str, keep_versions: int | None) -> Changed:
    stored = () if scope in plan.erased else rows.living(scope)
    keys = {entry.key for entry in stored} | {key for held, key in plan.entries if held == scope}
    removed = sum(
        _remove(plan, rows, Remove(scope=scope, key=key, keep_versions=keep_versions)).removed for key in sorted(keys)
    )
    return Changed(version=0, removed=removed)


def _erase(plan: Plan, rows: Rows, scope: str) -> Changed:
    removed = _usage(plan, rows, scope).keys
    for place in [place for place in plan.entries if place[0] == scope]:
        del plan.entries[place]
    plan.versions = [each for each in plan.versions if each.scope != scope]
    plan.usages.pop(scope, None)
    plan.erased.add(scope)
    return Changed(version=0, removed=removed)


def _present(plan: Plan, rows: Rows, scope: str, key: str) -> Entry | None:
    """The key as the changes before this one left it."""
    if (scope, key) in plan.entries:
        return plan.entries[scope, key]
    gone = scope in plan.erased or (scope, key) in plan.forgotten
    return None if gone else rows.find(scope, key)


def _usage(plan: Plan, rows: Rows, scope: str) -> ScopeUsage:
    if scope in plan.usages:
        return plan.usages[scope]
    return ScopeUsage(scope=scope) if scope in plan.erased else rows.usage(scope)


def _history(plan: Plan, rows: Rows, before: Entry | None, keep: int | None, version: int) -> tuple[int, int]:
    """The size of the kept older versions after a write, and the last version that is removed."""
    if before is None:
        return 0, 0
    if keep is None:
        return before.history_bytes + before.size, 0
    if keep <= 1:
        return 0, before.version
    last_gone = version - keep
    history = before.history_bytes + before.size
    if last_gone > 0:
        gone = _still_older(plan, rows, before.scope, before.key, last_gone)
        gone += sum(
            each.size
            for each in plan.versions
            if (each.scope, each.key) == (before.scope, before.key) and each.version <= last_gone
        )
        gone += before.size if before.version <= last_gone else 0
        history -= gone
    return history, max(last_gone, 0)


def _still_older(plan: Plan, rows: Rows, scope: str, key: str, up_to: int) -> int:
    """The size of older versions in the store that the changes before this one have left there."""
    if scope in plan.erased or (scope, key) in plan.dropped:
        return 0
    pruned = plan.pruned.get((scope, key), 0)
    return rows.older(scope, key, up_to) - (rows.older(scope, key, min(pruned, up_to)) if pruned else 0)


def _keep_older(plan: Plan, before: Entry, keep: int | None, freed: int) -> None:
    place = (before.scope, before.key)
    kept = keep is None or keep > 1
    # A deletion counts as a version only where every version is kept.
    if kept and (before.value is not None or keep is None):
        plan.versions.append(before)
    elif not kept:
        _drop_older(plan, *place)
    if freed:
        plan.pruned[place] = max(freed, plan.pruned.get(place, 0))
        plan.versions = [each for each in plan.versions if (each.scope, each.key) != place or each.version > freed]


def _drop_older(plan: Plan, scope: str, key: str) -> None:
    plan.dropped.add((scope, key))
    plan.versions = [each for each in plan.versions if (each.scope, each.key) != (scope, key)]


def _tell(plan: Plan, scope: str, key: str, version: int, operation: EntryOperation, size: int) -> None:
    plan.events.append(
        EntryEvent(
            revision=plan.revision,
            position=len(plan.events),
            scope=scope,
            key=key,
            version=version,
            operation=operation,
            owner=plan.owner,
            at=plan.at,
            size=size,
        )
    )


def _check_version(before: Entry | None, key: str, expected: int | None) -> None:
    if expected is None:
        return
    lives = before is not None and before.value is not None
    current = before.version if before is not None and lives else 0
    if expected == current:
        return
    context: dict[str, JSON] = {"key": key, "expected_version": expected, "current_version": current}
    if before is not None and lives:
        context |= {"owner_agent": before.owner, "updated_at": before.updated_at}
        if before.size <= SHOWN_VALUE_BYTES:
            context["current"] = before.value
    raise VersionConflict(
        f"Key {key!r} has version {current}, not {expected}: read it again and decide again.", context
    )


def _check_quota(rows: Rows, change: Put, before: ScopeUsage, after: ScopeUsage) -> None:
    over_bytes = change.limit_bytes is not None and after.bytes > change.limit_bytes and after.bytes > before.bytes
    over_keys = change.limit_keys is not None and after.keys > change.limit_keys and after.keys > before.keys
    if not (over_bytes or over_keys):
        return
    largest = rows.largest(change.scope, LARGEST_SHOWN)
    context = {
        "used": before.bytes,
        "limit": change.limit_bytes,
        "needed": after.bytes - before.bytes,
        "keys": before.keys,
        "limit_keys": change.limit_keys,
        "history_bytes": sum(entry.history_bytes for entry in largest),
        "largest_keys": [{"key": entry.key, "bytes": entry.size + entry.history_bytes} for entry in largest],
    }
    if over_bytes:
        sentence = (
            f"{change.key!r} needs {after.bytes - before.bytes} bytes more; {before.bytes} of {change.limit_bytes}"
            " are used, older versions included."
        )
    else:
        sentence = f"There are {before.keys} keys, and no more than {change.limit_keys} are allowed."
    raise QuotaExceeded(sentence, context)
