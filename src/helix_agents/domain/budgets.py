"""How much the models of a turn may use, and how much they have used so far."""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from helix_agents.domain.ids import RunId
from helix_agents.domain.records import Record
from helix_agents.domain.usage import UsageEntry

BudgetScope: TypeAlias = Literal["run", "tree"]
Limit: TypeAlias = Literal["tokens", "cost_usd", "model_calls"]


class Budget(Record):
    """What the models of one turn may use: `Agent(budget=Budget(tokens=200_000, cost_usd=0.50))`.

    The budget is checked before each model call. The call that exceeds it is finished, and the next one is not made:
    the run fails with `budget_exhausted`, and `retry()` continues it with a fresh budget.

    Args:
        tokens: The sum of tokens that models read and wrote.
        cost_usd: What they cost, in dollars; every model that may spend it needs a price.
        model_calls: How many model calls were answered, including those for summaries and memories.
        scope: `"tree"` includes sub-agents, at any depth; `"run"` counts only the agent's own models.
    """

    tokens: int | None = None
    cost_usd: float | None = None
    model_calls: int | None = None
    scope: BudgetScope = "tree"


class Spending(Record):
    """What model calls used. `unpriced` names a model whose price is not known."""

    tokens: int = 0
    cost_usd: float = 0.0
    model_calls: int = 0
    unpriced: str | None = None

    def __add__(self, other: "Spending") -> "Spending":
        return Spending(
            tokens=self.tokens + other.tokens,
            cost_usd=self.cost_usd + other.cost_usd,
            model_calls=self.model_calls + other.model_calls,
            unpriced=self.unpriced or other.unpriced,
        )


NOTHING = Spending()


class Spent(Record):
    """What a turn has used: its `own` models, and `below` it the sub-agents whose results it has.

    `at_work` are the sub-agents of its present step, each with everything below it, by the run that their turn started
    with; `since` is the run that this turn started with.
    """

    since: RunId
    own: Spending = NOTHING
    below: Spending = NOTHING
    at_work: dict[RunId, Spending] = {}

    @property
    def total(self) -> Spending:
        """Including everything below."""
        return sum(self.at_work.values(), self.own + self.below)

    def used(self, own: Spending, at_work: Mapping[RunId, Spending]) -> "Spent":
        """With what its models have used since, and with its sub-agents as they are now; their usage only grows."""
        latest = dict(self.at_work)
        for run_id, each in at_work.items():
            latest[run_id] = max(each, latest.get(run_id, NOTHING), key=_grown)
        return msgspec.structs.replace(self, own=self.own + own, at_work=latest)

    def settled(self) -> "Spent":
        """After a step whose sub-agents have all ended."""
        return Spent(since=self.since, own=self.own, below=sum(self.at_work.values(), self.below))


class Exhausted(NamedTuple):
    """A limit of a budget that was reached, and how much was used."""

    limit: Limit
    allowed: float
    used: float


def exhausted(budget: Budget, used: Spending) -> Exhausted | None:
    """The first limit that leaves nothing for another model call; None if something is left."""
    limits: tuple[tuple[Limit, float | None, float], ...] = (
        ("tokens", budget.tokens, used.tokens),
        ("cost_usd", budget.cost_usd, used.cost_usd),
        ("model_calls", budget.model_calls, used.model_calls),
    )
    return next(
        (
            Exhausted(limit, allowed, spent)
            for limit, allowed, spent in limits
            if allowed is not None and spent >= allowed
        ),
        None,
    )


def model_calls(entries: Iterable[UsageEntry]) -> list[UsageEntry]:
    """The model calls among the usage entries; other usage does not count against a budget."""
    return [entry for entry in entries if entry.source_type == "tokens"]


def _grown(each: Spending) -> tuple[int, int]:
    return each.model_calls, each.tokens
