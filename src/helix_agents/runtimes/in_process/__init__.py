"""Agents in one process: asyncio tasks, durable through the store alone."""

from helix_agents.runtimes.in_process.executor import Executor
from helix_agents.runtimes.in_process.handle import RunHandle

__all__ = ["Executor", "RunHandle"]
