"""Whoever asks may go away at any moment: what was asked for is done or not, and nothing is left in between."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from helix_agents.agent.agent import Agent
from helix_agents.domain.runs import RunRecord
from helix_agents.ports.backend import open_backend
from helix_agents.runtimes.in_process import Executor
from helix_agents.testing import ScriptedModel
from helix_agents.testing.contracts.executor.stage import Gate
from helix_agents.testing.recording import StopAt
from tests.recovery.deaths import die_at, settings_on

SESSION = "s-1"


@pytest.mark.parametrize("look", [Executor.recover, Executor.sweep])
async def test_a_run_is_driven_whose_claimer_was_cancelled(
    look: Callable[[Executor], Coroutine[Any, Any, object]], monkeypatch: pytest.MonkeyPatch
):
    """While this process lives, nobody else finds a run that it has claimed."""
    agent = Agent(name="talker", model=ScriptedModel(["Said."]))
    async with await open_backend(f"memory://claimer-{look.__name__}") as parts, asyncio.timeout(20):
        left = await die_at(StopAt(effect=1, side="before"), parts, agent, SESSION)
        claim, answer = parts.state.claim_run, Gate()

        async def claim_slowly(*args: Any, **options: Any) -> RunRecord:
            run = await claim(*args, **options)
            await answer.wait()
            return run

        monkeypatch.setattr(parts.state, "claim_run", claim_slowly)
        async with Executor(**settings_on(parts, agent)) as helix:
            looking = asyncio.create_task(look(helix))
            await answer.until_reached()
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            answer.opened.set()
            run = await helix.get_handle(agent, SESSION)
            assert run is not None
            assert run.run_id == left.run_id
            assert await run.output() == "Said."
