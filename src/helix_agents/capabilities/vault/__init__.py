"""The vault: one key that an operator unlocks, and what it protects: encrypted backups and signed audit checkpoints.

Importing this loads no cryptography; the extra `vault` is needed when a vault or a backup is opened.
"""

from helix_agents.capabilities.vault.backup_header import BackupAbout
from helix_agents.capabilities.vault.checking import BackupFacts
from helix_agents.capabilities.vault.checkpoints import (
    CheckpointSigner,
    append_checkpoint,
    check_checkpoints,
    load_checkpoints,
)
from helix_agents.capabilities.vault.copying import CopiedBackup, copy_backup
from helix_agents.capabilities.vault.creating import BackupWriter, create_backup
from helix_agents.capabilities.vault.keys import Argon2Cost
from helix_agents.capabilities.vault.opening import BackupReader, open_backup, read_about, verify_backup
from helix_agents.capabilities.vault.vault import Vault
from helix_agents.capabilities.vault.vault_file import VaultFacts

__all__ = [
    "Argon2Cost",
    "BackupAbout",
    "BackupFacts",
    "BackupReader",
    "BackupWriter",
    "CheckpointSigner",
    "CopiedBackup",
    "Vault",
    "VaultFacts",
    "append_checkpoint",
    "check_checkpoints",
    "copy_backup",
    "create_backup",
    "load_checkpoints",
    "open_backup",
    "read_about",
    "verify_backup",
]
