"""What a call of a model costs: who prices it is found by the prefix of the model's name, as the model itself is."""

import math
from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from typing import Any, TypeAlias

from helix_agents.domain.usage import TokenCount

ENTRY_POINTS = "helix_agents.prices"

Prices: TypeAlias = Callable[[str, TokenCount], float | None]
"""Says what a call of the model of this name costs in dollars; None where it does not know."""


def price_of(model: str, tokens: TokenCount, prices: Prices | None = None) -> float | None:
    """What a call costs: as `prices` says, else as whoever has the prices of this provider; None if nobody knows.

    Raises:
        TypeError, Exception: `prices` said what is no price, or raised.
    """
    # Nothing looks at what a function of a user's says.
    said: Any = None if prices is None else prices(model, tokens)
    if said is None:
        listed = _list_of(model.partition(":")[0])
        return None if listed is None else listed(model, tokens)
    if isinstance(said, bool) or not isinstance(said, int | float) or not 0 <= said < math.inf:
        raise TypeError(f"{said!r} is no number of dollars")
    return said


@cache
def _list_of(provider: str) -> Prices | None:
    found = next(iter(entry_points(group=ENTRY_POINTS, name=provider)), None)
    return None if found is None else found.load()
