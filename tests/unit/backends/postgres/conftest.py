"""The server of these tests, started when the first one asks for it."""

from helix_agents.testing.postgres_service import postgres_schemas, postgres_service, postgres_url

__all__ = ["postgres_schemas", "postgres_service", "postgres_url"]
