"""Agents on Temporal: a turn is a workflow, model calls and tools are activities, texts stay in the store."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from helix_agents.domain.errors import MissingExtraError

if find_spec("temporalio") is None:
    raise MissingExtraError("TemporalAgentExecutor", "temporal")

if TYPE_CHECKING:
    from helix_agents.runtimes.temporal.executor import TemporalAgentExecutor as TemporalAgentExecutor
    from helix_agents.runtimes.temporal.options import TemporalOptions as TemporalOptions
    from helix_agents.runtimes.temporal.profiles import find_temporal as find_temporal

# Loaded on demand: the workflow's module is below this one, and the sandbox loads both for each workflow.
_HOME = {
    "TemporalAgentExecutor": "helix_agents.runtimes.temporal.executor",
    "TemporalOptions": "helix_agents.runtimes.temporal.options",
    "find_temporal": "helix_agents.runtimes.temporal.profiles",
}

__all__ = ["TemporalAgentExecutor", "TemporalOptions", "find_temporal"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
