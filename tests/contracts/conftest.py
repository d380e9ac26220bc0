"""Servers that the contracts of some backends need, started when the first test asks for one."""

from helix_agents.testing.postgres_service import postgres_schemas, postgres_service, postgres_url

__all__ = ["postgres_schemas", "postgres_service", "postgres_url"]
