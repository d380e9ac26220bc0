"""What persistent and shared state declare in common: versions, pages of keys, and a store that cannot be read."""

from helix_agents.capabilities.declaring import ErrorCase, Field, Hint

MUST_EXIST = Field(
    "must_exist",
    "Boolean",
    "Return a KeyNotFound error instead of found=false.",
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
CURSOR = Field("cursor", "String", "Where the last page ended (next_cursor).", required=False, added=True)
TRUNCATED = (
    Field("truncated", "Boolean", "True if there is more.", added=True),
    Field("next_cursor", "String", "Pass it as cursor to continue; null at the end.", added=True),
    Field("total_count", "Integer", "Number of matching entries.", added=True),
)
PREFIX = Field("prefix", "String", "If provided, only return keys starting with this prefix.", required=False)
COUNT = Field("count", "Integer", "Number of entries returned.")
LISTED = (
    COUNT,
    Field("total_size_bytes", "Integer", "Total size of all listed entries in bytes."),
    Field("history_bytes", "Integer", "How much of the quota older versions use.", added=True),
    *TRUNCATED,
)


def limit(default: int, *, most: int) -> Field:
    """The input that limits the length of a page."""
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
    """The error for a store that could not be read."""
    return ErrorCase(
        error="DatabaseError",
        description=description,
        recovery=(Hint(action="retry", description="Retry the operation. If the error persists, check disk health."),),
    )
