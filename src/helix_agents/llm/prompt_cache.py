"""Asks a provider to keep the unchanging part of a prompt, so that it is not read and paid for in full again."""

from helix_agents.ports.llm import CacheTtl, PromptCache


def anthropic_cache(*, ttl: CacheTtl = "5m") -> PromptCache:
    """Cache the instructions with the tools, and the history up to the latest batch of tool results.

    Pass it as `ModelSettings(cache=…)`. Models of other providers ignore it.
    """
    return PromptCache(provider="anthropic", ttl=ttl)
