"""Usage summed per day, agent and source in one SQL statement."""

from collections.abc import Callable, Sequence
from typing import Any

from helix_agents.domain.usage import DAY_MS, TokenCount, UsageOfDay

_TOKENS = ("prompt", "completion", "reasoning", "cached", "total")


def usage_by_day(field: Callable[..., str], conditions: str) -> str:
    """The statement.

    `field` gives the value at a path in an entry's JSON as text, or NULL if it was left out because it is the default.
    """
    tokens = [_sum(field("tokens", name), "bigint") for name in _TOKENS]
    day = f"recorded_at - recorded_at % {DAY_MS}"
    failures = f"sum(CASE WHEN {field('success')} = 'false' THEN 1 ELSE 0 END)"
    sums = ", ".join(["count(*)", failures, _sum(field("amount"), "double precision"), *tokens])
    return (
        f"SELECT {day}, agent_type, source_type, source_name, {sums} FROM __agents_usage"
        f" WHERE namespace = ?{conditions} GROUP BY {day}, agent_type, source_type, source_name"
    )


def _sum(text: str, kind: str) -> str:
    return f"CAST(sum(CAST(coalesce({text}, '0') AS {kind})) AS {kind})"


def day_of(row: Sequence[Any]) -> UsageOfDay:
    """One row of the statement's result."""
    day, agent_type, source_type, source_name, calls, failures, amount, *tokens = row
    return UsageOfDay(
        day=day,
        agent_type=agent_type,
        source_type=source_type,
        source_name=source_name,
        calls=calls,
        failures=failures,
        amount=amount,
        tokens=TokenCount(**dict(zip(_TOKENS, tokens, strict=True))),
    )
