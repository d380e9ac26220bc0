"""The effect of a restore on one key: the value comes back, and the counters continue."""

from collections.abc import Iterable, Sequence

import msgspec

from helix_agents.domain.entries import Change, Entry, EntryEvent, Put, Remove
from helix_agents.domain.entry_plan import Plan


def restore_key(plan: Plan, current: Entry | None, staged: Sequence[Entry], keep_versions: int) -> Entry | None:
    """Plan one key: `staged` are its versions in the backup, oldest first. Returns the row that it has afterwards.

    A key that is not in the backup is removed. A key that is unchanged since is left alone. Any other key gets a
    version higher than all that this store has given it, so that no earlier reader can mistake the old value for the
    new.
    """
    wanted = staged[-1] if staged else None
    if wanted is None or wanted.value is None:
        return _without_value(plan, current, wanted)
    if current is not None and (current.version, current.value) == (wanted.version, wanted.value):
        return current
    known = current.version if current is not None else 0
    version = wanted.version if wanted.version > known else known + 1
    older = list(staged[:-1]) + ([wanted] if version != wanted.version else [])
    older = older[max(0, len(older) - (keep_versions - 1)) :]
    row = msgspec.structs.replace(
        wanted, version=version, revision=plan.revision, history_bytes=sum(each.size for each in older)
    )
    place = (row.scope, row.key)
    plan.dropped.add(place)
    plan.versions.extend(older)
    plan.entries[place] = row
    _tell(plan, row)
    return row


def _without_value(plan: Plan, current: Entry | None, wanted: Entry | None) -> Entry | None:
    known = current or wanted
    if known is None:
        return None
    version = max(each.version for each in (current, wanted) if each is not None)
    gone = msgspec.structs.replace(
        known,
        version=version,
        revision=plan.revision,
        value=None,
        size=0,
        history_bytes=0,
        updated_at=plan.at,
        owner=plan.owner,
    )
    place = (gone.scope, gone.key)
    plan.dropped.add(place)
    plan.entries[place] = gone
    if current is not None and current.value is not None:
        _tell(plan, gone)
    return gone


def _tell(plan: Plan, row: Entry) -> None:
    plan.events.append(
        EntryEvent(
            revision=plan.revision,
            position=len(plan.events),
            scope=row.scope,
            key=row.key,
            version=row.version,
            operation="restore",
            owner=plan.owner,
            at=plan.at,
            size=row.size,
        )
    )


def restored_at(versions: Sequence[Entry], mark: int) -> Entry | None:
    """The version that a session had at one of its own versions, out of all versions of a key; None if it had none
    yet."""
    known = [each for each in versions if each.mark is not None and each.mark <= mark]
    return max(known, key=lambda each: each.version, default=None)


def rewound(scope: str, versions: Iterable[Entry], to: int) -> list[Change]:
    """The changes that give a session's keys the values they had at one of its versions; `versions` are all that are
    kept."""
    by_key: dict[str, list[Entry]] = {}
    for entry in versions:
        by_key.setdefault(entry.key, []).append(entry)
    changes: list[Change] = []
    for key, known in sorted(by_key.items()):
        then, present = restored_at(known, to), max(known, key=lambda each: each.version)
        value = then.value if then is not None else None
        if value == present.value:
            continue
        if value is None:
            changes.append(Remove(scope=scope, key=key, keep_versions=None))
        else:
            changes.append(Put(scope=scope, key=key, value=value, keep_versions=None))
    return changes
