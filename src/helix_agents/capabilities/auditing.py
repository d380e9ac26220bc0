"""The audit log from outside: verified against its own chain and against signed checkpoints kept elsewhere."""

import asyncio
from pathlib import Path

import msgspec

from helix_agents.capabilities.backups import Backups
from helix_agents.capabilities.files import folder_of
from helix_agents.capabilities.gateway import Gateway
from helix_agents.capabilities.values import shown_time
from helix_agents.capabilities.vault import CheckpointSigner, append_checkpoint, check_checkpoints, load_checkpoints
from helix_agents.domain.audit import AuditCheckpoint, genesis, row_hash
from helix_agents.domain.audit_verification import AuditVerifier
from helix_agents.domain.errors import AuditBrokenError, HelixError, VaultLockedError, VaultNotInitialisedError
from helix_agents.domain.records import JSON
from helix_agents.engine.log import log_event, log_exception

PAGE = 5_000
SIGN_AFTER_ROWS = 256
SIGN_AFTER_MS = 60_000


def checkpoints_file(gateway: Gateway) -> Path:
    """Where checkpoints are kept unless an operator moves them."""
    return folder_of(gateway.store, gateway.settings, "audit") / "checkpoints.jsonl"


async def sign_checkpoint(gateway: Gateway) -> dict[str, JSON]:
    """Sign the log's present end and keep the signature beside the other files.

    Raises:
        VaultError: the vault is locked.
        AuditBrokenError: what was written since the last checkpoint is not a chain; nothing was signed.
    """
    await gateway.flush()
    signer = await Backups(gateway.store, gateway.settings).vault.signer()
    signed = signer.sign(await _present_end(gateway, await _last_checkpoint(gateway)))
    await _keep(gateway, signed)
    return {"seq": signed.seq, "head": signed.head, "path": str(checkpoints_file(gateway))}


async def sign_when_due(gateway: Gateway) -> int:
    """Sign the log's end if much was written since the last time, or if that was long ago; returns its row, 0 for none.

    A locked vault signs nothing: the first checkpoint after it is unlocked covers what was written meanwhile. Failures
    are logged, because the sweep has other things to do as well.
    """
    vault = gateway.settings.vault
    if vault is None:
        return 0
    try:
        return await _sign_if_due(gateway, await vault.signer())
    except (VaultLockedError, VaultNotInitialisedError):
        return 0
    except AuditBrokenError as problem:
        log_exception("audit.broken", problem, seq=problem.seq)
    except (HelixError, OSError) as problem:
        log_exception("audit.not_signed", problem)
    return 0


async def _sign_if_due(gateway: Gateway, signer: CheckpointSigner) -> int:
    last = await _last_checkpoint(gateway)
    end = await _present_end(gateway, last)
    new = end.seq - (last.seq if last is not None else 0)
    now = gateway.store.now_ms()
    # A checkpoint made before the clock was set back would otherwise stay young for all that time.
    waited = last is None or not shown_time(now - SIGN_AFTER_MS) < last.created_at <= shown_time(now)
    if new < SIGN_AFTER_ROWS and not (new > 0 and waited):
        return 0
    signed = signer.sign(end)
    await _keep(gateway, signed)
    # Log collectors get it as well, away from the machine that could forge it.
    log_event("audit.checkpoint", store=signed.store_id, seq=signed.seq, head=signed.head, signature=signed.signature)
    return signed.seq


async def _last_checkpoint(gateway: Gateway) -> AuditCheckpoint | None:
    """The newest checkpoint that this vault signed for this store."""
    vault = gateway.settings.vault
    facts = await vault.find() if vault is not None else None
    if facts is None:
        return None
    store_id = await gateway.store.store_id()
    for checkpoint in reversed(await load_checkpoints(checkpoints_file(gateway), newest=True)):
        good, _ = check_checkpoints([checkpoint], store_id, facts.public_key)
        if good:
            return checkpoint
    return None


async def _present_end(gateway: Gateway, last: AuditCheckpoint | None) -> AuditCheckpoint:
    """The log's end to sign, after checking that every row since the last checkpoint follows the one before it."""
    store = gateway.store
    store_id = await store.store_id()
    seq, head = (0, genesis(store_id)) if last is None else (last.seq, last.head)
    while rows := await store.list_audit(seq, limit=PAGE):
        for row in rows:
            # The first row of a pruned log follows a row that only the checkpoint knows.
            begins = last is None and seq == 0
            if (not begins and row.previous != head) or row.hash != row_hash(row.seq, row.previous, row.entry):
                raise AuditBrokenError(str(checkpoints_file(gateway)), row.seq)
            seq, head = row.seq, row.hash
    return AuditCheckpoint(store_id=store_id, seq=seq, head=head, created_at=shown_time(store.now_ms()))


async def _keep(gateway: Gateway, signed: AuditCheckpoint) -> None:
    path = checkpoints_file(gateway)
    await asyncio.to_thread(lambda: path.parent.mkdir(mode=0o700, parents=True, exist_ok=True))
    await append_checkpoint(path, signed)


async def verify_audit(gateway: Gateway) -> dict[str, JSON]:
    """Check every row, in order, and every checkpoint; reports what is wrong and where."""
    await gateway.flush()
    store_id = await gateway.store.store_id()
    good, bad = (), ()
    vault = gateway.settings.vault
    facts = await vault.find() if vault is not None else None
    if facts is not None:
        found = await load_checkpoints(checkpoints_file(gateway))
        good, bad = check_checkpoints(found, store_id, facts.public_key)
    verifier = AuditVerifier(store_id, good, bad_checkpoints=bad)
    after = 0
    while rows := await gateway.store.list_audit(after, limit=PAGE):
        for row in rows:
            verifier.feed(row)
        after = rows[-1].seq
    report = verifier.finish()
    return {
        "intact": report.intact,
        "rows": report.rows,
        "last_seq": report.last_seq,
        "head": report.head,
        "checkpoints": report.checkpoints,
        "findings": [msgspec.to_builtins(finding) for finding in report.findings],
    }
