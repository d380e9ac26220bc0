"""`state.session.*`: state that lives as long as the session."""

from helix_agents.capabilities.declaring import Capability, ErrorCase, Field, Hint, Pattern, SideEffect

_SESSION_NOT_FOUND = ErrorCase(
    error="SessionNotFound",
    description="The session does not exist or has been terminated.",
    recovery=(
        Hint(
            action="reconnect",
            description="Establish a new session via the Gateway: session.create gives one.",
            capability="session.create",
        ),
    ),
)

SESSION = (
    Capability(
        name="state.session.get",
        purpose="Retrieves a value from the current session's in-memory state by key.",
        when_to_use=(
            "Use state.session.get to read temporary data stored earlier in the same session. Session state is destroyed"
            " when the session ends. For data that must survive across sessions, use state.persistent.get instead."
        ),
        inputs=(
            Field(
                "key",
                "String",
                "The key to look up. Keys are arbitrary strings. Use dotted namespaces (e.g. 'task.current') for"
                " organisation.",
            ),
        ),
        outputs=(
            Field("value", "Object", "The stored value, or null if the key does not exist."),
            Field("found", "Boolean", "True if the key exists in session state."),
        ),
        patterns=(
            Pattern(
                "Check for cached computation result",
                (
                    "state.session.get(key='analysis.result') to check if already computed",
                    "If found=false, perform computation and state.session.set the result",
                ),
            ),
            Pattern(
                "Read conversation context",
                ("state.session.get(key='context.last_action') to recall previous action",),
            ),
        ),
        errors=(_SESSION_NOT_FOUND,),
        tags=("state", "session", "read", "safe"),
        idempotent=True,
    ),
    Capability(
        name="state.session.set",
        purpose="Stores a key-value pair in the current session's in-memory state.",
        when_to_use=(
            "Use state.session.set to store temporary data needed during this session. Session state is destroyed on"
            " session end. Use state.persistent.set for data that must survive across sessions instead."
        ),
        inputs=(
            Field("key", "String", "The key to store under. Overwrites any existing value for the same key."),
            Field("value", "Object", "Any JSON-serialisable value: string, number, boolean, object, or array."),
        ),
        outputs=(
            Field("previous_value", "Object", "The previous value if the key was overwritten, or null if new."),
            Field("overwritten", "Boolean", "True if an existing key was overwritten."),
        ),
        side_effects=(
            SideEffect(
                "Increases session memory usage. Session state is capped at a configurable limit (default 50 MB)."
            ),
        ),
        patterns=(
            Pattern(
                "Cache a computation result for reuse within session",
                (
                    "Perform expensive computation",
                    "state.session.set(key='analysis.result', value=result)",
                    "Later: state.session.get(key='analysis.result')",
                ),
            ),
        ),
        errors=(
            _SESSION_NOT_FOUND,
            ErrorCase(
                error="QuotaExceeded",
                description="Session state size limit exceeded.",
                recovery=(
                    Hint(
                        action="delete_unused",
                        description="Use state.session.delete to remove unneeded keys.",
                        capability="state.session.delete",
                        inputs={"key": "{largest_key}"},
                    ),
                    Hint(
                        action="clear",
                        description="Use state.session.clear to remove all session state.",
                        capability="state.session.clear",
                    ),
                ),
            ),
        ),
        tags=("state", "session", "write"),
        idempotent=True,
    ),
    Capability(
        name="state.session.delete",
        purpose="Removes a key-value pair from the current session's in-memory state.",
        when_to_use=(
            "Use state.session.delete to free memory by removing keys no longer needed. Useful when session state"
            " approaches its quota limit; to remove everything, use state.session.clear instead."
        ),
        inputs=(Field("key", "String", "The key to remove."),),
        outputs=(
            Field("previous_value", "Object", "The value that was removed, or null if the key did not exist."),
            Field("deleted", "Boolean", "True if the key existed and was removed."),
        ),
        side_effects=(SideEffect("Frees memory used by the removed key-value pair."),),
        patterns=(
            Pattern(
                "Clean up after finishing a task",
                ("state.session.delete(key='task.current')", "state.session.delete(key='task.temp_data')"),
            ),
        ),
        errors=(_SESSION_NOT_FOUND,),
        tags=("state", "session", "write"),
        idempotent=True,
    ),
    Capability(
        name="state.session.list",
        purpose="Lists all keys in the current session's state, optionally filtered by prefix.",
        when_to_use=(
            "Use state.session.list to discover what data is stored in the current session. Use the prefix parameter to"
            " filter to a specific namespace. It does not show values; use state.session.get for one."
        ),
        inputs=(
            Field(
                "prefix",
                "String",
                "If provided, only return keys starting with this prefix. For example, 'task.' returns all task-related"
                " keys.",
                required=False,
            ),
        ),
        outputs=(
            Field("keys", "Array", "List of matching keys, sorted alphabetically."),
            Field("count", "Integer", "Number of keys returned."),
        ),
        patterns=(
            Pattern(
                "Discover all stored data",
                (
                    "state.session.list() to see all keys",
                    "state.session.list(prefix='task.') to see only task-related keys",
                ),
            ),
        ),
        errors=(_SESSION_NOT_FOUND,),
        tags=("state", "session", "read", "safe"),
        idempotent=True,
    ),
    Capability(
        name="state.session.clear",
        purpose="Removes all key-value pairs from the current session's state.",
        when_to_use=(
            "Use state.session.clear to free all session memory at once. This is irreversible within the session — all"
            " data is lost. To remove single keys, use state.session.delete instead."
        ),
        outputs=(Field("removed_count", "Integer", "Number of keys that were removed."),),
        side_effects=(SideEffect("All session state is permanently deleted."),),
        patterns=(
            Pattern("Reset session state for a fresh start", ("state.session.clear() to remove all session data",)),
        ),
        errors=(_SESSION_NOT_FOUND,),
        tags=("state", "session", "write"),
        idempotent=True,
    ),
)
