"""Budgets: what models used is counted in the commits of their runs and checked before each further model call.

A sub-agent spends from the budgets of all agents above it. Before it asks its model, it leaves a note with each of them
about what was used below, beside the results of their open step. Its siblings find the note there, in whichever process
they run, and the commit of that step takes it over. So no run ever adds up more than its current step.
"""

from collections.abc import Iterable

from helix_agents.agent.failures import Contained, ControlFlow
from helix_agents.domain.budgets import Budget, Spending, Spent, exhausted, model_calls
from helix_agents.domain.errors import BudgetExhaustedError, PriceUnknownError
from helix_agents.domain.ids import RunId
from helix_agents.domain.sessions import SessionState
from helix_agents.domain.usage import TokenCount, UsageEntry
from helix_agents.engine.desk import SPENDING, Note
from helix_agents.engine.log import log_exception
from helix_agents.engine.scope import RunScope
from helix_agents.ports.prices import price_of


async def check_budgets(scope: RunScope, since: Iterable[UsageEntry] = ()) -> None:
    """Allow a model call, unless a budget of the run or of one above it is spent; `since` is what this step used and
    has left no note of.

    Raises:
        BudgetExhaustedError: nothing is left; says which limit was reached.
        PriceUnknownError: a budget is in dollars, and a model without a price was used.
    """
    if not scope.counts_spending:
        return
    spent = _in_hand(scope, since)
    for budget in scope.budgets:
        _check(budget, spent.total if budget.scope == "tree" else spent.own, scope)
    while scope.spends_from_above and scope.parent is not None:
        await _leave_word(scope.parent, spent)
        scope = scope.parent
        spent = await _at_desk(scope)
        for budget in scope.budgets:
            if budget.scope == "tree":
                _check(budget, spent.total, scope)


async def tell_spending(scope: RunScope, child: SessionState) -> None:
    """Report to this run what a child that has come to rest used."""
    if (scope.spends_from_above or scope.shares_budget) and child.spent is not None:
        await _leave_word(scope, child.spent)


def spent_after(scope: RunScope, usage: Iterable[UsageEntry], *, step_is_whole: bool) -> Spent | None:
    """What the run will have used as of its next commit; unchanged if no budget is counted."""
    if not scope.counts_spending:
        return scope.session.spent
    spent = _counted(scope).used(priced(scope, usage), scope.carried.spending_below)
    return spent.settled() if step_is_whole else spent


def priced(scope: RunScope, usage: Iterable[UsageEntry]) -> Spending:
    """What model calls used, in dollars as well if a budget is."""
    total = Spending()
    for entry in model_calls(usage):
        tokens = entry.tokens or TokenCount()
        counted = max(tokens.total, tokens.prompt + tokens.completion)
        price = _price(scope, entry.source_name, tokens) if scope.counts_dollars else 0.0
        unpriced = entry.source_name if price is None else None
        total += Spending(tokens=counted, cost_usd=price or 0.0, model_calls=1, unpriced=unpriced)
    return total


def _price(scope: RunScope, model: str, tokens: TokenCount) -> float | None:
    try:
        with Contained("prices"):
            return price_of(model, tokens, scope.agent.prices)
    except (Exception, ControlFlow) as problem:
        log_exception("budget.price_failed", problem, session_id=scope.session.session_id, model=model)
        return None


def _counted(scope: RunScope) -> Spent:
    return scope.session.spent or Spent(since=scope.run.run_id)


def _in_hand(scope: RunScope, since: Iterable[UsageEntry] = ()) -> Spent:
    """The committed spending, plus what this step used since."""
    usage = (*scope.carried.usage, *since)
    return _counted(scope).used(priced(scope, usage), scope.carried.spending_below)


async def _at_desk(scope: RunScope) -> Spent:
    """The spending of a run with an open step: its reply and the notes of its sub-agents rest at its desk."""
    place = scope.open_step
    step_id = scope.step_id(place.step)
    # In a later round the reply is already committed.
    reply = await scope.desk.find_reply(step_id) if place.round == 0 else None
    rested = await scope.desk.notes(step_id)
    told = {_whose(name): note.spending for name, note in rested.items() if note.spending is not None}
    spent = _in_hand(scope, () if reply is None else reply.usage)
    return spent.used(Spending(), told)


async def _leave_word(above: RunScope, spent: Spent) -> None:
    place = above.open_step
    await above.note(place.step, f"{SPENDING}{spent.since}", Note(round=place.round, spending=spent.total))


def _whose(name: str) -> RunId:
    return name.removeprefix(SPENDING)


def _check(budget: Budget, used: Spending, scope: RunScope) -> None:
    if budget.cost_usd is not None and used.unpriced is not None:
        raise PriceUnknownError(scope.agent.name, used.unpriced)
    spent = exhausted(budget, used)
    if spent is not None:
        raise BudgetExhaustedError(scope.agent.name, spent.limit, spent.allowed, spent.used, budget.scope)
