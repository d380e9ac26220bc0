"""Usage added up and filtered."""

from typing import Any

import pytest

from helix_agents.domain.usage import (
    SourceTotal,
    TokenCount,
    UsageEntry,
    UsageFilter,
    UsageRollup,
    matches,
    roll_up,
)


def entry(**fields: Any) -> UsageEntry:
    settings: dict[str, Any] = {"session_id": "s-1", "source_type": "tokens", "source_name": "model", **fields}
    return UsageEntry(root_session_id="s-1", run_id="r-1", **settings)


def test_nothing_used_adds_up_to_nothing():
    assert roll_up([]) == UsageRollup()


def test_entries_add_up_per_source_and_in_sum():
    rollup = roll_up(
        [
            entry(tokens=TokenCount(prompt=10, completion=1, total=11)),
            entry(n=1, tokens=TokenCount(prompt=5, cached=2, total=5)),
            entry(n=2, source_type="tool", source_name="search", amount=30),
            entry(n=3, source_type="tool", source_name="search", amount=12.5, success=False),
            entry(n=4, source_type="client_tool_wait_ms", source_name="ask", amount=900, session_id="s-2"),
        ]
    )
    tokens = TokenCount(prompt=15, completion=1, cached=2, total=16)
    assert rollup == UsageRollup(
        tokens=tokens,
        sources=(
            SourceTotal(source_type="client_tool_wait_ms", source_name="ask", calls=1, amount=900),
            SourceTotal(source_type="tokens", source_name="model", calls=2, tokens=tokens),
            SourceTotal(source_type="tool", source_name="search", calls=2, failures=1, amount=42.5),
        ),
        sessions=2,
    )


def test_tokens_that_a_sub_agent_reports_are_not_counted_twice():
    reported = TokenCount(prompt=3, total=3)
    rollup = roll_up([entry(source_type="subagent", source_name="helper", tokens=reported)])
    assert rollup.tokens == TokenCount()
    assert rollup.sources[0].tokens == reported


ENTRY = entry(user_id="ada", agent_type="writer", recorded_at=100)


@pytest.mark.parametrize(
    ("where", "found"),
    [
        (UsageFilter(), True),
        (UsageFilter(session_id="s-1", root_session_id="s-1", run_id="r-1"), True),
        (UsageFilter(session_id="s-2"), False),
        (UsageFilter(root_session_id="s-2"), False),
        (UsageFilter(run_id="r-2"), False),
        (UsageFilter(user_id="ada", agent_type="writer"), True),
        (UsageFilter(user_id="bob"), False),
        (UsageFilter(agent_type="reader"), False),
        (UsageFilter(source_type="tokens", source_name="model"), True),
        (UsageFilter(source_type="tool"), False),
        (UsageFilter(source_name="other"), False),
        (UsageFilter(recorded_from=100, recorded_to=100), True),
        (UsageFilter(recorded_from=101), False),
        (UsageFilter(recorded_to=99), False),
    ],
)
def test_a_filter_asks_for_everything_it_names(where: UsageFilter, found: bool):
    assert matches(ENTRY, where) is found
