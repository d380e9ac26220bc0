"""What must hold for a budget to be kept, checked when it is given."""

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
    """Refuse a budget that is none, or limits nothing.

    Raises:
        DefinitionError: says why.
    """
    if not isinstance(budget, Budget):
        raise DefinitionError(subject, f"budget={budget!r} is no Budget(tokens=…, cost_usd=…, model_calls=…).")
    subject = f"The budget of {subject}"
    if budget.tokens is None and budget.cost_usd is None and budget.model_calls is None:
        raise DefinitionError(subject, "it limits nothing; give tokens, cost_usd or model_calls.")
    for option in ("tokens", "model_calls"):
        if getattr(budget, option) is not None:
            check_whole(subject, option, getattr(budget, option), 1, other="; None is no limit")
    cost: Any = budget.cost_usd
    if cost is not None and (isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 < cost < math.inf):
        raise DefinitionError(subject, f"cost_usd={cost!r} has to be a number of dollars above 0; None is no limit.")
    check_choice(subject, "scope", budget.scope, get_args(BudgetScope))


def check_prices(models: Iterable[str | LLMAdapter], prices: Prices | None, subject: str, spender: str) -> None:
    """Refuse a limit in dollars for models without a price: nobody could keep it.

    Raises:
        DefinitionError: names the first of them, and what to do.
    """
    for model in models:
        name = model if isinstance(model, str) else model.name
        try:
            known = price_of(name, TokenCount(), prices)
        except Exception as problem:
            reason = f"prices of {spender!r} raised {type(problem).__name__} for model {name!r}: {problem}"
            raise DefinitionError(subject, f"{reason}; say None where a price is not known.") from problem
        if known is None:
            raise DefinitionError(
                subject,
                f"its budget is in dollars, and nobody knows what model {name!r} of {spender!r} costs; give that agent "
                "prices=…, a function of the model's name and its tokens, or install the extra of its provider.",
            )
