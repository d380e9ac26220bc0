"""`state.backup.*`: encrypted copies of values, and restoring them."""

from helix_agents.capabilities.catalogue.snapshot import check_disk
from helix_agents.capabilities.declaring import Capability, ErrorCase, Field, Hint, Pattern, SideEffect

_UNLOCK = Hint(
    action="unlock_vault",
    description="Unlock the vault with the master passphrase.",
    command="helix vault unlock",
)
_BACKUP_NOT_FOUND = ErrorCase(
    error="BackupNotFound",
    description="No backup exists with the given ID.",
    recovery=(
        Hint(
            action="list_backups",
            description="Use state.backup.list to see available backups.",
            capability="state.backup.list",
        ),
    ),
)

BACKUP = (
    Capability(
        name="state.backup.create",
        purpose="Creates an encrypted backup of all agent persistent state and shared state.",
        when_to_use=(
            "Use state.backup.create before major operations to create a recovery point. Backups are encrypted at rest"
            " with AES-256-GCM using a key derived from the vault master key. Old backups beyond the retention limit are"
            " automatically removed. For a look at the system without its values, use state.snapshot.create instead."
        ),
        tier="approval_required",
        inputs=(
            Field(
                "agent",
                "String",
                "If provided, back up only this agent's persistent state. If omitted, creates a full backup of all"
                " agents and shared state.",
                required=False,
            ),
        ),
        outputs=(
            Field("backup_id", "String", "Unique identifier for the created backup."),
            Field("created_at", "DateTime", "When the backup was created."),
            Field("file_size_bytes", "Integer", "Size of the encrypted backup file in bytes."),
            Field("scope", "String", "'full' for all state, or 'agent:{name}' for a single agent."),
        ),
        side_effects=(
            SideEffect("Creates an encrypted backup file in the backups directory."),
            SideEffect("Old backups beyond the retention limit are automatically removed."),
        ),
        patterns=(
            Pattern(
                "Full system backup before upgrade",
                (
                    "state.backup.create() to back up everything",
                    "Perform the upgrade",
                    "If something breaks: state.backup.restore(backup_id=...)",
                ),
            ),
            Pattern("Back up a specific agent before changes", ("state.backup.create(agent='my-agent')",)),
        ),
        errors=(
            check_disk("IoError", "Failed to write backup to disk.", "disk space"),
            ErrorCase(
                error="VaultLocked",
                description="The vault must be unlocked to create encrypted backups.",
                recovery=(_UNLOCK,),
            ),
        ),
        tags=("state", "backup", "write"),
    ),
    Capability(
        name="state.backup.list",
        purpose="Lists available backups with timestamps, sizes, and scope.",
        when_to_use=(
            "Use state.backup.list to see what backups are available for restoration. Backups are listed newest first."
            " It does not open them."
        ),
        outputs=(
            Field("backups", "Array", "List of objects with backup_id, created_at, scope, file_size_bytes."),
            Field("count", "Integer", "Number of backups available."),
        ),
        patterns=(Pattern("Find the most recent backup", ("state.backup.list() — first entry is the most recent",)),),
        errors=(
            check_disk("IoError", "Failed to read the backups directory.", "disk space and directory permissions"),
        ),
        tags=("state", "backup", "read", "safe"),
        idempotent=True,
    ),
    Capability(
        name="state.backup.restore",
        purpose="Restores state from an encrypted backup.",
        detail="Requires the vault to be unlocked.",
        when_to_use=(
            "Use state.backup.restore to recover state from a previous backup. This overwrites current state with the"
            " backup contents. Can restore a full backup or filter to a single agent. For one key, use"
            " state.persistent.get with a version instead."
        ),
        tier="approval_required",
        inputs=(
            Field("backup_id", "String", "The backup ID to restore (from state.backup.list)."),
            Field(
                "agent",
                "String",
                "If provided, only restore this agent's state from the backup. If omitted, restores all state.",
                required=False,
            ),
        ),
        outputs=(
            Field("restored", "Boolean", "True if the restore completed successfully."),
            Field("agents_restored", "Array", "Names of agents whose state was restored."),
            Field("shared_state_restored", "Boolean", "Whether shared state was restored."),
            Field("pre_restore_backup_id", "String", "The backup that was made of what was overwritten.", added=True),
        ),
        side_effects=(
            SideEffect("Overwrites current persistent state with backup data."),
            SideEffect("Overwrites current shared state (for full restores)."),
            SideEffect("This operation is logged in the audit trail."),
        ),
        patterns=(
            Pattern(
                "Full system restore",
                (
                    "state.backup.list() to find the backup",
                    "state.backup.restore(backup_id='bkp-20260325T140000') to restore everything",
                ),
            ),
            Pattern(
                "Restore a single agent",
                ("state.backup.restore(backup_id='bkp-20260325T140000', agent='my-agent')",),
            ),
        ),
        errors=(
            _BACKUP_NOT_FOUND,
            ErrorCase(
                error="DecryptionFailed",
                description="Wrong key or corrupted backup file.",
                recovery=(
                    Hint(
                        action="check_vault",
                        description="Ensure the vault is unlocked with the correct master passphrase.",
                        command="helix vault status",
                    ),
                ),
            ),
            ErrorCase(
                error="VaultLocked",
                description="The vault must be unlocked to decrypt backups.",
                recovery=(_UNLOCK,),
            ),
        ),
        tags=("state", "backup", "write"),
    ),
    Capability(
        name="state.backup.export",
        purpose="Exports an encrypted backup to an external file path.",
        when_to_use=(
            "Use state.backup.export to copy an encrypted backup to an external location for off-site storage or"
            " transfer. The exported file is encrypted — the recipient needs the vault master passphrase to import it."
            " It does not make a new backup; use state.backup.create for that."
        ),
        tier="approval_required",
        inputs=(
            Field("backup_id", "String", "The backup ID to export."),
            Field(
                "path",
                "String",
                "Destination path. If a directory, the backup filename is preserved. If a file path, the backup is"
                " written to that exact path.",
            ),
        ),
        outputs=(
            Field("exported_path", "String", "The full path where the backup was written."),
            Field("size_bytes", "Integer", "Size of the exported file in bytes."),
        ),
        side_effects=(SideEffect("Copies the encrypted backup file to the specified path."),),
        patterns=(
            Pattern(
                "Export for off-site storage",
                (
                    "state.backup.create() to create a fresh backup",
                    "state.backup.export(backup_id='...', path='/mnt/external/')",
                ),
            ),
        ),
        errors=(
            _BACKUP_NOT_FOUND,
            ErrorCase(
                error="IoError",
                description="Failed to write to the destination path.",
                recovery=(
                    Hint(action="check_path", description="Verify the destination path exists and is writable."),
                ),
            ),
        ),
        tags=("state", "backup", "write"),
    ),
)
