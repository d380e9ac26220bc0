"""Servers that the contracts of some backends need, started when the first test asks for one."""

from helix_agents.testing.postgres_service import postgres_service

__all__ = ["postgres_service"]
