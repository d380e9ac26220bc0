"""Conformance suites and the tools behind them, for our own tests and for anyone who writes a backend."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from helix_agents.llm.scripted import RoutingScriptedModel, ScriptedModel, Step, call, finish, provider_call, reply
from helix_agents.ports.llm import ModelRequest

if TYPE_CHECKING:
    from helix_agents.testing.postgres_service import PostgresService, postgres_schemas, postgres_service, postgres_url

__all__ = [
    "ModelRequest",
    "PostgresService",
    "RoutingScriptedModel",
    "ScriptedModel",
    "Step",
    "call",
    "finish",
    "postgres_schemas",
    "postgres_service",
    "postgres_url",
    "provider_call",
    "reply",
]

# Servers for tests, and the pytest fixtures that start them: loaded on demand, because scripts need no pytest.
_SERVICES = {
    "PostgresService": "helix_agents.testing.postgres_service",
    "postgres_schemas": "helix_agents.testing.postgres_service",
    "postgres_service": "helix_agents.testing.postgres_service",
    "postgres_url": "helix_agents.testing.postgres_service",
}

# The contracts are test code inside a package: their asserts explain themselves only if pytest rewrites them.
if (pytest := sys.modules.get("pytest")) is not None:
    pytest.register_assert_rewrite("helix_agents.testing.contracts", "helix_agents.testing.model")


def __getattr__(name: str) -> Any:
    home = _SERVICES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
