"""The audit log from outside: verified against its own chain and against signed checkpoints kept elsewhere."""

import asyncio
from pathlib import Path

import msgspec

from helix_agents.capabilities.backups import Backups
from helix_agents.capabilities.files import folder_of
from helix_agents.capabilities.gateway import Gateway
from helix_agents.capabilities.values import shown_time
from helix_agents.capabilities.vault import append_checkpoint, check_checkpoints, load_checkpoints
from helix_agents.domain.audit import AuditCheckpoint, genesis
from helix_agents.domain.audit_verification import AuditVerifier
from helix_agents.domain.records import JSON

PAGE = 5_000


def checkpoints_file(gateway: Gateway) -> Path:
    """Where checkpoints are kept unless an operator moves them."""
    return folder_of(gateway.store, gateway.settings, "audit") / "checkpoints.jsonl"


async def sign_checkpoint(gateway: Gateway) -> dict[str, JSON]:
    """Sign the log's present end and keep the signature beside the other files.

    Raises:
        VaultError: the vault is locked.
    """
    await gateway.flush()
    signer = await Backups(gateway.store, gateway.settings).vault.signer()
    store_id = await gateway.store.store_id()
    seq, head = 0, genesis(store_id)
    while rows := await gateway.store.list_audit(seq, limit=PAGE):
        seq, head = rows[-1].seq, rows[-1].hash
    path = checkpoints_file(gateway)
    await asyncio.to_thread(lambda: path.parent.mkdir(mode=0o700, parents=True, exist_ok=True))
    made = AuditCheckpoint(store_id=store_id, seq=seq, head=head, created_at=shown_time(gateway.store.now_ms()))
    signed = signer.sign(made)
    await append_checkpoint(path, signed)
    return {"seq": signed.seq, "head": signed.head, "path": str(path)}


async def verify_audit(gateway: Gateway) -> dict[str, JSON]:
    """Look at every row, in order, and at every checkpoint; names what is wrong and where."""
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
