"""What persistent and shared state declare alike: versions, pages of keys, and a store that cannot be read."""

from helix_agents.capabilities.declaring import ErrorCase, Field, Hint

MUST_EXIST = Field(
    "must_exist",
    "Boolean",
    "Answer with KeyNotFound instead of found=false.",
    required=False,
    default=False,
    added=True,
)
EXPECTED_VERSION = Field(
    "expected_version",
    "Integer",
    "Only write if this is the current version; 0 means the key must not exist.",
    required=False,
    least=0,
    added=True,
)
CURSOR = Field("cursor", "String", "Where the last answer ended (next_cursor).", required=False, added=True)
TRUNCATED = (
    Field("truncated", "Boolean", "True if there is more.", added=True),
    Field("next_cursor", "String", "Pass it as cursor to go on; null at the end.", added=True),
    Field("total_count", "Integer", "Number of entries that match.", added=True),
)
PREFIX = Field("prefix", "String", "If provided, only return keys starting with this prefix.", required=False)
COUNT = Field("count", "Integer", "Number of entries returned.")
LISTED = (
    COUNT,
    Field("total_size_bytes", "Integer", "Total size of all listed entries in bytes."),
    Field("history_bytes", "Integer", "What older versions take of the quota.", added=True),
    *TRUNCATED,
)


def limit(default: int, *, most: int) -> Field:
    """How long a page is."""
    return Field(
        "limit",
        "Integer",
        "How many entries to return.",
        required=False,
        default=default,
        least=1,
        most=most,
        added=True,
    )


def database_error(description: str) -> ErrorCase:
    """The store could not be read."""
    return ErrorCase(
        error="DatabaseError",
        description=description,
        recovery=(Hint(action="retry", description="Retry the operation. If the error persists, check disk health."),),
    )
