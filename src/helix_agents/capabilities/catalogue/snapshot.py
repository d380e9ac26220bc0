"""`state.snapshot.*`: the whole system at one moment, without its values."""

from helix_agents.capabilities.declaring import Capability, ErrorCase, Field, Hint, Pattern, SideEffect


def check_disk(error: str, description: str, what: str) -> ErrorCase:
    """A file error whose hint is to check the disk first."""
    return ErrorCase(
        error=error,
        description=description,
        recovery=(
            Hint(action="check_disk", description=f"Use system.health to check {what}.", capability="system.health"),
        ),
    )


SNAPSHOT = (
    Capability(
        name="state.snapshot.create",
        purpose="Creates a point-in-time snapshot of the entire system state.",
        when_to_use=(
            "Use state.snapshot.create to capture the current state of all system components: active agents, resource"
            " usage, pending approvals, alerts, health status, and state statistics. Useful before making significant"
            " changes. It holds no values; to be able to restore them, use state.backup.create instead."
        ),
        tier="notify",
        outputs=(
            Field("snapshot_id", "String", "Unique identifier for this snapshot (e.g. 'snap-20260325T140000')."),
            Field("timestamp", "DateTime", "When the snapshot was taken."),
            Field("size_bytes", "Integer", "Size of the snapshot file in bytes."),
        ),
        side_effects=(
            SideEffect("Creates a JSON file in the snapshots directory."),
            SideEffect("Old snapshots beyond the retention limit are automatically removed."),
        ),
        patterns=(
            Pattern(
                "Checkpoint before a risky operation",
                (
                    "state.snapshot.create() to capture current state",
                    "Perform the operation",
                    "If something goes wrong, reference the snapshot for recovery",
                ),
            ),
        ),
        errors=(check_disk("IoError", "Failed to write snapshot to disk.", "disk space"),),
        tags=("state", "snapshot", "write"),
    ),
    Capability(
        name="state.snapshot.list",
        purpose="Lists available system snapshots with timestamps and sizes.",
        when_to_use=(
            "Use state.snapshot.list to see what snapshots are available. Snapshots are listed newest first. It does not"
            " show their content; use state.snapshot.load for one."
        ),
        outputs=(
            Field("snapshots", "Array", "List of objects with snapshot_id, timestamp, size_bytes."),
            Field("count", "Integer", "Number of snapshots available."),
        ),
        patterns=(
            Pattern("Find the most recent snapshot", ("state.snapshot.list() — first entry is the most recent",)),
        ),
        errors=(
            check_disk("IoError", "Failed to read the snapshots directory.", "disk space and directory permissions"),
        ),
        tags=("state", "snapshot", "read", "safe"),
        idempotent=True,
    ),
    Capability(
        name="state.snapshot.load",
        purpose="Loads a specific system snapshot by ID, returning the full captured state.",
        when_to_use=(
            "Use state.snapshot.load to examine what the system looked like at a specific point in time. Useful for"
            " debugging or comparing system state. It changes nothing; to bring values back, use state.backup.restore"
            " instead."
        ),
        inputs=(Field("snapshot_id", "String", "The snapshot ID to load (from state.snapshot.list)."),),
        outputs=(
            Field(
                "snapshot",
                "Object",
                "Full snapshot data including agents, resources, approvals, alerts, health, and state summaries."
                " Sessions are counted by agent; the latest thousand are listed.",
            ),
        ),
        patterns=(
            Pattern(
                "Compare system state before and after a change",
                (
                    "state.snapshot.load(snapshot_id='snap-before') to get before state",
                    "state.snapshot.load(snapshot_id='snap-after') to get after state",
                    "Compare the two snapshots",
                ),
            ),
        ),
        errors=(
            ErrorCase(
                error="SnapshotNotFound",
                description="No snapshot exists with the given ID.",
                recovery=(
                    Hint(
                        action="list_snapshots",
                        description="Use state.snapshot.list to see available snapshots.",
                        capability="state.snapshot.list",
                    ),
                ),
            ),
        ),
        tags=("state", "snapshot", "read", "safe"),
        idempotent=True,
    ),
)
