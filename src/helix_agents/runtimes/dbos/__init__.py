"""Agents on DBOS: every effect is a step of a workflow, kept in DBOS's own SQLite or PostgreSQL database."""

from importlib.util import find_spec

from helix_agents.domain.errors import MissingExtraError

if find_spec("dbos") is None:
    raise MissingExtraError("DBOSAgentExecutor", "dbos")

from helix_agents.runtimes.dbos.executor import DBOSAgentExecutor

__all__ = ["DBOSAgentExecutor"]
