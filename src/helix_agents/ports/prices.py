"""What a model call costs: the price list is found by the prefix of the model's name, like the model itself."""

import math
from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from typing import Any, TypeAlias

import msgspec

from helix_agents.domain.usage import SourceTotal, TokenCount, UsageRollup

ENTRY_POINTS = "helix_agents.prices"

Prices: TypeAlias = Callable[[str, TokenCount], float | None]
"""Returns what a call of the model with this name costs in dollars; None if it does not know."""


def price_of(model: str, tokens: TokenCount, prices: Prices | None = None) -> float | None:
    """What a call costs, according to `prices`, else to the price list of its provider; None if neither knows.

    Raises:
        TypeError, Exception: `prices` returned something that is not a price, or raised.
    """
    # Nothing else checks what a user's function returns.
    said: Any = None if prices is None else prices(model, tokens)
    if said is None:
        listed = _list_of(model.partition(":")[0])
        return None if listed is None else listed(model, tokens)
    return checked_price(said)


def checked_price(said: object) -> float:
    """What a function said of a price, if it is one.

    Raises:
        TypeError: it is not.
    """
    if isinstance(said, bool) or not isinstance(said, int | float) or not 0 <= said < math.inf:
        raise TypeError(f"{said!r} is not a number of dollars")
    return said


def cost_of(total: SourceTotal, prices: Prices | None = None) -> float | None:
    """What all calls of one model cost together; None if nobody knows its price.

    Raises:
        TypeError, Exception: `prices` said what is no price, or raised.
    """
    # Prices are of single calls, and some are higher for long ones: so these are taken for calls of one size, the last
    # of which has what is left over.
    calls = max(total.calls, 1)
    counts = {name: getattr(total.tokens, name) for name in total.tokens.__struct_fields__}
    each = TokenCount(**{name: count // calls for name, count in counts.items()})
    rest = TokenCount(**{name: count - count // calls * (calls - 1) for name, count in counts.items()})
    last = price_of(total.source_name, rest, prices)
    of_one = last if calls == 1 else price_of(total.source_name, each, prices)
    return None if last is None or of_one is None else of_one * (calls - 1) + last


def with_cost(rollup: UsageRollup, prices: Prices | None = None) -> UsageRollup:
    """The same, and what its models cost, as far as anybody knows.

    Raises:
        TypeError, Exception: `prices` said what is no price, or raised.
    """
    costs = {each.source_name: cost_of(each, prices) for each in rollup.sources if each.source_type == "tokens"}
    known = [cost for cost in costs.values() if cost is not None]
    unpriced = tuple(name for name, cost in costs.items() if cost is None)
    return msgspec.structs.replace(rollup, cost_usd=sum(known) if known else None, unpriced=unpriced)


@cache
def _list_of(provider: str) -> Prices | None:
    found = next(iter(entry_points(group=ENTRY_POINTS, name=provider)), None)
    return None if found is None else found.load()
