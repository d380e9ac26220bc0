"""Agents in one process: asyncio tasks, durable through the store alone."""

from helix_agents.runtimes.in_process.executor import Executor

__all__ = ["Executor"]
