"""What must hold for a budget to be enforceable, checked when it is given."""

import math
from collections.abc import Iterable
from typing import Any, get_args

from helix_agents.agent.choices import check_choice, check_whole
from helix_agents.domain.budgets import Budget, BudgetScope
from helix_agents.domain.errors import DefinitionError
from helix_agents.domain.usage import TokenCount
from helix_agents.ports.llm import LLMAdapter
from helix_agents.ports.prices import Prices, price_of


def check_budget(budget: Any, subject: str) -> None:
    """Reject anything that is not a budget, and a budget that limits nothing.

    Raises:
        DefinitionError: says why.
    """
    if not isinstance(budget, Budget):
        raise DefinitionError(subject, f"budget={budget!r} is not a Budget(tokens=…, cost_usd=…, model_calls=…).")
    # What it belongs to begins a sentence of its own elsewhere.
    subject = f"The budget of {subject[:1].lower()}{subject[1:]}"
    if budget.tokens is None and budget.cost_usd is None and budget.model_calls is None:
        raise DefinitionError(subject, "it limits nothing; give tokens, cost_usd or model_calls.")
    for option in ("tokens", "model_calls"):
        if getattr(budget, option) is not None:
            check_whole(subject, option, getattr(budget, option), 1, other="; None means no limit")
    cost: Any = budget.cost_usd
    if cost is not None and (isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 < cost < math.inf):
        raise DefinitionError(subject, f"cost_usd={cost!r} has to be a number of dollars above 0; None means no limit.")
    check_choice(subject, "scope", budget.scope, get_args(BudgetScope))


def check_prices(models: Iterable[str | LLMAdapter], prices: Prices | None, subject: str, spender: str) -> None:
    """Reject a limit in dollars for models without a known price: it could not be enforced.

    Raises:
        DefinitionError: names the first such model, and says what to do.
    """
    for model in models:
        name = model if isinstance(model, str) else model.name
        try:
            known = price_of(name, TokenCount(), prices)
        except Exception as problem:
            reason = f"prices of {spender!r} raised {type(problem).__name__} for model {name!r}: {problem}"
            raise DefinitionError(subject, f"{reason}; return None if a price is not known.") from problem
        if known is None:
            raise DefinitionError(
                subject,
                f"its budget is in dollars, but the price of model {name!r} of {spender!r} is unknown; give that agent "
                "prices=…, a function of the model's name and its tokens, or install the extra of its provider.",
            )
