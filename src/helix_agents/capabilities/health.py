"""The state of the system: disk, store, vault and quotas, each with a status."""

import asyncio

from helix_agents.capabilities.calls import Call
from helix_agents.capabilities.files import folder_of, free_bytes
from helix_agents.capabilities.scopes import SHARED
from helix_agents.domain.capability_errors import CapabilityError
from helix_agents.domain.errors import HelixError, VaultLockedError, VaultNotInitialisedError
from helix_agents.domain.records import JSON

STATUSES = ("ok", "degraded", "failing")
LITTLE_ROOM = 200_000_000
NO_ROOM = 10_000_000
NO_VAULT = "there is none; backups need one, which `helix vault init` makes"


async def look_at_health(call: Call) -> dict[str, JSON]:
    """Every check, and the worst status of all."""
    checks = [await _disk(call), await _store(call), await _vault(call), await _quota(call, call.own_scope)]
    checks.append(await _quota(call, SHARED))
    worst = max((str(check["status"]) for check in checks), key=STATUSES.index)
    return {"status": worst, "checks": list[JSON](checks)}


async def _disk(call: Call) -> dict[str, JSON]:
    try:
        folder = folder_of(call.store, call.settings, "snapshots")
        free = await asyncio.to_thread(free_bytes, folder)
    except CapabilityError:
        return {"name": "disk", "status": "ok", "detail": "this store keeps no files"}
    except OSError as problem:
        return {"name": "disk", "status": "failing", "detail": f"{problem.strerror}"}
    status = "failing" if free < NO_ROOM else "degraded" if free < LITTLE_ROOM else "ok"
    return {"name": "disk", "status": status, "detail": f"{free // 1_000_000} MB free"}


async def _store(call: Call) -> dict[str, JSON]:
    try:
        await call.store.usage(call.own_scope)
    except HelixError as problem:
        return {"name": "store", "status": "failing", "detail": str(problem)}
    return {"name": "store", "status": "ok", "detail": "answers"}


async def _vault(call: Call) -> dict[str, JSON]:
    vault = call.settings.vault
    if vault is None:
        return {"name": "vault", "status": "ok", "detail": NO_VAULT}
    try:
        await vault.require_unlocked()
    except VaultNotInitialisedError:
        return {"name": "vault", "status": "ok", "detail": NO_VAULT}
    except VaultLockedError:
        return {"name": "vault", "status": "degraded", "detail": "locked; backups cannot be made"}
    except HelixError as problem:
        return {"name": "vault", "status": "failing", "detail": str(problem)}
    return {"name": "vault", "status": "ok", "detail": "unlocked"}


async def _quota(call: Call, scope: str) -> dict[str, JSON]:
    try:
        usage = await call.store.usage(scope)
    except HelixError:
        return {"name": f"quota of {scope}", "status": "failing", "detail": "unknown"}
    limit = call.limits.shared_bytes if scope == SHARED else call.limits.persistent_bytes
    status = "degraded" if usage.bytes > 0.9 * limit else "ok"
    return {"name": f"quota of {scope}", "status": status, "detail": f"{usage.bytes} of {limit} bytes"}
