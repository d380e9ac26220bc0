"""Usage as the command line shows it."""

from datetime import UTC, datetime
from math import floor, log10

from helix_agents.cli.output import Output
from helix_agents.cli.plain import plain, shown_count
from helix_agents.cli.stored import open_stored
from helix_agents.domain.errors import SessionNotFoundError
from helix_agents.domain.usage import SourceTotal, UsageEntry, UsageFilter, UsageRollup, roll_up
from helix_agents.ports.backend import Backend
from helix_agents.ports.prices import cost_of, with_cost

PAGE = 200
# Progress is shown every so many entries.
TELL_EVERY = 10_000


async def show_usage(
    output: Output,
    url: str,
    *,
    session_id: str | None,
    user_id: str | None,
    agent_type: str | None,
    since: datetime | None,
) -> None:
    """Add up the usage of a session, or of all sessions that match."""
    async with open_stored(url) as backend:
        if session_id is not None:
            if not await backend.state.session_exists(session_id):
                raise SessionNotFoundError(session_id)
            rollup = await backend.usage.get_usage_rollup(session_id)
        else:
            recorded_from = None if since is None else int(since.replace(tzinfo=UTC).timestamp() * 1000)
            where = UsageFilter(user_id=user_id, agent_type=agent_type, recorded_from=recorded_from)
            rollup = await _add_up(output, backend, where)
    rollup = with_cost(rollup)
    output.answer(plain(rollup))
    tokens = rollup.tokens
    output.say(
        f"{shown_count(rollup.sessions, 'session')}, {shown_count(tokens.total, 'token')}: "
        f"{tokens.prompt} in ({tokens.cached} cached), {tokens.completion} out ({tokens.reasoning} reasoning)"
    )
    if rollup.cost_usd is not None:
        without = f", without {', '.join(rollup.unpriced)}, which no list has the price of" if rollup.unpriced else ""
        output.say(f"{shown_dollars(rollup.cost_usd)} by the providers' list prices{without}")
    output.table(
        ("kind", "name", "calls", "failures", "tokens", "cost", "amount"),
        [
            (
                each.source_type,
                each.source_name,
                str(each.calls),
                str(each.failures),
                str(each.tokens.total),
                shown_cost(each),
                shown_amount(each),
            )
            for each in rollup.sources
        ],
    )


def shown_amount(source: SourceTotal) -> str:
    """How long it took, or the amount of a unit that a tool counts itself."""
    return f"{source.amount:,.15g}" if source.source_type == "custom" else f"{source.amount:,.0f} ms"


def shown_cost(source: SourceTotal) -> str:
    """What a model cost, if that is known; what else was used costs nothing by itself."""
    cost = cost_of(source) if source.source_type == "tokens" else None
    return "" if cost is None else shown_dollars(cost)


def shown_dollars(cost: float) -> str:
    """An amount in whole cents; less than a cent with two significant digits."""
    decimals = 2 if not cost or cost >= 0.01 else 1 - floor(log10(cost))
    return f"${cost:,.{decimals}f}"


async def _add_up(output: Output, backend: Backend, where: UsageFilter) -> UsageRollup:
    entries: list[UsageEntry] = []
    while True:
        page = await backend.usage.query_usage(where, offset=len(entries), limit=PAGE)
        entries.extend(page.items)
        if len(entries) % TELL_EVERY == 0 and entries:
            output.note(f"{len(entries)} of {page.total} entries")
        if not page.items or not page.has_more:
            return roll_up(entries)
