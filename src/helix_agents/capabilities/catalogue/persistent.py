"""`state.persistent.*`: state that belongs to the agent and outlives its sessions."""

from helix_agents.capabilities.catalogue.keyed import (
    COUNT,
    CURSOR,
    EXPECTED_VERSION,
    LISTED,
    MUST_EXIST,
    PREFIX,
    TRUNCATED,
    database_error,
    limit,
)
from helix_agents.capabilities.declaring import Capability, ErrorCase, Field, Hint, Pattern, SideEffect

_LIST_KEYS = Hint(
    action="list_keys",
    description="Use state.persistent.list to see available keys.",
    capability="state.persistent.list",
)


PERSISTENT = (
    Capability(
        name="state.persistent.get",
        purpose="Retrieves a value from the agent's persistent state by key.",
        detail="Persistent state survives across sessions.",
        when_to_use=(
            "Use state.persistent.get to read data stored in a previous session or earlier in the current one. Persistent"
            " state survives Gateway restarts. For session-only data, use state.session.get instead."
        ),
        inputs=(
            Field("key", "String", "The key to look up."),
            Field(
                "version",
                "Integer",
                "Specific version number to retrieve. If omitted, returns the latest version.",
                required=False,
                least=1,
            ),
            MUST_EXIST,
        ),
        outputs=(
            Field("value", "Object", "The stored value, or null if the key does not exist."),
            Field("version", "Integer", "The version number of the returned value."),
            Field("found", "Boolean", "True if the key exists."),
            Field("created_at", "DateTime", "When this key was first created."),
            Field("updated_at", "DateTime", "When this key was last updated."),
        ),
        patterns=(
            Pattern(
                "Resume from where a previous session left off",
                (
                    "state.persistent.get(key='progress.checkpoint') to read last saved progress",
                    "Continue work from the saved checkpoint",
                ),
            ),
            Pattern(
                "Read a specific version for comparison",
                (
                    "state.persistent.get(key='config', version=3) to read version 3",
                    "state.persistent.get(key='config') to read latest",
                    "Compare the two versions",
                ),
            ),
        ),
        errors=(
            ErrorCase(
                error="KeyNotFound",
                description="The key does not exist in persistent state.",
                recovery=(
                    _LIST_KEYS,
                    Hint(
                        action="use_session",
                        description="The data may be in session state — try state.session.get.",
                        capability="state.session.get",
                        inputs={"key": "{key}"},
                    ),
                ),
            ),
        ),
        tags=("state", "persistent", "read", "safe"),
        idempotent=True,
    ),
    Capability(
        name="state.persistent.set",
        purpose="Stores a key-value pair in the agent's persistent state.",
        detail="Creates a new version of the key.",
        when_to_use=(
            "Use state.persistent.set to store data that must survive across sessions and Gateway restarts. Each set"
            " creates a new version — old versions are retained for a configurable window (default: 100 versions). For"
            " temporary data, use state.session.set instead."
        ),
        inputs=(
            Field("key", "String", "The key to store under. Overwrites any existing value (creating a new version)."),
            Field("value", "Object", "Any JSON-serialisable value."),
            EXPECTED_VERSION,
        ),
        outputs=(
            Field("version", "Integer", "The new version number assigned to this write."),
            Field("previous_version", "Integer", "The previous version number, or 0 if this is a new key."),
        ),
        side_effects=(
            SideEffect("Creates a new version of the key in the agent's SQLite database."),
            SideEffect("Old versions beyond the retention window are automatically pruned."),
            SideEffect("Counts toward the agent's persistent state quota (default: 100 MB)."),
        ),
        patterns=(
            Pattern(
                "Save progress checkpoint",
                ("state.persistent.set(key='progress.checkpoint', value={step: 5, total: 10})",),
            ),
            Pattern(
                "Store configuration that persists across sessions",
                ("state.persistent.set(key='preferences.output_format', value='json')",),
            ),
        ),
        errors=(
            ErrorCase(
                error="QuotaExceeded",
                description="Agent's persistent state quota exceeded.",
                recovery=(
                    Hint(
                        action="delete_unused",
                        description="Use state.persistent.delete to remove unneeded keys.",
                        capability="state.persistent.delete",
                        inputs={"key": "{largest_key}"},
                    ),
                    Hint(
                        action="request_increase",
                        description="Use alerts.send to request a quota increase from the supervisor.",
                        capability="alerts.send",
                        inputs={"message": "{quota_request}"},
                    ),
                ),
            ),
        ),
        tags=("state", "persistent", "write"),
    ),
    Capability(
        name="state.persistent.delete",
        purpose="Removes a key and all its version history from the agent's persistent state.",
        when_to_use=(
            "Use state.persistent.delete to permanently remove data and free quota. This deletes all versions of the key"
            " — the operation is not reversible."
        ),
        inputs=(
            Field("key", "String", "The key to remove. All versions of this key are deleted."),
            EXPECTED_VERSION,
            MUST_EXIST,
        ),
        outputs=(Field("deleted", "Boolean", "True if the key existed and was removed."),),
        side_effects=(
            SideEffect("Permanently deletes the key and all its version history from SQLite."),
            SideEffect("Frees quota used by this key."),
        ),
        patterns=(
            Pattern(
                "Clean up completed task data",
                (
                    "state.persistent.list(prefix='task.completed.') to find finished task keys",
                    "state.persistent.delete(key=...) for each completed task",
                ),
            ),
        ),
        errors=(ErrorCase(error="KeyNotFound", description="The key does not exist.", recovery=(_LIST_KEYS,)),),
        tags=("state", "persistent", "write"),
        idempotent=True,
    ),
    Capability(
        name="state.persistent.list",
        purpose="Lists keys in the agent's persistent state with metadata summaries.",
        when_to_use=(
            "Use state.persistent.list to discover what persistent data exists. Returns key names, versions, sizes, and"
            " timestamps — not full values. Use state.persistent.get to read the full value of a specific key."
        ),
        inputs=(PREFIX, limit(1_000, most=10_000), CURSOR),
        outputs=(
            Field("entries", "Array", "List of objects with key, version, size_bytes, updated_at for each entry."),
            *LISTED,
        ),
        patterns=(
            Pattern(
                "Check quota usage",
                (
                    "state.persistent.list() to see all keys and their sizes",
                    "Sum total_size_bytes to understand quota usage",
                ),
            ),
            Pattern(
                "Find keys in a namespace",
                ("state.persistent.list(prefix='deploy.') to find all deployment state",),
            ),
        ),
        errors=(database_error("Failed to read from the agent's persistent state database."),),
        tags=("state", "persistent", "read", "safe"),
        idempotent=True,
    ),
    Capability(
        name="state.persistent.query",
        purpose="Queries persistent state by key prefix, returning full entries with values.",
        when_to_use=(
            "Use state.persistent.query to retrieve multiple related entries at once. Unlike state.persistent.list, this"
            " returns the full values. Use for batch reads when you need the actual data, not just metadata."
        ),
        inputs=(
            Field("prefix", "String", "Key prefix to match. Returns all keys starting with this prefix."),
            limit(100, most=1_000),
            CURSOR,
        ),
        outputs=(
            Field("entries", "Array", "List of objects with key, value, version, created_at, updated_at."),
            COUNT,
            *TRUNCATED,
        ),
        patterns=(
            Pattern(
                "Load all task state at once",
                ("state.persistent.query(prefix='task.') to get all task-related state",),
            ),
            Pattern(
                "Batch read configuration",
                ("state.persistent.query(prefix='config.') to load all agent configuration",),
            ),
        ),
        errors=(database_error("Failed to query the agent's persistent state database."),),
        tags=("state", "persistent", "read", "safe"),
        idempotent=True,
    ),
    Capability(
        name="state.persistent.history",
        purpose="Returns the version history of a specific key in persistent state.",
        when_to_use=(
            "Use state.persistent.history to see how a value has changed over time. Returns previous versions in reverse"
            " chronological order (newest first). The number of retained versions depends on the retention configuration"
            " (default: 100). For one version, use state.persistent.get instead."
        ),
        inputs=(
            Field("key", "String", "The key to get history for."),
            Field(
                "limit",
                "Integer",
                "Maximum number of versions to return. Defaults to all retained versions.",
                required=False,
                least=1,
            ),
        ),
        outputs=(
            Field(
                "versions",
                "Array",
                "List of objects with value, version, created_at, updated_at. Ordered newest first.",
            ),
            Field("count", "Integer", "Number of versions returned."),
            Field("truncated", "Boolean", "True if there are more versions than fit.", added=True),
        ),
        patterns=(
            Pattern(
                "Review recent changes to a configuration key",
                (
                    "state.persistent.history(key='config.threshold', limit=5)",
                    "Compare values across versions to understand the change trajectory",
                ),
            ),
        ),
        errors=(
            ErrorCase(
                error="KeyNotFound",
                description="The key does not exist or has no version history.",
                recovery=(_LIST_KEYS,),
            ),
        ),
        tags=("state", "persistent", "read", "safe"),
        idempotent=True,
    ),
)
