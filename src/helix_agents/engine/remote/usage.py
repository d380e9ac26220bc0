"""What a remote child used, counted once: its service reports totals, and only what came since the last look is new."""

from dataclasses import dataclass

from helix_agents.domain.errors import HelixError
from helix_agents.domain.records import Record, decode, encode
from helix_agents.domain.usage import SourceTotal, SourceType, TokenCount, UsageRollup

# Each call is an entry, so that calls add up; beyond this many at once, calls are counted in the totals only.
_MOST_ENTRIES = 100
_MOST_SOURCES = 50
_MOST = 10**12


class Use(Record):
    """A future usage entry; the first one of a source carries what all of them used."""

    source_type: SourceType
    source_name: str
    tokens: TokenCount | None = None
    amount: float = 0
    success: bool = True


@dataclass(frozen=True)
class Counted:
    """New uses, and the totals counted so far as a text to store."""

    uses: tuple[Use, ...]
    so_far: str


def count_anew(rollup: UsageRollup, before: str | None) -> Counted:
    """What the totals have gained since before. Totals that shrink count nothing."""
    known = {(each.source_type, each.source_name): each for each in _read(before)}
    totals = [_bounded(each) for each in rollup.sources[:_MOST_SOURCES]]
    uses: list[Use] = []
    for total in totals:
        uses.extend(_new(total, known.get((total.source_type, total.source_name))))
    return Counted(tuple(uses), encode(totals).decode())


def _new(total: SourceTotal, known: SourceTotal | None) -> list[Use]:
    before = known or SourceTotal(source_type=total.source_type, source_name=total.source_name, calls=0)
    calls = total.calls - before.calls
    if calls <= 0:
        return []
    failures = min(max(total.failures - before.failures, 0), calls)
    tokens = TokenCount(
        prompt=max(total.tokens.prompt - before.tokens.prompt, 0),
        completion=max(total.tokens.completion - before.tokens.completion, 0),
        reasoning=max(total.tokens.reasoning - before.tokens.reasoning, 0),
        cached=max(total.tokens.cached - before.tokens.cached, 0),
        total=max(total.tokens.total - before.tokens.total, 0),
    )
    amount = max(total.amount - before.amount, 0)
    return [
        Use(
            source_type=total.source_type,
            source_name=total.source_name,
            tokens=tokens if place == 0 and tokens != TokenCount() else None,
            amount=amount if place == 0 else 0,
            success=place >= failures,
        )
        for place in range(min(calls, _MOST_ENTRIES))
    ]


def _bounded(total: SourceTotal) -> SourceTotal:
    """The totals within limits that every store accepts, and with a valid name."""
    tokens = total.tokens
    return SourceTotal(
        source_type=total.source_type,
        source_name=total.source_name[:128] or "unnamed",
        calls=_between(total.calls),
        failures=_between(total.failures),
        amount=min(max(total.amount, 0.0), float(_MOST)),
        tokens=TokenCount(
            prompt=_between(tokens.prompt),
            completion=_between(tokens.completion),
            reasoning=_between(tokens.reasoning),
            cached=_between(tokens.cached),
            total=_between(tokens.total),
        ),
    )


def _between(number: int) -> int:
    return min(max(number, 0), _MOST)


def _read(text: str | None) -> list[SourceTotal]:
    if text is None:
        return []
    try:
        return decode(text, list[SourceTotal])
    except HelixError:
        return []
