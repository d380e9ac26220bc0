"""A process that dies at an effect, and what the next one on its store begins with."""

from typing import Any

import pytest

from helix_agents.agent.agent import AnyAgent
from helix_agents.domain.errors import ExecutorClosedError
from helix_agents.ports.backend import Backend
from helix_agents.runtimes.executor.handle import RunHandle
from helix_agents.testing.recording import Recorder, RecordingExecutor, StopAt


def settings_on(parts: Backend, agent: AnyAgent) -> dict[str, Any]:
    """How every process on this store opens its executor."""
    named = {"state": parts.state, "streams": parts.streams, "usage": parts.usage}
    return {**named, "agents": [agent], "janitor_seconds": None, "grace": 0.0}


async def die_at(at: StopAt, parts: Backend, agent: AnyAgent, session_id: str, message: str = "Go.") -> RunHandle[Any]:
    """Begin a run in a process that dies there; answers the run that it leaves."""
    async with RecordingExecutor(recorder=Recorder(at), **settings_on(parts, agent)) as dying:
        run = await dying.execute(agent, message, session_id)
        with pytest.raises(ExecutorClosedError):
            await run.result()
    return run
