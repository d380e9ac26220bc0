"""`state.shared.*`: state that all agents of a store see."""

from helix_agents.capabilities.catalogue.keyed import (
    CURSOR,
    EXPECTED_VERSION,
    LISTED,
    MUST_EXIST,
    PREFIX,
    database_error,
    limit,
)
from helix_agents.capabilities.declaring import Capability, ErrorCase, Field, Hint, Pattern, SideEffect

_LIST_KEYS = Hint(
    action="list_keys",
    description="Use state.shared.list to see available shared keys.",
    capability="state.shared.list",
)

SHARED = (
    Capability(
        name="state.shared.get",
        purpose="Retrieves a value from the cross-agent shared state by key.",
        detail="Returns the current version for use with optimistic locking.",
        when_to_use=(
            "Use state.shared.get to read data shared between agents. The returned version number is required for"
            " subsequent state.shared.set calls (optimistic locking). For agent-private data, use state.persistent.get"
            " instead."
        ),
        inputs=(Field("key", "String", "The shared state key to look up."), MUST_EXIST),
        outputs=(
            Field("value", "Object", "The stored value, or null if the key does not exist."),
            Field(
                "version",
                "Integer",
                "Current version of this key. Pass this to state.shared.set to update. 0 if key does not exist.",
            ),
            Field("found", "Boolean", "True if the key exists."),
            Field("owner_agent", "String", "Name of the agent that last wrote this key."),
            Field("updated_at", "DateTime", "When this key was last updated."),
        ),
        patterns=(
            Pattern(
                "Read shared configuration",
                (
                    "state.shared.get(key='config.shared_threshold') to read value and version",
                    "Use the value in your logic",
                ),
            ),
            Pattern(
                "Read-modify-write with optimistic locking",
                (
                    "state.shared.get(key='counter') to get current value and version",
                    "Compute new value",
                    "state.shared.set(key='counter', value=new_val, expected_version=version)",
                    "If VersionConflict, retry from step 1",
                ),
            ),
        ),
        errors=(
            ErrorCase(
                error="KeyNotFound", description="The key does not exist in shared state.", recovery=(_LIST_KEYS,)
            ),
        ),
        tags=("state", "shared", "read", "safe"),
        idempotent=True,
    ),
    Capability(
        name="state.shared.set",
        purpose="Stores a key-value pair in the cross-agent shared state with optimistic locking.",
        detail="Requires the expected version to prevent lost updates.",
        when_to_use=(
            "Use state.shared.set to write data visible to other agents. You must pass expected_version (from a prior"
            " state.shared.get). If another agent updated the key since you read it, a VersionConflict error is returned"
            " — re-read and retry. For new keys, pass expected_version=0. For your own data, use"
            " state.persistent.set instead."
        ),
        tier="notify",
        inputs=(
            Field("key", "String", "The shared state key to store under."),
            Field("value", "Object", "Any JSON-serialisable value."),
            Field(
                "expected_version",
                "Integer",
                "The version you last read. Pass 0 to create a new key. If the current version does not match, the write"
                " is rejected with VersionConflict.",
                least=0,
            ),
        ),
        outputs=(
            Field("version", "Integer", "The new version number after this write."),
            Field("revision", "Integer", "The store's revision of this write.", added=True),
        ),
        side_effects=(
            SideEffect("Writes to the shared SQLite database."),
            SideEffect("Notifies all agents subscribed via state.shared.watch."),
            SideEffect("Counts toward the total shared state quota (default: 500 MB)."),
        ),
        patterns=(
            Pattern(
                "Create a new shared key",
                ("state.shared.set(key='config.mode', value='production', expected_version=0)",),
            ),
            Pattern(
                "Atomic read-modify-write",
                (
                    "entry = state.shared.get(key='counter')",
                    "state.shared.set(key='counter', value=entry.value+1, expected_version=entry.version)",
                    "On VersionConflict, loop back to get",
                ),
            ),
        ),
        errors=(
            ErrorCase(
                error="VersionConflict",
                description=(
                    "Another agent updated this key since you last read it. Your expected_version does not match the"
                    " current version."
                ),
                recovery=(
                    Hint(
                        action="retry",
                        description="Re-read the key with state.shared.get and retry with the new version.",
                        capability="state.shared.get",
                        inputs={"key": "{key}"},
                    ),
                ),
            ),
            ErrorCase(
                error="QuotaExceeded",
                description="Total shared state quota exceeded.",
                recovery=(
                    Hint(
                        action="delete_unused",
                        description="Use state.shared.delete to remove unneeded shared keys.",
                        capability="state.shared.delete",
                        inputs={"key": "{largest_key}"},
                    ),
                    Hint(
                        action="request_increase",
                        description="Use alerts.send to request a quota increase.",
                        capability="alerts.send",
                        inputs={"message": "{quota_request}"},
                    ),
                ),
            ),
        ),
        tags=("state", "shared", "write"),
    ),
    Capability(
        name="state.shared.delete",
        purpose="Removes a key from the cross-agent shared state.",
        when_to_use=(
            "Use state.shared.delete to remove shared data that is no longer needed. This frees shared quota. The"
            " deletion is visible to all agents immediately and is not reversible."
        ),
        tier="notify",
        inputs=(Field("key", "String", "The shared state key to remove."), EXPECTED_VERSION, MUST_EXIST),
        outputs=(Field("deleted", "Boolean", "True if the key existed and was removed."),),
        side_effects=(
            SideEffect("Permanently removes the key from shared state."),
            SideEffect("Frees shared state quota."),
        ),
        patterns=(
            Pattern("Clean up after a shared task completes", ("state.shared.delete(key='task.shared_progress')",)),
        ),
        errors=(
            ErrorCase(
                error="KeyNotFound", description="The key does not exist in shared state.", recovery=(_LIST_KEYS,)
            ),
        ),
        tags=("state", "shared", "write"),
        idempotent=True,
    ),
    Capability(
        name="state.shared.list",
        purpose="Lists all keys in the cross-agent shared state with metadata.",
        when_to_use=(
            "Use state.shared.list to discover what shared data exists. Returns key names, versions, sizes, and which"
            " agent last wrote each key — not values; use state.shared.get for one."
        ),
        inputs=(PREFIX, limit(1_000, most=10_000), CURSOR),
        outputs=(
            Field("entries", "Array", "List of objects with key, version, size_bytes, owner_agent, updated_at."),
            *LISTED,
        ),
        patterns=(
            Pattern(
                "Discover shared configuration",
                ("state.shared.list(prefix='config.') to find all shared configuration keys",),
            ),
        ),
        errors=(database_error("Failed to read from the shared state database."),),
        tags=("state", "shared", "read", "safe"),
        idempotent=True,
    ),
    Capability(
        name="state.shared.watch",
        purpose="Subscribes to change notifications for shared state keys.",
        when_to_use=(
            "Use state.shared.watch to be notified when other agents modify shared state. Returns a stream of change"
            " events. Useful for coordination between agents; to read a value once, use state.shared.get instead."
        ),
        inputs=(
            Field(
                "prefix",
                "String",
                "If provided, only receive notifications for keys matching this prefix. If omitted, all changes are"
                " reported.",
                required=False,
            ),
            Field(
                "include_own",
                "Boolean",
                "Also report changes this agent makes itself.",
                required=False,
                default=False,
                added=True,
            ),
            Field(
                "durable",
                "Boolean",
                "Keep the subscription after the session ends.",
                required=False,
                default=False,
                added=True,
            ),
            Field(
                "wake",
                "String",
                "What a change does while you are not running: 'idle' gives you a turn unless you are waiting for"
                " an answer, 'always' gives you one in any case and gives up what you are waiting for, 'never' reports it"
                " at your next step. A sub-agent always hears about it at its next step.",
                required=False,
                default="idle",
                choices=("idle", "always", "never"),
                added=True,
            ),
        ),
        outputs=(
            Field(
                "subscription_id",
                "String",
                "A subscription identifier. Changes will be delivered to the agent's message queue.",
            ),
            Field("from_revision", "Integer", "Changes after this revision are reported.", added=True),
        ),
        side_effects=(SideEffect("Creates a subscription that will deliver change events until the session ends."),),
        patterns=(
            Pattern(
                "React to shared configuration changes",
                (
                    "state.shared.watch(prefix='config.') to subscribe",
                    "When notification arrives, state.shared.get the updated key",
                    "Adjust behaviour based on new value",
                ),
            ),
        ),
        errors=(
            ErrorCase(
                error="SubscriptionFailed",
                description="Failed to create the change subscription.",
                recovery=(Hint(action="retry", description="Retry the subscription."),),
            ),
        ),
        tags=("state", "shared", "read", "subscribe"),
    ),
)
