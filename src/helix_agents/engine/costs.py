"""What an agent and those that work for it say of the prices of their models."""

from helix_agents.agent.agent import AnyAgent
from helix_agents.agent.registry import AgentRegistry
from helix_agents.domain.usage import TokenCount
from helix_agents.engine.log import log_exception
from helix_agents.ports.prices import Prices, checked_price


def prices_of(agent: AnyAgent) -> Prices:
    """What models cost by the agents that ask them: this one, or one of its sub-agents. Of a model that none of them
    names, this one is asked. A function that does not work is logged, and knows no price."""
    everyone = AgentRegistry((agent,)).everyone()

    def said(model: str, tokens: TokenCount) -> float | None:
        ask = [each for each in everyone if model in _names(each)] or [agent]
        for prices in (each.prices for each in ask):
            try:
                price = None if prices is None else prices(model, tokens)
                if price is not None:
                    return checked_price(price)
            except Exception as problem:
                log_exception("usage.price_failed", problem, model=model)
        return None

    return said


def _names(agent: AnyAgent) -> set[str]:
    return {each if isinstance(each, str) else each.name for each in agent.models}
