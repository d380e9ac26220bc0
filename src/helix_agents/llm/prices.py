"""Prices of the providers' models, from the list that comes with the ecosystem's provider layer."""

from helix_agents.domain.usage import TokenCount

# Two ways to reach one provider.
_SAME = {"openai-chat": "openai"}


def listed_price(model: str, tokens: TokenCount) -> float | None:
    """What a call costs according to the list; None for a model that is not listed, or if the list is not installed."""
    try:
        from genai_prices import Usage, calc_price
    except ModuleNotFoundError:
        return None
    provider, _, name = model.partition(":")
    usage = Usage(input_tokens=tokens.prompt, output_tokens=tokens.completion, cache_read_tokens=tokens.cached)
    try:
        return float(calc_price(usage, name, provider_id=_SAME.get(provider, provider)).total_price)
    except LookupError:
        return None
