"""What a session used: tokens, tools, sub-agents, waiting time, and your own counts."""

from collections.abc import Iterable
from typing import Literal, TypeAlias

from helix_agents.domain.ids import RunId, SessionId
from helix_agents.domain.records import JSON, Record

ENTRIES_PER_ROUND = 10_000
"""Rounds of one step number their entries in separate ranges, so that none overwrites another."""

DAY_MS = 86_400_000

SourceType: TypeAlias = Literal["tokens", "tool", "subagent", "custom", "client_tool_wait_ms"]


class TokenCount(Record):
    """Tokens of one or many model calls."""

    prompt: int = 0
    completion: int = 0
    reasoning: int = 0
    cached: int = 0
    total: int = 0

    def __add__(self, other: "TokenCount") -> "TokenCount":
        return TokenCount(
            prompt=self.prompt + other.prompt,
            completion=self.completion + other.completion,
            reasoning=self.reasoning + other.reasoning,
            cached=self.cached + other.cached,
            total=self.total + other.total,
        )

    def __sub__(self, other: "TokenCount") -> "TokenCount":
        return TokenCount(
            prompt=self.prompt - other.prompt,
            completion=self.completion - other.completion,
            reasoning=self.reasoning - other.reasoning,
            cached=self.cached - other.cached,
            total=self.total - other.total,
        )


class UsageEntry(Record):
    """One usage record. Run, attempt, step and `n` make it unique, so a replay never counts twice.

    `source_name` is the model, tool, agent or metric; `amount` is a duration in ms, or a custom quantity.
    """

    session_id: SessionId
    root_session_id: SessionId
    run_id: RunId
    attempt: int = 1
    step: int = 0
    n: int = 0
    source_type: SourceType
    source_name: str
    tokens: TokenCount | None = None
    amount: float = 0
    success: bool = True
    agent_type: str | None = None
    user_id: str | None = None
    metadata: dict[str, JSON] = {}
    recorded_at: int = 0


class UsageFilter(Record):
    """Which entries to list; all given conditions must hold. The time range is inclusive."""

    session_id: SessionId | None = None
    root_session_id: SessionId | None = None
    run_id: RunId | None = None
    user_id: str | None = None
    agent_type: str | None = None
    source_type: SourceType | None = None
    source_name: str | None = None
    recorded_from: int | None = None
    recorded_to: int | None = None


class SourceTotal(Record):
    """All entries of one source added up."""

    source_type: SourceType
    source_name: str
    calls: int
    failures: int = 0
    amount: float = 0
    tokens: TokenCount = TokenCount()


class UsageRollup(Record):
    """What a session and everything below it have used.

    `cost_usd` is what the models cost, as far as the process that shows it knows their prices; None if it knows none.
    `unpriced` names the models without a known price.
    """

    tokens: TokenCount = TokenCount()
    sources: tuple[SourceTotal, ...] = ()
    sessions: int = 0
    cost_usd: float | None = None
    unpriced: tuple[str, ...] = ()


class UsageOfDay(Record):
    """What one agent used of one source on one day. `day` is when the day starts, in UTC."""

    day: int
    agent_type: str | None = None
    source_type: SourceType
    source_name: str
    calls: int
    failures: int = 0
    amount: float = 0
    tokens: TokenCount = TokenCount()


def matches(entry: UsageEntry, where: UsageFilter) -> bool:
    """Whether an entry matches the filter."""
    return (
        (where.session_id is None or entry.session_id == where.session_id)
        and (where.root_session_id is None or entry.root_session_id == where.root_session_id)
        and (where.run_id is None or entry.run_id == where.run_id)
        and (where.user_id is None or entry.user_id == where.user_id)
        and (where.agent_type is None or entry.agent_type == where.agent_type)
        and (where.source_type is None or entry.source_type == where.source_type)
        and (where.source_name is None or entry.source_name == where.source_name)
        and (where.recorded_from is None or entry.recorded_at >= where.recorded_from)
        and (where.recorded_to is None or entry.recorded_at <= where.recorded_to)
    )


def roll_up(entries: Iterable[UsageEntry]) -> UsageRollup:
    """All entries added up, per source and in total; sources are sorted by type and name.

    The total counts tokens of model calls only: tokens that a tool or a sub-agent reports were already counted there.
    """
    tokens = TokenCount()
    sources: dict[tuple[SourceType, str], list[UsageEntry]] = {}
    sessions: set[SessionId] = set()
    for entry in entries:
        sources.setdefault((entry.source_type, entry.source_name), []).append(entry)
        sessions.add(entry.session_id)
        if entry.source_type == "tokens" and entry.tokens is not None:
            tokens += entry.tokens
    totals = tuple(_total(source_type, name, sources[source_type, name]) for source_type, name in sorted(sources))
    return UsageRollup(tokens=tokens, sources=totals, sessions=len(sessions))


def by_day(entries: Iterable[UsageEntry]) -> tuple[UsageOfDay, ...]:
    """All entries added up per day, agent and source; the newest day first, then by name."""
    found: dict[tuple[int, str | None, SourceType, str], list[UsageEntry]] = {}
    for entry in entries:
        day = entry.recorded_at - entry.recorded_at % DAY_MS
        found.setdefault((day, entry.agent_type, entry.source_type, entry.source_name), []).append(entry)
    return in_order(
        UsageOfDay(
            day=day,
            agent_type=agent_type,
            source_type=source_type,
            source_name=source_name,
            calls=total.calls,
            failures=total.failures,
            amount=total.amount,
            tokens=total.tokens,
        )
        for (day, agent_type, source_type, source_name), entries in found.items()
        for total in (_total(source_type, source_name, entries),)
    )


def in_order(days: Iterable[UsageOfDay]) -> tuple[UsageOfDay, ...]:
    """Newest day first, then by agent and source: the same on every store, whatever its collation."""
    return tuple(sorted(days, key=lambda each: (-each.day, each.agent_type or "", each.source_type, each.source_name)))


def _total(source_type: SourceType, source_name: str, entries: list[UsageEntry]) -> SourceTotal:
    return SourceTotal(
        source_type=source_type,
        source_name=source_name,
        calls=len(entries),
        failures=sum(not entry.success for entry in entries),
        amount=sum(entry.amount for entry in entries),
        tokens=sum((entry.tokens for entry in entries if entry.tokens is not None), TokenCount()),
    )
