"""`state.backup.*`."""

import asyncio
from pathlib import Path
from typing import cast

from helix_agents.capabilities.backups import BEFORE_RESTORE, DAMAGED, Backups, Known, Manifest, agents_in
from helix_agents.capabilities.calls import Call
from helix_agents.capabilities.files import free_bytes, kept_if_known, names_in
from helix_agents.capabilities.restores import begin_restore, give_up_restore
from helix_agents.capabilities.scopes import BACKUPS, SHARED, agent_scope
from helix_agents.capabilities.vault import copy_backup
from helix_agents.domain.capability_errors import ApprovalPending, DecryptionFailed, InvalidInput, IoError
from helix_agents.domain.entries import Entry, RestoreEntries
from helix_agents.domain.errors import BackupDamagedError
from helix_agents.domain.records import JSON

NOTHING_FOR = "{agent!r} has no persistent state."


async def check_create(call: Call) -> None:
    """Check for an unlocked vault, an agent that has data, and room on the disk."""
    backups = _backups(call)
    folder = backups.folder
    await backups.vault.require_unlocked()
    await _check_agent(call)
    sizes = [(await call.store.usage(scope)).bytes for scope in await backups.scopes_for(call.inputs["agent"])]
    free = await asyncio.to_thread(free_bytes, folder)
    if free < 2 * sum(sizes):
        raise IoError(f"{free} bytes are free, and {2 * sum(sizes)} may be needed.", {"free": free})


async def preview_create(call: Call) -> dict[str, JSON]:
    """What would go into the backup."""
    scopes = await _backups(call).scopes_for(call.inputs["agent"])
    usages = [await call.store.usage(scope) for scope in scopes]
    return {
        "agents": list[JSON](agents_in(scopes)),
        "shared": SHARED in scopes,
        "keys": sum(usage.keys for usage in usages),
        "bytes": sum(usage.bytes for usage in usages),
    }


async def create(call: Call) -> dict[str, JSON]:
    """Write the file, then the row that registers it."""
    known = await call.remembered()
    if known is not None:
        return known
    backups = _backups(call)
    made = await backups.create(call.inputs["agent"])
    answer: dict[str, JSON] = {
        "backup_id": made.backup_id,
        "created_at": made.row.created_at,
        "file_size_bytes": made.row.file_size_bytes,
        "scope": made.row.scope,
    }
    async with kept_if_known(call.store, BACKUPS, made.backup_id, made.path):
        await call.commit(backups.registration(made), result=answer, audit={"sha256": made.row.sha256})
    await backups.retire(call.caller.agent, made)
    return answer


async def list_backups(call: Call) -> dict[str, JSON]:
    """The registered backups, newest first; a file that is gone is reported as missing."""
    backups = _backups(call)
    known = [each for each in await backups.list_known() if _may_ask_for(call, each)]
    present = await asyncio.to_thread(names_in, backups.folder) if known else set[str]()
    shown: list[JSON] = []
    for each in known:
        row = {
            "backup_id": each.backup_id,
            "created_at": each.row.created_at,
            "scope": each.row.scope,
            "file_size_bytes": each.row.file_size_bytes,
            "reason": each.row.reason,
        }
        shown.append(row if each.path.name in present else {**row, "missing": True})
    return {"backups": shown, "count": len(shown)}


async def check_restore(call: Call) -> None:
    """Check that the backup exists, the vault is unlocked, the file is the one that was shown, and the agent is in it.

    Whether it is the file that was shown is checked before whether it is the file that was written: anything else that
    is put in its place, whatever is recorded about it, is not what was approved.
    """
    backups = _backups(call)
    known = await backups.find(call.inputs["backup_id"])
    await backups.vault.require_unlocked()
    found = await backups.hash_of(known)
    _check_shown(call, found)
    if found != known.row.sha256:
        raise DecryptionFailed(DAMAGED, {})
    agent = call.inputs["agent"]
    if agent is not None and known.row.scope not in ("full", f"agent:{agent}"):
        raise InvalidInput(f"This backup is of {known.row.scope}, not of {agent!r}.", {"agent": agent})
    if agent is None:
        _check_whose(call, known)


async def preview_restore(call: Call) -> dict[str, JSON]:
    """Whose state would be replaced, and how much of it differs, found by reading the whole backup."""
    backups = _backups(call)
    known = await backups.find(call.inputs["backup_id"])
    scopes: list[str] = []
    differs: dict[str, dict[str, int]] = {}
    unseen: dict[str, set[str]] = {}
    last: Entry | None = None
    async for part in backups.rows(known.path):
        if isinstance(part, Manifest):
            scopes = _restored_scopes(call, part)
            for scope in scopes:
                differs[scope] = {"added": 0, "changed": 0, "removed": 0}
                page = await call.store.list_entries(scope, limit=call.limits.keys)
                unseen[scope] = {entry.key for entry in page.items}
            continue
        # The newest row of a key is its last one, which may be in the next batch.
        for entry in part:
            if last is not None and (last.scope, last.key) != (entry.scope, entry.key):
                await _compare(call, last, differs, unseen)
            last = entry
    if last is not None:
        await _compare(call, last, differs, unseen)
    for scope, left in unseen.items():
        differs[scope]["removed"] += len(left)
    untouched = [agent for agent in agents_in(await backups.scopes_for(None)) if agent_scope(agent) not in scopes]
    return {
        "backup_id": known.backup_id,
        "created_at": known.row.created_at,
        "sha256": known.row.sha256,
        "agents": list[JSON](agents_in(scopes)),
        "shared": SHARED in scopes,
        "keys": {scope: dict[str, JSON](counts) for scope, counts in differs.items()},
        "agents_untouched": list[JSON](untouched),
    }


async def restore(call: Call) -> dict[str, JSON]:
    """Check everything, stage it, save the present state, and swap in one transaction."""
    done = await call.remembered()
    if done is not None:
        return done
    backups = _backups(call)
    known = await backups.find(call.inputs["backup_id"])
    _check_shown(call, known.row.sha256)
    restore_id = call.ids.new("restore")
    ended = await begin_restore(call.store, restore_id, call.caller.agent)
    scopes: list[str] = []
    try:
        async for part in backups.rows(known.path, sha256=known.row.sha256):
            if isinstance(part, Manifest):
                scopes = _restored_scopes(call, part)
                await call.store.stage_restore(restore_id, [])
            else:
                await call.store.stage_restore(restore_id, [row for row in part if row.scope in scopes])
        before = await backups.create(call.inputs["agent"], reason=BEFORE_RESTORE)
        answer: dict[str, JSON] = {
            "restored": True,
            "agents_restored": list[JSON](agents_in(scopes)),
            "shared_state_restored": SHARED in scopes,
            "pre_restore_backup_id": before.backup_id,
        }
        async with kept_if_known(call.store, BACKUPS, before.backup_id, before.path):
            await call.store.restore(
                RestoreEntries(
                    restore_id=restore_id,
                    scopes=tuple(scopes),
                    owner=call.caller.agent,
                    keep_versions=call.limits.versions,
                    changes=(backups.registration(before), *call.attached(answer), ended),
                    audit=(call.audit_line("done", restored=list[JSON](scopes), sha256=known.row.sha256),),
                )
            )
    except BaseException:
        await give_up_restore(call.store, restore_id)
        raise
    call.audited = True
    return answer


async def check_export(call: Call) -> None:
    """Check that the backup exists, the caller may ask for it, and the destination is allowed."""
    _check_whose(call, await _backups(call).find(call.inputs["backup_id"]))
    if "\0" in call.inputs["path"]:
        raise IoError("No path has a NUL character in it.", {"path": call.inputs["path"]})
    if not call.settings.export_roots:
        raise IoError("No folder for exports is set up; an operator lists them.", {"path": call.inputs["path"]})


async def preview_export(call: Call) -> dict[str, JSON]:
    """Whose state would leave, and where the file would really be."""
    known = await _backups(call).find(call.inputs["backup_id"])
    target = await asyncio.to_thread(_target, call.inputs["path"], known.path.name)
    return {
        "backup_id": known.backup_id,
        "scope": known.row.scope,
        "resolved_path": target,
        "bytes": known.row.file_size_bytes,
        "sha256": known.row.sha256,
    }


async def export(call: Call) -> dict[str, JSON]:
    """Copy the encrypted file; the vault may stay locked."""
    done = await call.remembered()
    if done is not None:
        return done
    backups = _backups(call)
    known = await backups.find(call.inputs["backup_id"])
    _check_shown(call, await backups.hash_of(known))
    if call.approval is not None:
        target = await asyncio.to_thread(_target, call.inputs["path"], known.path.name)
        shown = _preview_of(call).get("resolved_path", target)
        if shown != target:
            raise IoError(
                "The path leads somewhere else than it did when it was approved.", {"path": call.inputs["path"]}
            )
    roots = call.settings.export_roots
    try:
        copied = await copy_backup(known.path, call.inputs["path"], roots=roots, sha256=known.row.sha256)
    except BackupDamagedError as problem:
        raise IoError(
            f"The file of {known.backup_id} is not what was written; export another backup.",
            {"backup_id": known.backup_id},
        ) from problem
    answer: dict[str, JSON] = {"exported_path": copied.path, "size_bytes": copied.size_bytes}
    await call.commit(result=answer, audit={"sha256": copied.sha256})
    return answer


def _backups(call: Call) -> Backups:
    return Backups(call.store, call.settings)


async def _check_agent(call: Call) -> None:
    agent = call.inputs["agent"]
    if agent is not None and not (await call.store.usage(agent_scope(agent))).keys:
        raise InvalidInput(NOTHING_FOR.format(agent=agent), {"agent": agent})


def _may_ask_for(call: Call, known: Known) -> bool:
    """A backup of another agent is only for agents that the policy lists, and for operators."""
    listed = (call.caller.agent, *call.settings.policy.other_agents.get(call.caller.agent, ()))
    return call.caller.is_operator or all(agent in listed for agent in agents_in([known.row.scope]))


def _check_whose(call: Call, known: Known) -> None:
    if not _may_ask_for(call, known):
        [agent] = agents_in([known.row.scope])
        raise InvalidInput(f"This backup is of another agent, {agent!r}.", {"agent": agent})


def _restored_scopes(call: Call, manifest: Manifest) -> list[str]:
    for scope in manifest.scopes:
        # A file from elsewhere may claim anything; approvals and other rows of the capabilities are in no backup.
        if scope != SHARED and not agents_in([scope]):
            raise InvalidInput(f"This backup holds {scope!r}, which is never restored.", {"scope": scope})
    agent = call.inputs["agent"]
    if agent is None:
        return list(manifest.scopes)
    if agent_scope(agent) not in manifest.scopes:
        raise InvalidInput(f"This backup has nothing of {agent!r}.", {"agent": agent})
    return [agent_scope(agent)]


async def _compare(call: Call, entry: Entry, differs: dict[str, dict[str, int]], unseen: dict[str, set[str]]) -> None:
    if entry.scope not in differs or entry.value is None:
        return
    found = await call.store.find(entry.scope, entry.key)
    unseen[entry.scope].discard(entry.key)
    if found is None:
        differs[entry.scope]["added"] += 1
    elif found.value != entry.value:
        differs[entry.scope]["changed"] += 1


def _check_shown(call: Call, sha256: str) -> None:
    """An approval is for the file that was shown: another file under the same id needs another approval."""
    if call.approval is None or call.caller.is_operator:
        return
    if _preview_of(call).get("sha256") != sha256:
        raise ApprovalPending(
            "What was approved is not what would be used now; call it again to request a new approval.", {}
        )


def _preview_of(call: Call) -> dict[str, JSON]:
    shown = call.approval.preview if call.approval is not None else None
    return cast("dict[str, JSON]", shown) if isinstance(shown, dict) else {}


def _target(path: str, name: str) -> str:
    """The file that a path stands for, with every link followed."""
    found = Path(path)
    return str((found / name if found.is_dir() else found).resolve())
