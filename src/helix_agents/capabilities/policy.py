"""Which tier a call has: its own, or a stricter one that a rule demands. A pure function; no rule relaxes anything."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from helix_agents.capabilities.catalogue import CATALOGUE
from helix_agents.capabilities.declaring import TIERS, Capability, Tier
from helix_agents.domain.errors import DefinitionError


@dataclass(frozen=True, kw_only=True)
class Rate:
    """How many calls pass before a stricter tier applies: `most` in `seconds`."""

    most: int
    seconds: int
    then: Tier = "approval_required"

    def __post_init__(self) -> None:
        if self.seconds < 1:
            raise DefinitionError("Rate", f"seconds={self.seconds} is not a time to count in; give at least 1.")
        _check_tier("Rate", self.then)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Makes calls stricter.

    Args:
        name: The rule's name, shown when it decides.
        applies_to: A capability's name, a prefix such as `state.shared.*`, or `*`.
        tier: The tier that calls are raised to.
        agents: Only for these agents; for all if empty.
        when: Conditions on inputs: each names an input, and a value it must have or start with (`"config.*"`).
        rate: Apply the tier only after too many calls.
        reason: What a person reads.
    """

    name: str
    applies_to: str
    tier: Tier = "autonomous"
    agents: Sequence[str] = ()
    when: Mapping[str, Any] = field(default_factory=dict[str, Any])
    rate: Rate | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        subject = f"Rule {self.name!r}"
        _check_tier(subject, self.tier)
        check_list(subject, "agents", self.agents)
        # A rule that matches nothing would let everything pass that it was written against.
        about = check_matches(subject, self.applies_to)
        known = {declared.name for capability in about for declared in capability.inputs}
        for name in self.when:
            if name not in known:
                raise DefinitionError(subject, f"when names {name!r}, which is not an input of {self.applies_to!r}.")

    def may_match(self, capability: str) -> bool:
        """Whether the rule applies to some calls of this capability."""
        return _fits(self.applies_to, capability)

    def matches(self, capability: str, agent: str, inputs: Mapping[str, Any]) -> bool:
        """Whether the rule applies to this call."""
        if self.agents and agent not in self.agents:
            return False
        if not self.may_match(capability):
            return False
        return all(_fits(wanted, inputs.get(name)) for name, wanted in self.when.items())


@dataclass(frozen=True, kw_only=True)
class Policy:
    """All rules, and whose state an agent may ask a person to back up or restore besides its own."""

    rules: Sequence[Rule] = ()
    other_agents: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])

    def __post_init__(self) -> None:
        for agent, others in self.other_agents.items():
            check_list("Policy", f"other_agents[{agent!r}]", others)
        counting = [rule.name for rule in self.rules if rule.rate is not None]
        for name in counting:
            # Calls are counted by the rule's name, so each of the two would judge by what the other has counted.
            if counting.count(name) > 1:
                raise DefinitionError("Policy", f"two rules that count calls are named {name!r}; name them apart.")

    def rates(self, capability: Capability, agent: str, inputs: Mapping[str, Any]) -> list[Rule]:
        """The rules for this call that count calls."""
        return [rule for rule in self.rules if rule.rate and rule.matches(capability.name, agent, inputs)]


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The tier of one call, and what decided it."""

    tier: Tier
    rule: str | None = None
    reason: str = ""


def decide(
    policy: Policy,
    capability: Capability,
    agent: str,
    inputs: Mapping[str, Any],
    counts: Mapping[str, int] | None = None,
    *,
    by_operator: bool = False,
) -> Decision:
    """The strictest of the capability's own tier and those of all matching rules; `counts` are calls by rule. A person
    has to decide about another agent's state, so an operator may name any agent."""
    found = Decision(tier=capability.tier, reason="the tier of the capability itself")
    other = None if by_operator else _foreign_agent(policy, capability, agent, inputs)
    if other is not None:
        reason = f"the state of {other!r} belongs to another agent"
        return Decision(tier="blocked", rule="another-agents-state", reason=reason)
    for rule in policy.rules:
        if not rule.matches(capability.name, agent, inputs):
            continue
        tier = rule.tier
        if rule.rate is not None and (counts or {}).get(rule.name, 0) > rule.rate.most:
            tier = stricter(tier, rule.rate.then)
        if TIERS.index(tier) > TIERS.index(found.tier):
            found = Decision(tier=tier, rule=rule.name, reason=rule.reason or f"rule {rule.name!r}")
    return found


def check_list(what: str, field: str, given: Sequence[object] | None) -> None:
    """Check that it is a list. A text is a sequence too, of its letters: a single path would allow the root folder, and
    a single agent's name every name contained in it.

    Raises:
        DefinitionError: it is a text.
    """
    if isinstance(given, str):
        raise DefinitionError(what, f"{field} is a list; write [{given!r}].")


def check_matches(subject: str, pattern: str) -> list[Capability]:
    """The capabilities that a name, or a prefix such as `state.shared.*`, stands for.

    Raises:
        DefinitionError: it stands for none.
    """
    found = [capability for name, capability in CATALOGUE.items() if _fits(pattern, name)]
    if not found:
        [close] = difflib.get_close_matches(pattern.replace("__", "."), CATALOGUE, n=1, cutoff=0)
        raise DefinitionError(subject, f"there is no capability {pattern!r}; do you mean {close!r}?")
    return found


def stricter(one: Tier, other: Tier) -> Tier:
    """The stricter of two tiers."""
    return TIERS[max(TIERS.index(one), TIERS.index(other))]


def _check_tier(what: str, tier: Tier) -> None:
    if tier not in TIERS:
        raise DefinitionError(what, f"there is no tier {tier!r}; it is one of {', '.join(TIERS)}.")


def _foreign_agent(policy: Policy, capability: Capability, agent: str, inputs: Mapping[str, Any]) -> str | None:
    """Another agent whose state the call names, unless the policy lists it."""
    named = inputs.get("agent") if capability.name.startswith("state.backup.") else None
    if named is None or named == agent or named in policy.other_agents.get(agent, ()):
        return None
    return str(named)


def _fits(pattern: Any, found: Any) -> bool:
    if not isinstance(pattern, str) or not isinstance(found, str):
        return pattern == found
    return found.startswith(pattern[:-1]) if pattern.endswith("*") else found == pattern
