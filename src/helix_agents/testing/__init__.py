"""Conformance suites and the tools behind them, for our own tests and for everybody who writes a backend."""

import sys

from helix_agents.llm.scripted import RoutingScriptedModel, ScriptedModel, call, finish, reply

__all__ = ["RoutingScriptedModel", "ScriptedModel", "call", "finish", "reply"]

# The contracts are test code inside a package: their asserts explain themselves only if pytest rewrites them.
if (pytest := sys.modules.get("pytest")) is not None:
    pytest.register_assert_rewrite("helix_agents.testing.contracts", "helix_agents.testing.model")
