"""Agents below agents: sub-agents that work for one call, and companions that stay."""
